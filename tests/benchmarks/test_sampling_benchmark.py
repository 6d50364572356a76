"""The sampling benchmark: both sides decode every screenshot that they answer to."""

from __future__ import annotations

import sys

import pytest

from benchmarks import sampling
from bepa_torchrl.policies.transformers.image_patches import ImagePatcher
from bepa_torchrl.policies.transformers.pixel_cache import Pixels


def test_each_side_decodes_its_screenshots(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Warm-ups of 8, 8 and 1 responses; then 16 of ours, 16 of generate, and 16 / 16 = 1 of it one by one: 50."""
    decoded, decode = [], ImagePatcher._decode

    def counted(patcher: ImagePatcher, data: bytes) -> Pixels:
        decoded.append(data)
        return decode(patcher, data)

    monkeypatch.setattr(ImagePatcher, "_decode", counted)
    monkeypatch.setattr(sys, "argv", ["sampling", "--responses", "16", "--batch", "8", "--tokens", "2"])
    sampling.main()
    assert len(decoded) == 8 + 8 + 1 + 16 + 16 + 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("ours / generate, batch 1: ")
