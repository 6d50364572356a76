"""The local checkpoint that ships with the package: its files, its size, and that its page states what was measured."""

from __future__ import annotations

from pathlib import Path

from repository import ROOT

from bepa_torchrl.checkpoints import checkpoint_folder
from recipes.tiny.checkpoint import file_hashes, read_manifest

FOLDER = Path(checkpoint_folder("tiny_local"))


def test_the_files_are_those_of_the_manifest_and_at_most_15_mb() -> None:
    assert read_manifest(FOLDER)["sha256"] == file_hashes(FOLDER)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 15e6


def test_the_page_states_the_measured_rates() -> None:
    measured = read_manifest(FOLDER)["measured"]
    page = " ".join((ROOT / "docs" / "small-policies.md").read_text(encoding="utf-8").split())
    for name in ("known", "unknown", "unknown_planned"):
        rates = " / ".join(f"{100 * measured[split][name]:.0f}" for split in ("train", "held_out"))
        assert f"{name.replace('_planned', ', with the plan')} | {rates} |" in page, name
