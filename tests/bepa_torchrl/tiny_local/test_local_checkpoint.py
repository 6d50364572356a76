"""The folder of the local checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from bepa_torchrl.tiny_local.checkpoint import local_checkpoint


def test_a_missing_checkpoint_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bepa_torchrl.tiny_local.checkpoint.FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="make tiny-local"):
        local_checkpoint()
    (tmp_path / "manifest.json").write_text("{}")
    assert local_checkpoint() == tmp_path
