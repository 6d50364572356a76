"""The base policy that a study starts from: the one that ships with the package, or another checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bepa_torchrl.checkpoints import SHIPPED as CHECKPOINTS
from bepa_torchrl.checkpoints import checkpoint_folder
from recipes.study.records import file_hash


@dataclass(frozen=True)
class Base:
    """A base policy.

    Args:
        name: the name in result files, which say nothing of the machine's folders.
        folder: its checkpoint; None: the one that ships with the package under this name.
        settings: of every run that starts from it, beside the checkpoint.
    """

    name: str
    folder: Path | None = None
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name without the folder of its results."""
        return self.name.rpartition("/")[2]

    @property
    def argument(self) -> str:
        """What ``--base`` takes for it: the name of a checkpoint that ships, or the folder of another one."""
        return self.label if self.folder is None or self.label in CHECKPOINTS else str(self.folder)

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint."""
        return Path(checkpoint_folder(self.name)) if self.folder is None else self.folder

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings of every run that starts from it."""
        return () if self.folder is None else (f"policy.checkpoint={self.folder.resolve()}", *self.settings)

    def hash(self) -> str:
        """Hash of its weights."""
        return base_hash(str(self.checkpoint))


def base_hash(checkpoint: str) -> str:
    """Hash of the weights of a checkpoint that ships with the package, by its name, or is in a folder."""
    return file_hash(Path(checkpoint_folder(checkpoint)) / "model.safetensors")


SHIPPED = Base("tiny")
