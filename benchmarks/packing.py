"""One update over whole episodes under a token budget against row by row: tokens, images and time, as ratios.

The same rows, loss and small random Qwen2.5-VL on both sides, in one thread; the gradients are compared. Every step has
its own 256 x 144 screenshot (144 image tokens) and a response of ``--response`` random tokens, after a prompt of about
520 tokens (preset ``paper``). Row by row: one forward and backward pass per row. Packed: micro-batches of at most
``--max-tokens`` tokens (train.max_tokens). The last lines are the ratios.

    python -m benchmarks.packing --steps 5 15 --history all
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDictBase
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.packing import Pack, pack_rows
from bepa_torchrl.data.prompt import Response
from bepa_torchrl.data.step_rows import Turn, episode_rows, row_list, stack_rows, step_contexts
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.policies.transformers.checkpoint import Checkpoint
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing.tiny_config import image_processor_config, tiny_config
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from bepa_torchrl.training.optimization_step import accumulate
from osworld_gym.types import StopReason
from osworld_gym.uitars.history import HISTORIES

SCREEN = (256, 144)  #: width, height
POSITIONS = 128_000  #: of the model, as many as a 7B has: no prompt is too long


@dataclass(frozen=True, slots=True)
class Update:
    """What one update cost: forward passes, tokens through the model, images encoded, CPU seconds; and its gradient."""

    passes: int
    tokens: int
    images: int
    seconds: float
    gradient: torch.Tensor


def make_policy(hidden: int, layers: int, history: str, images: int | None) -> TransformersPolicy:
    """A policy with random weights."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["open the trash and empty it", "Thought: wait\nAction: wait()"])
    config = tiny_config(tokenizer, hidden=hidden, layers=layers)
    config.text_config.max_position_embeddings = POSITIONS
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    settings = image_processor_config()
    names = ("patch_size", "merge_size", "temporal_patch_size", "size", "image_mean", "image_std")
    processor = Qwen2VLImageProcessorPil(**{name: settings[name] for name in names})
    ends = (tokenizer.get_vocab()["<|im_end|>"],)
    checkpoint = Checkpoint(model, tokenizer, processor, ends)
    return TransformersPolicy(checkpoint, preset="paper", history=history, history_images=images)


def screenshot(numbers: np.random.Generator, size: tuple[int, int]) -> bytes:
    """PNG of random 16 x 16 tiles; ``size``: width and height in pixels."""
    width, height = size
    tiles = numbers.integers(0, 256, (-(-height // 16), -(-width // 16), 3), dtype=np.uint8)
    pixels = np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))[:height, :width]
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG")
    return buffer.getvalue()


def make_rows(
    policy: TransformersPolicy, episodes: int, steps: int, response: int, *, screen: tuple[int, int] = SCREEN
) -> TensorDictBase:
    """One group of ``episodes`` episodes, alternately with advantage 1 and -1."""
    numbers = np.random.default_rng(0)
    words = sorted(set(range(len(policy.renderer.processor.tokenizer))) - policy.renderer.processor.special_ids)
    rows = []
    for slot in range(episodes):
        pngs = [screenshot(numbers, screen) for _ in range(steps)]
        tokens = [torch.from_numpy(numbers.choice(words, response)) for _ in range(steps)]
        texts = policy.renderer.processor.decode_responses([each.tolist() for each in tokens])
        prompts = policy.render(step_contexts("open the trash and empty it", pngs, texts, tokens))
        turns = [
            Turn(png, prompt, Response(text, each, torch.zeros(response)))
            for png, prompt, text, each in zip(pngs, prompts, texts, tokens, strict=True)
            if prompt is not None
        ]
        names = {"task_id": "task", "instruction": "open the trash and empty it", "group_id": 0, "slot": slot}
        options = {"source": K.Source.on_policy, "policy_version": 0, "reward": 1.0, "stop": StopReason.finished}
        rows += row_list(episode_rows(turns, **names, **options, plan_free=True))  # type: ignore[arg-type]
    for row in rows:
        row[K.ADVANTAGE] = torch.full((1, 1), 1.0 - 2.0 * (int(row[K.SLOT]) % 2))
    return stack_rows(rows)


def measure(policy: TransformersPolicy, batch: TensorDictBase, packs: Sequence[Pack]) -> Update:
    """One update by these micro-batches; the weights stay as they are (learning rate 0)."""
    loss = BEPALoss(policy, old_policy="current")
    batch.set(K.DENOMINATOR, loss.denominators(batch))
    rows = row_list(batch)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0)
    start = time.process_time()
    optimizer.zero_grad()
    accumulate(loss, rows, packs)
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    seconds = time.process_time() - start
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    images = sum(len({image for i in pack.rows for image in rows[i][K.IMAGES]}) for pack in packs)
    return Update(len(packs), sum(sum(pack.hosts) for pack in packs), images, seconds, gradient)


def row_by_row(rows: Sequence[TensorDictBase]) -> list[Pack]:
    """One micro-batch per row."""
    return [Pack((i,), (len(row[K.PROMPT_TOKENS]) + len(row[K.RESPONSE_TOKENS]),)) for i, row in enumerate(rows)]


def compare(policy: TransformersPolicy, steps: int, options: argparse.Namespace) -> str:
    """Measures both sides, prints them, and returns the line with their ratios."""
    batch = make_rows(policy, options.episodes, steps, options.response)
    rows = row_list(batch)
    measure(policy, batch, pack_rows(rows[:1], options.max_tokens))  # warm up
    found = {"row by row": measure(policy, batch, row_by_row(rows))}
    found["packed"] = measure(policy, batch, pack_rows(rows, options.max_tokens))
    for name, update in found.items():
        counts = f"{update.passes:4} passes {update.tokens:8} tokens {update.images:5} images"
        print(f"{steps:3} steps  {name:10} {counts} {update.seconds:8.2f} s")
    apart, packed = found["row by row"], found["packed"]
    error = float((packed.gradient - apart.gradient).norm() / apart.gradient.norm())
    ratios = f"tokens {apart.tokens / packed.tokens:.2f}x, images {apart.images / packed.images:.2f}x"
    return f"{steps} steps: {ratios}, time {apart.seconds / packed.seconds:.2f}x; gradients differ by {error:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[5, 15], help="steps per episode")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--response", type=int, default=24, help="tokens of a response")
    parser.add_argument("--max-tokens", type=int, default=8192, help="token budget of a micro-batch")
    parser.add_argument("--history", choices=HISTORIES, default="all")
    parser.add_argument("--images", type=int, help="k of evict_block and last_k (policy.history_images)")
    parser.add_argument("--hidden", type=int, default=96, help="width of the model, a multiple of 32")
    parser.add_argument("--layers", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = make_policy(options.hidden, options.layers, options.history, options.images)
    lines = [compare(policy, steps, options) for steps in options.steps]
    print(f"row by row / packed, history {options.history}:")
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
