"""One BEPA update of a model of true size with random weights: tokens per second, MFU and peak memory, by step.

The rows of ``--episodes`` episodes (one screenshot of ``--screen`` pixels and a response of ``--response`` random
tokens per step, preset ``paper``, history ``all``) are trained in micro-batches of at most ``--max-tokens`` tokens, as
``bepa train`` does it, then again row by row on the first ``--baseline-episodes`` episodes. ``--tune full`` trains the
decoder with float32 master weights and 8-bit moments, ``--tune lora`` adapters of rank 64; the vision tower is frozen.

MFU is the model's operations (forward and backward, without recomputation, each shared prefix once) over the time and
the GPU's dense bfloat16 rate. The prediction of `bepa plan` for the same update stands beside the measured memory.

    python -m benchmarks.gpu_update --gpu h200 --tune full
    python -m benchmarks.gpu_update --model small --device cpu --gpu none --steps 3 --screen 256x144   # any machine

The last lines are the ratios. No GPU has run it yet (docs/train_7b.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from benchmarks.packing import make_rows, row_by_row
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.packing import Pack, pack_rows
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.policies.transformers.checkpoint import Checkpoint
from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.sizing.duration import episode_backward, episode_forward
from bepa_torchrl.sizing.flops import Training
from bepa_torchrl.sizing.gpus import GPUS
from bepa_torchrl.sizing.known_models import KNOWN, known_model
from bepa_torchrl.sizing.memory import Recipe, training_memory
from bepa_torchrl.sizing.model import ModelShape, model_shape
from bepa_torchrl.sizing.tokens import EpisodeShape, image_grid
from bepa_torchrl.testing.tiny_config import MAX_PIXELS, MERGE, MIN_PIXELS, PATCH, tiny_config
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from bepa_torchrl.training.optimization_step import accumulate, parameter_groups
from bepa_torchrl.training.precision import make_adamw

SMALL = "small"  #: the shape of the tiny policy
RANK = 64
POSITIONS = 128_000  #: of the small model, as many as a 7B has


@dataclass(frozen=True)
class Model:
    """A model to measure: its configuration, and its image processor's patch, merge size and pixel limits."""

    config: Any
    patch: int
    merge: int
    min_pixels: int
    max_pixels: int

    @property
    def shape(self) -> ModelShape:
        """Its sizes."""
        return model_shape(self.config.to_dict())


@dataclass(frozen=True)
class Measured:
    """One update: rows, tokens through the model, micro-batches, seconds, peak bytes (0 on a CPU)."""

    rows: int
    tokens: int
    passes: int
    seconds: float
    peak: int


def find_model(name: str, tokenizer: Any) -> Model:
    """The configuration of a known model with our tokenizer's special tokens, or the small one."""
    if name == SMALL:
        small = tiny_config(tokenizer)
        small.text_config.max_position_embeddings = POSITIONS
        return Model(small, PATCH, MERGE, MIN_PIXELS, MAX_PIXELS)
    files = known_model(name)
    config = AutoConfig.for_model(**files.config)
    for token in ("image", "video"):
        setattr(config, f"{token}_token_id", tokenizer.convert_tokens_to_ids(f"<|{token}_pad|>"))
    config.vision_start_token_id = tokenizer.convert_tokens_to_ids("<|vision_start|>")
    vision = files.config["vision_config"]
    return Model(config, vision["patch_size"], vision["spatial_merge_size"], files.min_pixels, files.max_pixels)


def make_policy(model: Model, tokenizer: Any, options: argparse.Namespace) -> TransformersPolicy:
    """A policy with random weights, made on the device."""
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    with torch.device(options.device):
        weights = AutoModelForImageTextToText.from_config(model.config, dtype=dtype, attn_implementation="sdpa")
    processor = Qwen2VLImageProcessorPil(
        patch_size=model.patch,
        merge_size=model.merge,
        temporal_patch_size=2,
        size={"shortest_edge": model.min_pixels, "longest_edge": model.max_pixels},
    )
    checkpoint = Checkpoint(weights.eval(), tokenizer, processor, (tokenizer.convert_tokens_to_ids("<|im_end|>"),))
    return TransformersPolicy(
        checkpoint,
        preset="paper",
        max_prompt_tokens=options.max_tokens,
        max_batch_tokens=options.max_tokens,
        train_vision=False,
        activation_checkpointing=True,
        lora=Lora(RANK, RANK) if options.tune == "lora" else None,
    )


def measure(
    policy: TransformersPolicy, batch: TensorDictBase, packs: Sequence[Pack], optimizer: torch.optim.Optimizer
) -> Measured:
    """One update by these micro-batches, as :func:`bepa_torchrl.training.optimization_step.gradient_step` makes it."""
    loss = BEPALoss(policy, old_policy="current")
    batch.set(K.DENOMINATOR, loss.denominators(batch))
    rows = row_list(batch)
    gpu = policy.device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    accumulate(loss, rows, packs)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    tokens = sum(sum(pack.hosts) for pack in packs)
    return Measured(len(rows), tokens, len(packs), seconds, torch.cuda.max_memory_allocated() if gpu else 0)


def run(options: argparse.Namespace) -> list[str]:
    """Measures both sides; returns the lines with the ratios."""
    tokenizer = train_tokenizer(["open the trash and empty it", "Thought: wait\nAction: wait()"])
    model = find_model(options.model, tokenizer)
    policy = make_policy(model, tokenizer, options)
    optimizer = make_adamw(parameter_groups(policy, lr=1e-6), kind=options.optimizer)
    batch = make_rows(policy, options.episodes, options.steps, options.response, screen=options.screen)
    rows = row_list(batch)
    packs = pack_rows(rows, options.max_tokens)
    measure(policy, stack_rows(rows[:1]), row_by_row(rows[:1]), optimizer)  # kernels are compiled, moments allocated
    packed = [measure(policy, batch, packs, optimizer) for _ in range(options.updates)]
    for number, found in enumerate(packed):
        print(_line(f"packed, update {number + 1}", found))
    first = stack_rows(row for row in rows if int(row[K.SLOT]) < options.baseline_episodes)
    alone = measure(policy, first, row_by_row(row_list(first)), optimizer)
    print(_line("row by row", alone))
    best = min(packed, key=lambda found: found.seconds)
    speed = (best.rows / best.seconds) / (alone.rows / alone.seconds)
    lines = [f"packed / row by row: {speed:.2f}x rows per second, {_memory_ratio(alone, best)}"]
    if options.gpu != "none":
        lines.append(_against_plan(model, batch, best, options))
    return lines


def _line(name: str, found: Measured) -> str:
    speed = f"{found.tokens / found.seconds:10.0f} tokens/s"
    return (
        f"{name:20} {found.passes:4} passes {found.tokens:8} tokens {found.seconds:8.2f} s {speed} {_gib(found.peak)}"
    )


def _memory_ratio(alone: Measured, packed: Measured) -> str:
    return f"{packed.peak / alone.peak:.2f}x peak memory" if alone.peak else "memory not measured on a CPU"


def _against_plan(model: Model, batch: TensorDictBase, found: Measured, options: argparse.Namespace) -> str:
    """MFU, and the peak memory beside the plan's."""
    shape = model.shape
    grid = image_grid(shape.vision, options.screen, min_pixels=model.min_pixels, max_pixels=model.max_pixels)
    rows = row_list(batch)
    image = grid.patches // shape.vision.merge**2
    head = len(rows[0][K.PROMPT_TOKENS]) - image
    episode = EpisodeShape(options.steps, head, image, options.response, "all", None)
    training = Training(vision=False, rank=RANK if options.tune == "lora" else 0)
    flops = episode_forward(shape, episode, grid, training.rank) + episode_backward(shape, episode, grid, training)
    rate = options.episodes * flops.total / found.seconds
    element = getattr(torch, options.dtype).itemsize
    recipe = Recipe(training, optimizer=options.optimizer, checkpointing=True, element=element)
    packs = pack_rows(rows, options.max_tokens)
    tokens = max(sum(pack.hosts) for pack in packs)
    images = max(len({image for i in pack.rows for image in rows[i][K.IMAGES]}) for pack in packs)
    planned = training_memory(shape, recipe, tokens, images, grid.patches).total
    mfu = rate / GPUS[options.gpu].flops
    return f"MFU {100 * mfu:.1f} % of {options.gpu}; peak {_gib(found.peak)}, planned {_gib(planned)}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[SMALL, *KNOWN], default=KNOWN[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--gpu", choices=["none", *GPUS], required=True, help="whose rate MFU is a share of")
    parser.add_argument("--tune", choices=["full", "lora"], default="full")
    parser.add_argument("--optimizer", choices=["adamw", "adamw_8bit"], default="adamw_8bit")
    parser.add_argument("--steps", type=int, default=15, help="steps per episode")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--baseline-episodes", type=int, default=1, help="episodes that are also trained row by row")
    parser.add_argument("--response", type=int, default=120, help="tokens of a response")
    parser.add_argument("--screen", type=_size, default=(1920, 1080), help="WIDTHxHEIGHT of a screenshot in pixels")
    parser.add_argument("--max-tokens", type=int, default=66048, help="token budget of a micro-batch")
    parser.add_argument("--updates", type=int, default=3)
    options = parser.parse_args()
    lines = run(options)
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
