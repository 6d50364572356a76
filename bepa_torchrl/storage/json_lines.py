"""JSON lines: what a run appends to its record, read back also after the process was killed. Imports no torch.

A record may have NaN and infinity, which JSON does not; what is given to other programs goes through :func:`finite`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")
UNITS = "units.jsonl"  #: the finished units of a :class:`~bepa_torchrl.storage.ledger.Ledger`


class RecordError(ValueError):
    """A run's folder cannot be used. The message is one line with the fix."""


def json_line(data: Mapping[str, Any]) -> str:
    """An object as one line; half a character, which UTF-8 does not have, is written as its escape."""
    line = json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", line)


def finite(data: Any) -> Any:
    """JSON-compatible data with None for the numbers that JSON (RFC 8259, section 6) does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, without an incomplete last line.

    Raises:
        RecordError: a line before the last is damaged, or one is no object.
    """
    return list(stream_lines(path))


def stream_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Reads as :func:`read_lines`, but one line at a time, since a record may be larger than the memory."""
    with path.open("rb") as file:  # bytes: only "\n" ends a line, while text may contain U+2028
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the process was killed, or is writing it
                    return
                raise RecordError(f"{path}: line {number} is damaged ({error}); restore the file") from error
            if not isinstance(record, dict):
                problem = f"expected a JSON object, got {type(record).__name__}"
                raise RecordError(f"{path}: line {number} is damaged ({problem}); restore the file")
            yield record


def count_units(folder: Path) -> int:
    """How many units a job has finished so far; 0 if there is no ledger in the folder."""
    path = folder / UNITS
    return len(path.read_bytes().splitlines()) if path.exists() else 0
