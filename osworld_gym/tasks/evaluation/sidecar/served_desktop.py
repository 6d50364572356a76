"""The desktop as getters see it in an evaluator process: each call is served by the process that has the desktop.

:func:`serve` is the other end. Only what getters use is served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason, ReplyTooLarge, TaskError
from osworld_gym.tasks.evaluation.sidecar.blobs import Blobs, read_blob
from osworld_gym.tasks.evaluation.sidecar.calling import Exhausted
from osworld_gym.tasks.setup.file_cache import FileCache, TaskFile
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.types import Action, CommandResult, Screenshot

Call = Callable[..., Any]
_TEXT = ("utf-8", "surrogatepass")


def serve(run: TaskRun, blobs: Blobs, name: str, arguments: Sequence[Any]) -> dict[str, Any]:
    """Answers one call: ``{"value"}``, or ``{"raised": [kind, message, reason or errno]}`` for the known errors."""
    try:
        return {"value": _serve(run, blobs, name, arguments)}
    except ReplyTooLarge as error:
        return {"raised": ["exhausted", str(error), None]}
    except DesktopError as error:
        return {"raised": ["desktop", error.message, error.reason.value]}
    except TaskError as error:
        return {"raised": ["task", str(error), None]}
    except OSError as error:
        return {"raised": ["os", error.strerror or str(error), error.errno]}


def _serve(run: TaskRun, blobs: Blobs, name: str, arguments: Sequence[Any]) -> Any:
    desktop = run.desktop
    match name, arguments:
        case "read_file", [path]:
            return blobs.add(desktop.read_file(path))
        case "run", [command, shell, timeout]:
            result = desktop.run(command, shell=shell, timeout=timeout)
            return [result.returncode, *(blobs.add(text.encode(*_TEXT)) for text in (result.output, result.error))]
        case "perform", [actions]:
            return desktop.perform([Action(**action) for action in actions])
        case "forwarded", [port]:
            return desktop.forwarded(port)
        case "server", []:
            return desktop.server
        case "screen_size", []:
            return desktop.screen_size
        case "gold", [task_id, url, file]:
            return str(run.files.get(TaskFile(task_id, url, file)))
    raise TaskError(f"a getter may not use Desktop.{name}: evaluators run in another process")


class ServedDesktop(Desktop):
    """A desktop in another process."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def screen_size(self) -> tuple[int, int]:
        width, height = self._call("screen_size")
        return width, height

    def read_file(self, path: str) -> bytes:
        return read_blob(self._call("read_file", path))

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        command = command if isinstance(command, str) else list(command)
        status, *texts = self._call("run", command, shell, timeout)
        output, error = (read_blob(text).decode(*_TEXT) for text in texts)
        return CommandResult(status, output, error)

    def perform(self, actions: Sequence[Action]) -> None:
        self._call("perform", [asdict(action) for action in actions])

    @property
    def server(self) -> tuple[str, str] | None:
        pair = self._call("server")
        return None if pair is None else (pair[0], pair[1])

    def forwarded(self, port: int) -> tuple[str, int] | None:
        address = self._call("forwarded", port)
        return None if address is None else (address[0], address[1])

    def reset(self, seed: int) -> None:
        self._call("reset", seed)

    def screenshot(self) -> Screenshot:
        self._call("screenshot")
        raise AssertionError("unreachable: it is not served")

    def setup(self, step: Mapping[str, Any]) -> None:
        self._call("setup", dict(step))

    def write_file(self, path: str, data: bytes) -> None:
        self._call("write_file", path, len(data))

    def close(self) -> None:
        """Nothing is open here."""


class ServedFiles(FileCache):
    """The cache of the other process, which fetches what is missing."""

    def __init__(self, call: Call) -> None:
        super().__init__(offline=True, also=())
        self._call = call

    def get(self, task_file: TaskFile) -> Path:
        return Path(self._call("gold", task_file.task_id, task_file.url, task_file.name))


def raised(kind: str, message: str, detail: Any) -> NoReturn:
    """Raises the error of a served call."""
    if kind == "desktop":
        raise DesktopError(FailureReason(detail), message)
    if kind == "exhausted":
        raise Exhausted(message)
    if kind == "task":
        raise TaskError(message)
    raise OSError(detail, message) if detail is not None else OSError(message)
