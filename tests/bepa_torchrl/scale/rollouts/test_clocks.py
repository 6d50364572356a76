"""No wall clock is read where machines meet, so that no time of one is compared with another's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bepa_torchrl

ROOT = Path(bepa_torchrl.__file__).parent
#: what actors, the two sides of the wire, runs of several ranks and writers of one store consist of
FOLDERS = ("scale/rollouts", "scale/wire", "scale/engine/http", "scale/sharding", "scale/store", "storage", "cache")
WALL = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow", "date.today"}


def wall_clocks(source: str) -> Iterator[str]:
    """The uses of a wall clock in a module, by their names."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if f"{owner}.{node.attr}" in WALL:
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{name.name}" for name in node.names if f"time.{name.name}" in WALL)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\nnow = time.time()", ["time.time"]),
        ("from time import time, monotonic", ["time.time"]),
        ("import datetime\ndatetime.datetime.now()", ["datetime.now"]),
        ("from time import monotonic\nmonotonic()", []),
        ("import time\ntime.monotonic()", []),
    ],
)
def test_a_wall_clock_is_found(source: str, found: list[str]) -> None:
    assert list(wall_clocks(source)) == found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_wall_clock_where_machines_meet(folder: str) -> None:
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules
    assert {path.name: used for path in modules if (used := list(wall_clocks(path.read_text(encoding="utf-8"))))} == {}
