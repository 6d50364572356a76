"""Bytecode of the modules that a guest imports: inside a sandbox they are read-only, so a guest cannot write it."""

from __future__ import annotations

import compileall
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def compile_once(guest: Path, modules: Sequence[str]) -> None:
    """Compiles the guest's folder and its packages if that is missing or old; without it every reset would.

    An editable installation, or one by uv, has no bytecode of modules that this machine never imported. A folder
    that this user may not write is left as it is.

    Args:
        guest: the guest's folder.
        modules: names of the packages that it imports; a missing one is ignored.
    """
    for folder in (guest, *filter(None, map(_folder, modules))):
        compileall.compile_dir(folder, quiet=2)


def _folder(module: str) -> Path | None:
    """The folder of a package; None for a module of one file, or a missing one."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent
