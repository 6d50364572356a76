"""Ledger: the finished units of a long job, appended one by one to a folder, so that a killed job repeats none.

    units.jsonl    per unit one line, {"unit": {"key", "data", "seconds", "rows"}, "sha256": of the unit's JSON}
    rows/<key>/    the training rows of a unit (:mod:`bepa_torchrl.storage.row_codec`), written before its line

A unit whose line is torn or damaged, or whose rows cannot be read, is missing: it is done again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from tensordict import TensorDictBase, lazy_stack

from bepa_torchrl.storage.folder import FolderError
from bepa_torchrl.storage.json_lines import UNITS, json_line
from bepa_torchrl.storage.row_codec import load_rows, save_rows
from osworld_gym.atomic import write_text

_KEY = 32  #: hex digits of a unit's key
_log = logging.getLogger(__name__)


class Ledger:
    """The finished units in a folder, which one process at a time uses; thread-safe.

    Args:
        folder: created if missing. It may also hold files of the job's own, until :meth:`remove`.

    Raises:
        OSError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._units = _read_units(folder / UNITS)
        #: seconds that earlier processes spent on the units
        self.seconds = sum(float(unit["seconds"]) for unit in self._units.values())
        self._lock = threading.Lock()
        self._since = perf_counter()

    def __len__(self) -> int:
        return len(self._units)

    def find(self, *identity: Any) -> tuple[Mapping[str, Any], TensorDictBase | None] | None:
        """A finished unit's data and rows ``[S]``, or None.

        Args:
            identity: JSON-compatible values that determine the unit's result.
        """
        unit = self._units.get(_key(identity))
        if unit is None or not unit["rows"]:
            return None if unit is None else (unit["data"], None)
        try:
            return unit["data"], lazy_stack(list(load_rows(self._rows(unit["key"]))))
        except FolderError as error:
            _log.warning("done again: %s", error)
            return None

    def add(self, *identity: Any, data: Mapping[str, Any], rows: TensorDictBase | None = None) -> None:
        """Appends a finished unit.

        Args:
            identity: as of :meth:`find`.
            data: JSON-compatible.
            rows: ``[S]``, at least one.

        Raises:
            OSError, FolderError: the disk is full or not writable; what was added before stays.
        """
        key = _key(identity)
        if rows is not None:
            save_rows(self._rows(key), rows.unbind(0))
        with self._lock:
            now = perf_counter()
            seconds, self._since = round(now - self._since, 3), now
            unit = {"key": key, "data": dict(data), "seconds": seconds, "rows": rows is not None}
            with (self.folder / UNITS).open("a", encoding="utf-8") as file:
                file.write(json_line({"unit": unit, "sha256": _checksum(unit)}))
            self._units[key] = unit

    def remove(self) -> None:
        """Removes the folder, when the job is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, key: str) -> Path:
        return self.folder / "rows" / key


def _read_units(path: Path) -> dict[str, dict[str, Any]]:
    """The undamaged units by key; a file with others is rewritten without them, so that lines can be appended."""
    if not path.exists():
        return {}
    text = path.read_bytes().decode("utf-8", errors="replace")
    lines = text.split("\n")
    units = [unit for line in lines if (unit := _undamaged(line)) is not None]
    whole = "".join(json_line({"unit": unit, "sha256": _checksum(unit)}) for unit in units)
    if whole != text:
        _log.warning("%s: %d of %d lines are torn or damaged; their units are done again", path, *_lost(lines, units))
        write_text(path, whole)
    return {unit["key"]: unit for unit in units}


def _lost(lines: list[str], units: list[dict[str, Any]]) -> tuple[int, int]:
    total = sum(bool(line) for line in lines)
    return total - len(units), total


def _undamaged(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        unit: dict[str, Any] = entry["unit"]
        return unit if _checksum(unit) == entry["sha256"] else None
    except (ValueError, KeyError, TypeError):
        return None


def _checksum(unit: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(unit, sort_keys=True).encode()).hexdigest()


def _key(identity: tuple[Any, ...]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:_KEY]
