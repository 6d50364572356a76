"""JSON lines: what a run appends to its record, read back also after the process was killed. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNITS = "units.jsonl"  #: the finished units of a :class:`~bepa_torchrl.storage.ledger.Ledger`


class RecordError(ValueError):
    """A run's folder cannot be used. The message is one line with the fix."""


def json_line(data: Mapping[str, Any]) -> str:
    """An object as one line."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, without an incomplete last line.

    Raises:
        RecordError: a line before the last is damaged.
    """
    out: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines(keepends=True)  # str.splitlines would end a line at U+2028 in a text, too
    for index, line in enumerate(lines):
        try:
            out.append(json.loads(line))
        except ValueError as error:
            if index == len(lines) - 1 and not line.endswith(b"\n"):
                break
            raise RecordError(f"{path}: line {index + 1} is damaged ({error}); restore the file") from error
    return out


def count_units(folder: Path) -> int:
    """How many units a job has finished so far; 0 if there is no ledger in the folder."""
    path = folder / UNITS
    return len(path.read_bytes().splitlines()) if path.exists() else 0
