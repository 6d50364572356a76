"""The benchmark of an update on a GPU runs at a small shape on the CPU, and its plan fits what is measured."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import gpu_update
from bepa_torchrl.sizing.known_models import known_model
from bepa_torchrl.sizing.model import model_shape
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer


@pytest.mark.parametrize(
    ("tune", "dtype", "optimizer"),
    [("full", "float32", "adamw"), ("lora", "float32", "adamw"), ("full", "bfloat16", "adamw_8bit")],
)
def test_a_small_shape_on_the_cpu(
    tune: str, dtype: str, optimizer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last case is what a GPU runs by default: bfloat16 weights, float32 masters, 8-bit moments."""
    small = ["--model", "small", "--device", "cpu", "--dtype", dtype, "--optimizer", optimizer, "--max-tokens", "4096"]
    work = ["--steps", "3", "--episodes", "2", "--response", "8", "--screen", "256x144", "--updates", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu_update", *small, *work, "--tune", tune, "--gpu", "h200"])
    gpu_update.main()
    packed, alone, ratios, plan = capsys.readouterr().out.strip().splitlines()
    tokens = [int(re.findall(r"(\d+) tokens ", line)[0]) for line in (packed, alone)]
    assert tokens[0] < 2 * tokens[1]  # two episodes packed, against one row by row
    assert re.fullmatch(r"packed / row by row: [\d.]+x rows per second, memory not measured on a CPU", ratios)
    assert re.fullmatch(r"MFU [\d.]+ % of h200; peak 0.0 GiB, planned [\d.]+ GiB", plan)


def test_a_known_model_has_its_true_size() -> None:
    name = "ByteDance-Seed/UI-TARS-1.5-7B"
    tokenizer = train_tokenizer(["wait"])
    model = gpu_update.find_model(name, tokenizer)
    assert model.shape == model_shape(known_model(name).config)
    assert model.shape.parameters == 8_292_166_656
    assert model.config.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
