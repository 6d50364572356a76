"""The checkpoints that are part of the package, by the name that ``policy.checkpoint`` gives. Imports no torch."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
#: name → (folder, the command that rebuilds it in a checkout of the repository)
SHIPPED = {
    "tiny": (_FOLDER / "tiny", "make tiny"),
    "tiny_free": (_FOLDER / "tiny_free", "make tiny-free"),
    "tiny_plans": (_FOLDER / "tiny_plans", "make tiny-plans"),
    "tiny_local": (_FOLDER / "tiny_local", "make tiny-local"),
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
        raise FileNotFoundError(f"policy.checkpoint={checkpoint} is missing in {folder}; fix: {rebuild} in a checkout")
    return folder


def tiny_checkpoint() -> Path:
    """The folder of the default policy, a ``Qwen2_5_VLForConditionalGeneration`` of 0.6 M parameters.

    Raises:
        FileNotFoundError: see :func:`checkpoint_folder`.
    """
    return Path(checkpoint_folder("tiny"))
