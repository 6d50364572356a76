"""Getters of files, command output and the task's rules, available with every provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osworld_gym.errors import TaskError
from osworld_gym.tasks.setup.file_cache import gold_file
from osworld_gym.tasks.setup.run import COMMAND, TaskRun
from osworld_gym.types import CommandResult

Config = Mapping[str, Any]


def key(config: Config, name: str) -> Any:
    """The getter's value for a key. Raises TaskError if it is missing."""
    if name not in config:
        raise TaskError(f"getter {config.get('type')!r}: key {name!r} is missing; it has: {', '.join(sorted(config))}")
    return config[name]


def one_or_many(config: Config) -> list[tuple[str, str]]:
    """(path, dest) of every file of a getter ``vm_file`` or ``cloud_file``."""
    paths, dests = key(config, "path"), config.get("dest", "")
    return list(zip(paths, dests, strict=True)) if config.get("multi", False) else [(paths, dests)]


def read(run: TaskRun, path: str) -> bytes:
    """The file's bytes.

    Raises:
        FileNotFoundError: there is no file, or it cannot be read as one (e.g. it is a folder). The policy may have
            caused this, so it scores 0, as in OSWorld, and is not a failure of the desktop.
    """
    try:
        return run.desktop.read_file(path)
    except OSError as error:
        raise FileNotFoundError(path) from error


_CONNECT = """
import socket, sys
with socket.socket() as probe:
    probe.settimeout(5)
    sys.exit(probe.connect_ex(("127.0.0.1", int(sys.argv[1]))) != 0)
"""


def listens(run: TaskRun, port: int) -> bool:
    """Whether a process inside the desktop listens on the TCP port.

    Raises:
        DesktopError: the desktop failed.
    """
    return run.desktop.run(["python3", "-c", _CONNECT, str(port)]).returncode == 0


def vm_file(run: TaskRun, config: Config) -> bytes | list[bytes | None]:
    """The bytes of ``path``. With ``multi``, a list of paths; ``gives`` (default ``[0]``) are the indices to return.

    The files are in the order of their paths, whatever the order of ``gives`` (as of the gold files).

    Raises:
        FileNotFoundError: ``path`` is missing or unreadable. If several files are returned, a missing one is None.
    """
    path = key(config, "path")
    if not config.get("multi", False):
        return read(run, path)
    paths = [one for i, one in enumerate(path) if i in config.get("gives", [0])]
    files = [_read_or_none(run, one) for one in paths]
    if len(files) != 1:
        return files
    if files[0] is None:
        raise FileNotFoundError(paths[0])
    return files[0]


def _read_or_none(run: TaskRun, path: str) -> bytes | None:
    try:
        return read(run, path)
    except FileNotFoundError:
        return None


def cloud_file(run: TaskRun, config: Config) -> bytes | list[bytes]:
    """The bytes of the gold file at the URL ``path``, from the cache; ``multi`` and ``gives`` as in ``vm_file``."""
    gives = config.get("gives", [0])
    files = [
        run.files.read(gold_file(run.task.id, url, dest))
        for i, (url, dest) in enumerate(one_or_many(config))
        if i in gives
    ]
    return files[0] if len(files) == 1 else files


def cache_file(run: TaskRun, config: Config) -> bytes:
    """The output that a step of ``postconfig`` stored under the name ``path``.

    Raises:
        TaskError: no step stored it.
    """
    path = key(config, "path")
    if path not in run.outputs:
        kept = ", ".join(sorted(run.outputs)) or "nothing"
        raise TaskError(f"task {run.task.id!r}: getter 'cache_file': postconfig stored no {path!r}, only {kept}")
    return run.outputs[path]


def content_from_vm_file(run: TaskRun, config: Config) -> str:
    """The UTF-8 text of ``path``. Spreadsheets, of which OSWorld reads the last row, require OSWorld's evaluators.

    Raises:
        TaskError: the getter has ``file_content``: ``path`` is a spreadsheet.
        FileNotFoundError: as :func:`read`.
    """
    path = key(config, "path")
    if "file_content" in config:
        raise TaskError(f"getter 'content_from_vm_file' of {path}: a spreadsheet requires OSWorld's evaluators")
    return read(run, path).decode("utf-8", errors="replace")


def vm_command_line(run: TaskRun, config: Config) -> str:
    """Standard output of ``command`` (a string or a list of arguments; ``shell``: run in a shell)."""
    return _ran(run, config).output


def vm_command_error(run: TaskRun, config: Config) -> str:
    """Standard error of ``command``."""
    return _ran(run, config).error


def _ran(run: TaskRun, config: Config) -> CommandResult:
    return run.desktop.run(key(config, "command"), shell=bool(config.get("shell", False)), timeout=COMMAND)


def vm_screen_size(run: TaskRun, config: Config) -> dict[str, int]:
    """``{"width", "height"}`` of the screen in pixels."""
    del config
    width, height = run.desktop.screen_size
    return {"width": width, "height": height}


def rule(run: TaskRun, config: Config) -> Any:
    """``rules`` of the task file, unchanged."""
    del run
    return key(config, "rules")
