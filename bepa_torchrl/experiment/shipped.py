"""The checkpoints that are part of the package, by the name that ``policy.checkpoint`` gives. Imports no torch."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
#: name → (folder, the command that rebuilds it)
SHIPPED = {
    "tiny": (_PACKAGE / "tiny" / "checkpoint", "python -m bepa_torchrl.tiny"),
    "tiny_local": (_PACKAGE / "tiny_local" / "checkpoint", "make tiny-local"),
}


def checkpoint_folder(checkpoint: str) -> str | Path:
    """The folder of a shipped checkpoint; another checkpoint's folder or repository as it is.

    Raises:
        FileNotFoundError: the shipped checkpoint is missing; the message has the command that rebuilds it.
    """
    if checkpoint not in SHIPPED:
        return checkpoint
    folder, rebuild = SHIPPED[checkpoint]
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"policy.checkpoint={checkpoint} is missing; fix: {rebuild}")
    return folder
