"""The environment in which an engine's processes start."""

from __future__ import annotations

import os

import pytest

from bepa_torchrl.scale.engine.engine import engine_environment

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("before", [None, "0"])
def test_an_engine_sees_its_own_devices(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with engine_environment(compiled=True, devices="2,3"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
    with engine_environment(compiled=True):
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
