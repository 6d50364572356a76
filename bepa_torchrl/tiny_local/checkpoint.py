"""The local checkpoint that ships with the package."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.tiny.checkpoint import MANIFEST

FOLDER = Path(__file__).parent / "checkpoint"


def local_checkpoint() -> Path:
    """The folder of the policy for real desktops: config, weights, tokenizer, image processor, manifest.

    Raises:
        FileNotFoundError: the checkpoint is missing; ``make tiny-local`` rebuilds it.
    """
    if not (FOLDER / MANIFEST).is_file():
        raise FileNotFoundError(f"{FOLDER} holds no checkpoint: rebuild it with `make tiny-local`")
    return FOLDER
