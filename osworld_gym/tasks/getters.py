"""Getters: what the verifier looks at, by OSWorld's ``type`` names. Each reads the desktop and returns a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import TaskError

Getter = Callable[[Desktop, Mapping[str, Any]], Any]


def _key(config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        raise TaskError(f"getter {config.get('type')!r}: key {name!r} is missing; it has: {', '.join(sorted(config))}")
    return config[name]


def vm_file(desktop: Desktop, config: Mapping[str, Any]) -> bytes | list[bytes | None]:
    """The bytes of ``path``. With ``multi`` a list of paths, of which ``gives`` (default ``[0]``) names those returned.

    Raises:
        FileNotFoundError: ``path`` is not there. A missing member of several is None instead.
    """
    path = _key(config, "path")
    if not config.get("multi", False):
        return desktop.read_file(path)
    gives = config.get("gives", [0])
    files = [_read_or_none(desktop, path[i]) for i in gives]
    if len(files) > 1:
        return files
    if files[0] is None:
        raise FileNotFoundError(path[gives[0]])
    return files[0]


def _read_or_none(desktop: Desktop, path: str) -> bytes | None:
    try:
        return desktop.read_file(path)
    except FileNotFoundError:
        return None


def content_from_vm_file(desktop: Desktop, config: Mapping[str, Any]) -> str:
    """The text of ``path``, UTF-8. (OSWorld's reads the last row of a spreadsheet only.)"""
    return desktop.read_file(_key(config, "path")).decode("utf-8", errors="replace")


def vm_command_line(desktop: Desktop, config: Mapping[str, Any]) -> str:
    """What ``command`` (a string, or a list of arguments; ``shell``) writes to standard output."""
    return desktop.run(_key(config, "command"), shell=bool(config.get("shell", False))).output


def vm_command_error(desktop: Desktop, config: Mapping[str, Any]) -> str:
    """What ``command`` writes to standard error."""
    return desktop.run(_key(config, "command"), shell=bool(config.get("shell", False))).error


def vm_screen_size(desktop: Desktop, config: Mapping[str, Any]) -> dict[str, int]:  # noqa: ARG001
    """``{"width", "height"}`` of the screen in pixels."""
    width, height = desktop.screen_size
    return {"width": width, "height": height}


def rule(desktop: Desktop, config: Mapping[str, Any]) -> Any:  # noqa: ARG001
    """``rules``, as the task file gives them."""
    return _key(config, "rules")


GETTERS: dict[str, Getter] = {
    getter.__name__: getter
    for getter in (vm_file, content_from_vm_file, vm_command_line, vm_command_error, vm_screen_size, rule)
}
