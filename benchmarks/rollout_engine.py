"""vLLM against the built-in sampler: tokens per second in single turns and in whole multi-turn episodes, as ratios.

The same random Qwen2.5-VL, prompts and seed keys on both sides; the sampled tokens are compared. Both have the same
number of threads (OMP_NUM_THREADS). Single turn: rows with one screenshot each. Episodes: every turn's prompt has the
whole history, so that vLLM takes most of it from its prefix cache. CPU seconds are those of this process and of the
engine's processes. The last lines are the ratios.

    python -m benchmarks.rollout_engine                                  # a tiny shape, a minute
    python -m benchmarks.rollout_engine --hidden 384 --layers 8 --vocabulary 152064 --screen 640 360

Requires vLLM (docs/vllm.md).
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.data.prompt import Response
from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.policies.transformers.checkpoint import Checkpoint
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing.tiny_config import image_processor_config, tiny_config
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.types import PromptContext


@dataclass(frozen=True, slots=True)
class Cost:
    """Response tokens, wall seconds and CPU seconds of a workload."""

    tokens: int
    wall: float
    cpu: float


def make_policy(options: argparse.Namespace) -> TransformersPolicy:
    """A policy with random weights."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["open the trash and empty it", "Thought: wait\nAction: wait()"])
    config = tiny_config(tokenizer, hidden=options.hidden, layers=options.layers)
    config.text_config.vocab_size = max(options.vocabulary, len(tokenizer))
    config.text_config.max_position_embeddings = options.window + options.tokens
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    settings = image_processor_config()
    names = ("patch_size", "merge_size", "temporal_patch_size", "size", "image_mean", "image_std")
    processor = Qwen2VLImageProcessorPil(**{name: settings[name] for name in names})
    checkpoint = Checkpoint(model, tokenizer, processor, (tokenizer.get_vocab()["<|im_end|>"],))
    return TransformersPolicy(
        checkpoint, preset="paper", history="all", max_prompt_tokens=options.window, max_new_tokens=options.tokens
    )


def screenshot(numbers: np.random.Generator, screen: Sequence[int]) -> bytes:
    """PNG of random 16 x 16 tiles."""
    width, height = screen
    tiles = numbers.integers(0, 256, (-(-height // 16), -(-width // 16), 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))[:height, :width]).save(buffer, format="PNG")
    return buffer.getvalue()


def single_turn(policy: Sampler, options: argparse.Namespace) -> list[Response]:
    """One response to each of ``--rows`` prompts."""
    numbers = np.random.default_rng(1)
    contexts = [PromptContext(f"open {i}", [screenshot(numbers, options.screen)]) for i in range(options.rows)]
    prompts = [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]
    assert len(prompts) == options.rows, "a prompt is longer than --window"
    return policy.sample(prompts, [(1, 0, row, 0, 0) for row in range(options.rows)])


def episodes(policy: Sampler, options: argparse.Namespace) -> list[Response]:
    """``--episodes`` episodes at a time, ``--turns`` turns each, every screenshot in the prompt."""
    numbers = np.random.default_rng(2)
    contexts = [PromptContext(f"close {i}", []) for i in range(options.episodes)]
    found = []
    for turn in range(options.turns):
        contexts = [
            replace(context, screenshots=(*context.screenshots, screenshot(numbers, options.screen)))
            for context in contexts
        ]
        prompts = [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]
        assert len(prompts) == options.episodes, "a prompt is longer than --window"
        responses = policy.sample(prompts, [(2, 0, slot, 0, turn) for slot in range(options.episodes)])
        contexts = [
            replace(
                context,
                responses=(*context.responses, response.text),
                response_tokens=(*context.response_tokens, tuple(response.tokens.tolist())),
            )
            for context, response in zip(contexts, responses, strict=True)
        ]
        found += responses
    return found


def cpu_seconds() -> float:
    """CPU seconds of this process and its living children."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def measure(work: Callable[[], list[Response]]) -> tuple[list[Response], Cost]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    responses = work()
    tokens = sum(len(response.tokens) for response in responses)
    return responses, Cost(tokens, time.perf_counter() - wall, cpu_seconds() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 96), ("layers", 2), ("vocabulary", 0), ("tokens", 24), ("window", 16384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("rows", 4), ("episodes", 2), ("turns", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--screen", type=int, nargs=2, default=(192, 192), metavar=("WIDTH", "HEIGHT"))
    options = parser.parse_args()
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

    trainer = make_policy(options)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{parameters / 1e6:.1f}M parameters, {torch.get_num_threads()} threads, {options.screen} pixels")
    engine = VLLMSampler(trainer, kv_cache_gb=1.0, max_rows=64)
    ratios = []
    try:
        engine.sync()
        engine.drain_metrics()
        for name, work in (("single turn", single_turn), ("whole episodes", episodes)):
            expected, own = measure(lambda work=work: work(trainer, options))
            found, other = measure(lambda work=work: work(engine, options))
            same = sum(torch.equal(a.tokens, b.tokens) for a, b in zip(found, expected, strict=True))
            rate = engine.drain_metrics()["engine/prefix_cache_hit_rate"]
            for who, cost in (("built-in sampler", own), ("vLLM", other)):
                print(f"{name}, {who}: {cost.tokens} tokens, wall {cost.wall:.2f} s, CPU {cost.cpu:.2f} s")
            print(f"{name}: {same} of {len(found)} responses equal, {rate:.0%} of prompt tokens from the prefix cache")
            speed = own.wall / own.tokens * other.tokens / other.wall
            ratios.append(f"{name}: vLLM {speed:.2f}x by wall time, {own.cpu / other.cpu:.2f}x by CPU time")
    finally:
        engine.close()
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
