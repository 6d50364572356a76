"""Bytecode for guests, which cannot write it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from osworld_gym.desktops.local.guest_process import compile_once


def package(folder: Path, name: str) -> Path:
    """A package of one module, without bytecode."""
    path = folder / name
    path.mkdir()
    (path / "__init__.py").write_text("")
    (path / "part.py").write_text("value = 7\n")
    return path


def compiled(path: Path) -> bool:
    return Path(importlib.util.cache_from_source(str(path / "part.py"))).is_file()


def test_guest_and_packages_are_compiled_and_missing_ones_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest, other = package(tmp_path, "a_guest"), package(tmp_path, "a_library")
    (guest / "broken.py").write_text("def (")  # of another Python: not our concern
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    compile_once(guest, ("a_library", "no_such_library", "six"))
    assert compiled(guest)
    assert compiled(other)


def test_bytecode_of_the_present_source_is_left_as_it_is(tmp_path: Path) -> None:
    guest = package(tmp_path, "a_guest")
    compile_once(guest, ())
    (cached,) = (guest / "__pycache__").glob("part.*")
    before = cached.stat().st_mtime_ns
    compile_once.cache_clear()
    compile_once(guest, ())
    assert cached.stat().st_mtime_ns == before
