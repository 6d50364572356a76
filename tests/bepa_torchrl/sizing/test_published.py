"""The plan's arithmetic against published measurements: how far it is off, which docs/train_7b.md states.

Measured on GPUs by others, who used the same models in other programs:

- one forward pass of Qwen2.5-VL-7B over an image of 1260x700 and 150 tokens of text on an H100: 0.10285 s with
  FlashAttention 2 (verl-project/verl#4670);
- the vision tower over an image of 1000x2530 on an A100: 0.22 s with FlashAttention, 1.88 s with one SDPA call per
  window (huggingface/transformers#37363);
- a step of GRPO of Qwen2.5-VL-7B on eight A100 of 80 GB, 16 prompts x 8 responses, 8 images of 336x336 and at most
  1,000 tokens of text: 26 to 30 hours for 500 steps (hiyouga/EasyR1#392), 187 to 216 s.
"""

from __future__ import annotations

import re

import pytest
from repository import ROOT

from bepa_torchrl.sizing.duration import decode_speed
from bepa_torchrl.sizing.flops import Flops, Training, backward, forward
from bepa_torchrl.sizing.gpus import gpu
from bepa_torchrl.sizing.known_models import known_model
from bepa_torchrl.sizing.model import ModelShape, model_shape
from bepa_torchrl.sizing.tokens import image_grid

MFU = 0.4  #: the command's default
LIMITS = {"min_pixels": 3_136, "max_pixels": 12_845_056}


@pytest.fixture(scope="module")
def model() -> ModelShape:
    return model_shape(known_model("Qwen/Qwen2.5-VL-7B-Instruct").config)


def seconds(flops: Flops, device: str, count: int = 1) -> float:
    return flops.total / (MFU * gpu(device).flops * count)


def stated() -> list[float]:
    """The ratios of the page's table, measured / plan."""
    page = (ROOT / "docs" / "train_7b.md").read_text(encoding="utf-8")
    table = page.split("### Against published measurements", 1)[1].split("\n\n")[2]
    return [float(cell) for cell in re.findall(r"\| ([\d.]+) \|$", table, re.M)]


def test_a_forward_pass_takes_longer_than_planned(model: ModelShape) -> None:
    grid = image_grid(model.vision, (1260, 700), **LIMITS)
    tokens = grid.patches // 4 + 150
    assert tokens == pytest.approx(0.10285 * 12_503, rel=0.02)  # of their table
    ratio = 0.10285 / seconds(forward(model, [tokens], [grid], tokens), "h100")
    assert ratio == pytest.approx(stated()[0], abs=0.05)


def test_the_tower_takes_longer_than_planned(model: ModelShape) -> None:
    grid = image_grid(model.vision, (1000, 2530), **LIMITS)
    planned = seconds(forward(model, [], [grid], 0), "a100_80")
    assert 0.22 / planned == pytest.approx(stated()[1], abs=0.05)
    assert 1.88 / planned == pytest.approx(stated()[2], abs=0.5)


def test_a_step_of_reinforcement_learning_takes_longer_than_planned(model: ModelShape) -> None:
    """With the longest text and responses of 2,048 tokens, and without FSDP's traffic, syncs and preprocessing."""
    grid, responses = image_grid(model.vision, (336, 336), **LIMITS), 2_048
    row = 8 * grid.patches // 4 + 1_000 + responses
    case = (model, [row] * 128, [grid] * 8 * 128, 128 * responses)
    update = forward(*case) * 3 + backward(*case, training=Training())  # old and reference log-probs, too
    prefill = forward(model, [row - responses] * 128, [grid] * 8 * 128, 0)
    speed = decode_speed(model, gpu("a100_80"), 16, row - responses / 2, 2) * 8  # 16 rows on each of eight GPUs
    planned = seconds(update, "a100_80", 8) + seconds(prefill, "a100_80", 8) + 128 * responses / speed
    ratio = 26 * 3600 / 500 / planned
    assert ratio > 1
    assert ratio == pytest.approx(stated()[3], abs=0.3)
