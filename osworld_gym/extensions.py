"""Extensions from a user's own code: modules that are imported by name, and entry points of installed packages.

Every table of named objects (providers, suites, metrics, methods, …) is a :class:`Registry`. A module adds to it by
``PROVIDERS["wide"] = WideDesktop``, and is named by ``import=[my_module]`` or ``--import my_module``; an installed
package adds to it by an entry point of the table's group.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from typing import TypeVar

from osworld_gym.errors import ExtensionError

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """Named objects: built-in ones, those that modules have added, and those of entry points.

    Entry points are looked up when a name is asked for that the table lacks, and when the names are listed; one is
    imported when its own name is asked for.

    Args:
        group: the group of the entry points.
        built_in: name → object, or ``module:name`` of an object that is imported when it is asked for.
        expects: what every object is, for error messages.
        accepts: whether an entry point's object is that.

    Raises:
        ExtensionError: (adding) the object is something else than expected, or another one than the built-in object of
            that name, which :meth:`replace` replaces; (looking up) an object that was added by its location is
            something else than expected, or cannot be imported; (looking up entry points) one has a built-in name, two
            have the same name, one cannot be imported, or is something else than expected. The message names the
            distribution.
    """

    def __init__(
        self, group: str, built_in: Mapping[str, T | str], *, expects: str, accepts: Callable[[object], bool] = callable
    ) -> None:
        self.group = group
        self._expects, self._accepts = expects, accepts
        self.built_in = tuple(built_in)  #: the names that an entry point may not have
        self._built_in: dict[str, T | str] = dict(built_in)
        self._table = dict(self._built_in)
        self._loaded: dict[EntryPoint, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._table:
            value = self._table[name]
            if not isinstance(value, str):
                return value
            return resolve_name(value) if self._built_in.get(name) == value else self._located(name, value)
        entry = self._entry_points()[name]
        if entry not in self._loaded:
            self._loaded[entry] = self._load(entry)
        return self._loaded[entry]

    def __contains__(self, name: object) -> bool:
        """Whether there is an object of that name; imports nothing."""
        return name in self._table or name in self._entry_points()

    def __setitem__(self, name: str, value: T | str) -> None:
        if name in self.built_in and name in self._table:
            self._check_same(name, value)
        self.replace(name, value)

    def replace(self, name: str, value: T | str) -> None:
        """Adds an object, in the place of the built-in one if there is one of this name. Raises as adding does."""
        if not isinstance(value, str):
            self._check(name, value)
        self._table[name] = value

    def __delitem__(self, name: str) -> None:
        del self._table[name]

    def __iter__(self) -> Iterator[str]:
        """The names, those of entry points last; imports nothing."""
        return iter({**self._table, **self._entry_points()})

    def __len__(self) -> int:
        return len(self._table.keys() | self._entry_points().keys())

    def _check(self, name: str, value: object) -> None:
        if not self._accepts(value):
            raise ExtensionError(f"{name!r} of {self.group}: expected {self._expects}, got {value!r:.80}")

    def _check_same(self, name: str, value: T | str) -> None:
        """Raises ExtensionError unless the value is the object, or the location, that has this name already."""
        present = self._table[name]
        if value is not present and value != present and value is not self[name]:
            raise ExtensionError(
                f"{name!r} of {self.group} is built in, as {present!r:.80}; got {value!r:.80}; give yours another "
                f"name, or replace the built-in one by .replace({name!r}, …)"
            )

    def _located(self, name: str, place: str) -> T:
        """The object ``module:name`` that a module has added."""
        try:
            value: T = resolve_name(place)
        except Exception as error:  # whatever a foreign module raises
            problem = f"cannot import {place} ({type(error).__name__}: {error}){raised_at(error)}"
            raise ExtensionError(f"{name!r} of {self.group}: {problem}; expected MODULE:NAME") from error
        self._check(name, value)
        return value

    def _entry_points(self) -> Mapping[str, EntryPoint]:
        entries = _entry_points(self.group, tuple(sys.path))
        taken = next((name for name in self.built_in if name in entries), None)
        if taken is not None:
            raise ExtensionError(f"{_origin(entries[taken])}: the name is built in; rename the entry point")
        return entries

    def _load(self, entry: EntryPoint) -> T:
        try:
            loaded: T = entry.load()
        except Exception as error:  # whatever a foreign module raises
            problem = f"cannot import {entry.value} ({type(error).__name__}: {error}){raised_at(error)}"
            raise ExtensionError(f"{_origin(entry)}: {problem}; correct or uninstall that distribution") from error
        if not self._accepts(loaded):
            raise ExtensionError(f"{_origin(entry)}: expected {self._expects}, {entry.value} is {loaded!r:.80}")
        return loaded


def import_modules(modules: Iterable[str]) -> None:
    """Imports modules that add to registries; modules of the current folder are found, as by ``python -m``.

    Args:
        modules: dotted names. One that is imported already is left as it is.

    Raises:
        ExtensionError: one of them cannot be imported, or another module of that name was imported before.
    """
    for module in modules:
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, folder)
        try:
            import_module(module)
        except Exception as error:
            problem = f"cannot import {module!r} ({type(error).__name__}: {error}){raised_at(error)}"
            where = f"; {folder} and the installed packages are searched" if _is_missing(error) else ""
            name = f"; {_as_module(Path(module))}" if module.endswith(".py") else ""
            raise ExtensionError(f"import: {problem}{where}{name}") from error
        _check_not_hidden(module, Path(folder))


def call_with_imports(modules: Iterable[str], function: Callable[[], T]) -> T:
    """Calls a function after :func:`import_modules`: for functions that another process gets."""
    import_modules(modules)
    return function()


def raised_at(error: BaseException) -> str:
    """`` at FILE, line N``: where code outside of the import system raised an error; empty if it did not."""
    system = (__file__, pkgutil.__file__, str(Path(importlib.__file__).parent), "<")
    frames = [each for each in extract_tb(error.__traceback__) if not each.filename.startswith(system)]
    return f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _as_module(file: Path) -> str:
    """What to give instead of a Python file: ``write lib.own`` of ``./lib/own.py`` below the current folder."""
    place = file.with_suffix("").resolve()
    if not place.is_relative_to(Path.cwd()):
        return f"write {place.name} and have {place.parent} in PYTHONPATH"
    return f"write {'.'.join(place.relative_to(Path.cwd()).parts)}"


def _is_missing(error: Exception) -> bool:
    return isinstance(error, ModuleNotFoundError | TypeError) and not raised_at(error)


def _check_not_hidden(module: str, folder: Path) -> None:
    """Raises ExtensionError if a module of the folder is not the one of that name that is imported."""
    path = folder.joinpath(*module.split("."))
    own = next((file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()), None)
    imported = getattr(sys.modules[module], "__file__", None)
    if own is not None and (imported is None or Path(imported).resolve() != own.resolve()):
        where = imported or "built into Python"
        raise ExtensionError(f"import: {module!r} is {where} already, not {own}; give that module another name")


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Name → entry point of a group, as found on this ``sys.path``.

    Raises:
        ExtensionError: two distributions have one of the same name.
    """
    entries: dict[str, EntryPoint] = {}
    for entry in (each for dist in distributions(path=list(path)) for each in dist.entry_points.select(group=group)):
        other = entries.setdefault(entry.name, entry)  # a distribution that is there twice is the first on the path
        if _distribution(other) != _distribution(entry):
            raise ExtensionError(f"{_origin(entry)}: so has {_distribution(other)}; uninstall one of them")
    return entries


def _origin(entry: EntryPoint) -> str:
    return f"{_distribution(entry)} has the entry point {entry.name!r} of {entry.group}"


def _distribution(entry: EntryPoint) -> str:
    return "an unknown distribution" if entry.dist is None else f"the distribution {entry.dist.name}"
