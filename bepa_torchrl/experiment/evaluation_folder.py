"""The folder of an evaluation is that of one: ``settings.yaml`` says of what, and a folder of another is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.run_folder import leaves, shown
from osworld_gym.atomic import write_text

_MOST = 8  #: differences that a message names


def claim(folder: Path, identity: str) -> None:
    """Makes the folder that of one evaluation.

    Args:
        folder: the folder of the evaluation.
        identity: what it is of: settings as YAML, and lines of comments with what is no setting.

    Raises:
        ConfigError: it has one of something else; the message has the old and new values.
    """
    path = folder / "settings.yaml"
    if path.exists():
        saved = path.read_text(encoding="utf-8")
        changes = [] if saved == identity else _differences(path, saved, identity)
        if changes:
            more = [f"{len(changes) - _MOST} more"] if len(changes) > _MOST else []
            raise ConfigError(
                f"{folder} has an evaluation with other settings ({path}): {'; '.join(changes[:_MOST] + more)}; "
                "give another --out, or go on with the settings that it has"
            )
        return
    if any(folder.glob("*.jsonl")):
        raise ConfigError(f"{folder} is not an evaluation's folder, and not empty; give another --out")
    write_text(path, identity)


def _differences(path: Path, saved: str, requested: str) -> list[str]:
    """What differs, as ``key: old → new``. Raises ConfigError if the saved settings cannot be read."""
    try:
        old, new = (dict(leaves(yaml.safe_load(text) or {})) for text in (saved, requested))
    except (yaml.YAMLError, AttributeError) as error:
        raise ConfigError(f"{path}: expected the settings of an evaluation, got {error}; give another --out") from error
    keys = [key for key in {**new, **old} if shown(old, key) != shown(new, key)]
    return [*(f"{key}: {shown(old, key)} → {shown(new, key)}" for key in keys), *_other_words(saved, requested)]


def _other_words(saved: str, requested: str) -> Iterator[str]:
    """The differences of the comments, such as the number of passes."""
    lines: list[list[list[Any]]] = [
        [line.removeprefix("# ").split(", ") for line in text.splitlines() if line.startswith("# ")]
        for text in (saved, requested)
    ]
    for pair in zip_longest(*lines, fillvalue=[]):
        for old, new in zip_longest(*pair, fillvalue="(not given)"):
            if old != new:
                yield f"{old} → {new}"
