"""The checkpoints of the package by name; a missing one is an error with the command that rebuilds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bepa_torchrl import checkpoints
from bepa_torchrl.experiment.checks import MACHINE
from bepa_torchrl.experiment.config import ConfigError, check, load_config


def test_a_name_is_a_folder_and_anything_else_stays_as_it_is() -> None:
    assert (Path(checkpoints.checkpoint_folder("tiny")) / "model.safetensors").is_file()
    assert checkpoints.checkpoint_folder("owner/name") == "owner/name"


def test_a_missing_one_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(checkpoints.SHIPPED, "tiny_local", (tmp_path, "make tiny-local"))
    with pytest.raises(ConfigError, match=r"policy\.checkpoint=tiny_local is missing in .*; fix: make tiny-local"):
        check(load_config(["policy.checkpoint=tiny_local"]), MACHINE)
