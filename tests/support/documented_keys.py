"""The keys that docs/files.md documents, and those of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repository import ROOT

from bepa_torchrl.storage.json_lines import read_lines

FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")


def documented(section: str, column: str = "key") -> list[str]:
    """What the tables of a section with this first column name."""
    _, _, rest = FILES.partition(f"\n## {section}\n")
    assert rest, section
    text = re.split(r"\n## ", rest)[0]
    cells = []
    for table in re.findall(rf"^\| {column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text + "\n", re.M):
        cells += [line.split("|")[1] for line in table.splitlines()]
    found = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert found, section
    return found


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<[^>]+>", r"[^.]+", re.escape(name).replace(r"\ ", " ")))


def _keys(value: Any, prefix: str = "") -> Iterator[str]:
    """Keys of a JSON value: ``a.b`` inside an object, ``a.[].b`` inside a list of objects."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{prefix}{key}"
            yield from _keys(item, f"{prefix}{key}.")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield from _keys(item, f"{prefix}[].")


def check_keys(written: set[str], expected: list[str], optional: list[str] | None = None) -> None:
    """Every written key is expected; every expected one that is not optional is written."""
    known = [*expected, *(optional or [])]
    assert sorted(key for key in written if not any(_pattern(name).fullmatch(key) for name in known)) == []
    assert [name for name in expected if not any(_pattern(name).fullmatch(key) for key in written)] == []


def written_keys(path: Path) -> set[str]:
    lines = read_lines(path) if path.suffix == ".jsonl" else [json.loads(path.read_text(encoding="utf-8"))]
    return {key for line in lines for key in _keys(line)}
