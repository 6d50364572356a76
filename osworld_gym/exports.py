"""Public names of a package that are imported on first use, so that importing the package stays cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The function ``__getattr__`` of a package (PEP 562).

    Args:
        package: the package's ``__name__``.
        modules: module below the package → the public names that it defines.

    Returns:
        A function of a name that imports and returns the object; AttributeError lists the names that there are.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(module_of))}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return get
