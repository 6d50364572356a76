"""Runs a task's setup steps: ``config`` before an episode, ``postconfig`` before scoring.

Steps that involve the host (downloads through the cache, Chrome's tabs, output stored for the evaluator) run here, on
the ``Desktop`` interface only; all others are passed to the provider (``Desktop.setup``). After an error, the desktop's
state is undefined: reset it before it is used again.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.guest_server.setup_steps import fill, seconds_of
from osworld_gym.desktops.setup_schema import check_step
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.setup.file_cache import FileCache, TaskFile, setup_file
from osworld_gym.tasks.setup.site import open_site
from osworld_gym.tasks.task import Task

COMMAND = 120.0  # seconds for a command whose output is stored or scored, as in OSWorld's server
STILL = 5.0  # seconds to wait for an unchanging screen, after each sleep before scoring
HISTORY = "/home/user/.config/google-chrome/Default/History"
#: OSWorld's empty history file, for a desktop whose Chrome has never run
EMPTY_HISTORY = TaskFile(
    "history",
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true",
    "history_new.sqlite",
)
CHROME_EPOCH = 11_644_473_600  # seconds from 1601 to 1970

#: steps that cannot run here → the reason
IMPOSSIBLE = {
    "googledrive": "it needs a Google account and its OAuth settings",
    "login": "it needs an account on a web site, with its password",
}


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The context of one task on one desktop, used by its steps and getters.

    Args:
        task: the task; its id is the folder of its files in the cache.
        desktop: where the steps run.
        files: the cache of downloads.
        outputs: file name → output of commands that have ``stdout`` or ``stderr``; read by the getter ``cache_file``.
        seed: the episode's seed, read by the step ``arrange``.
    """

    task: Task
    desktop: Desktop
    files: FileCache
    outputs: dict[str, bytes]
    seed: int = 0

    def run(self, steps: Iterable[Mapping[str, Any]], *, sleeps: bool = False) -> None:
        """Runs the steps in order.

        Args:
            sleeps: True: the steps ``sleep`` take their full time, as needed before scoring, where they wait for what
                the screen does not show (a file being saved, a program restarting). False: a sleep ends as soon as the
                screen stops changing.

        Raises:
            TaskError: a step is malformed, or cannot run here (it needs an account, or a missing file while offline).
            DesktopError: ``setup_failed`` when a step failed; the desktop's own reason when it exited or hung.
        """
        for step in steps:
            check_step(step, f"task {self.task.id!r}")
            name, parameters = str(step["type"]), step.get("parameters") or {}
            if name in IMPOSSIBLE:
                raise TaskError(f"task {self.task.id!r}: setup step {name!r} cannot run here: {IMPOSSIBLE[name]}")
            if name in HOST_STEPS:
                HOST_STEPS[name](self, parameters)
            elif name == "sleep" and sleeps:
                time.sleep(seconds_of(parameters))
                self.desktop.wait_still(STILL)
            elif name in ("execute", "command") and (parameters.get("stdout") or parameters.get("stderr")):
                self._keep_output(parameters)
            else:
                self._of_provider(step)

    def _of_provider(self, step: Mapping[str, Any]) -> None:
        try:
            self.desktop.setup(step)
        except TaskError as error:
            raise TaskError(f"task {self.task.id!r}: {error}") from error

    def _keep_output(self, parameters: Mapping[str, Any]) -> None:
        if parameters.get("until"):
            raise TaskError(f"task {self.task.id!r}: a command whose output is stored may not have 'until'")
        command = fill(parameters["command"], self.desktop)
        result = self.desktop.run(command, shell=bool(parameters.get("shell")), timeout=COMMAND)
        for key, text in (("stdout", result.output), ("stderr", result.error)):
            if parameters.get(key):
                self.outputs[parameters[key]] = text.encode("utf-8", "replace")


def prepare(task: Task, desktop: Desktop, files: FileCache | None = None, *, seed: int = 0) -> None:
    """Runs the task's ``config`` on a desktop just reset with ``seed``.

    Raises as :meth:`TaskRun.run`, and TaskError for an unsupported task.
    """
    task.check_supported()
    if any((step.get("parameters") or {}).get("stdout") for step in task.config):
        raise TaskError(f"task {task.id!r}: config stores a command's output, which only evaluator.postconfig may")
    TaskRun(task, desktop, files or FileCache(), {}, seed).run(task.config)


def _download(run: TaskRun, parameters: Mapping[str, Any]) -> None:
    for file in parameters["files"]:
        run.desktop.write_file(file["path"], run.files.read(setup_file(run.task.id, file["url"], file["path"])))


def _open_tabs(run: TaskRun, parameters: Mapping[str, Any]) -> None:
    from osworld_gym.tasks.setup.chrome import open_tabs  # most tasks open no tab

    open_tabs(run.desktop, parameters["urls_to_open"])


def _close_tabs(run: TaskRun, parameters: Mapping[str, Any]) -> None:
    from osworld_gym.tasks.setup.chrome import close_tabs

    close_tabs(run.desktop, parameters["urls_to_close"])


def _open_site(run: TaskRun, parameters: Mapping[str, Any]) -> None:
    open_site(run.desktop, parameters)


def _browse_history(run: TaskRun, parameters: Mapping[str, Any]) -> None:
    """Adds visits to Chrome's history file, or to OSWorld's empty one if the desktop has none."""
    try:
        database = run.desktop.read_file(HISTORY)
    except FileNotFoundError:
        database = run.files.read(EMPTY_HISTORY)
    run.desktop.write_file(HISTORY, add_visits(database, parameters["history"], now=time.time()))


def add_visits(database: bytes, history: Iterable[Mapping[str, Any]], *, now: float) -> bytes:
    """A copy of Chrome's history database with visits added.

    Args:
        database: the bytes of the SQLite file ``History``.
        history: visits with ``url``, ``title`` and ``visit_time_from_now_in_seconds`` (before ``now``).
        now: the present time, in seconds since 1970.

    Raises:
        DesktopError: ``setup_failed`` when ``database`` is not a Chrome history.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "History"
        path.write_bytes(database)
        connection = sqlite3.connect(path)
        try:
            for item in history:
                moment = int((now - item["visit_time_from_now_in_seconds"] + CHROME_EPOCH) * 1_000_000)
                row = connection.execute(
                    "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) "
                    "VALUES (?, ?, 1, 0, ?, 0)",
                    (item["url"], item["title"], moment),
                )
                connection.execute(
                    "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                    "VALUES (?, ?, 0, 805306368, 0, 0)",  # transition: a link, start and end of its chain
                    (row.lastrowid, moment),
                )
            connection.commit()
        except sqlite3.Error as error:
            raise DesktopError(FailureReason.setup_failed, f"update_browse_history: {error}") from error
        finally:
            connection.close()
        return path.read_bytes()


def _arrange(run: TaskRun, parameters: Mapping[str, Any]) -> None:
    from osworld_gym.tasks.setup.arrange import arrange_command, arranged_files  # few tasks have this step

    for path, content in arranged_files(parameters, run.seed, run.desktop.screen_size).items():
        run.desktop.write_file(f"~/{path}", content.encode())
    command = arrange_command(list(parameters.get("folders", [])))
    result = run.desktop.run(command, shell=True)
    if result.returncode:
        raise DesktopError(FailureReason.setup_failed, f"arrange: {result.error.strip() or result.output.strip()}")


HOST_STEPS: dict[str, Callable[[TaskRun, Mapping[str, Any]], None]] = {
    "arrange": _arrange,
    "download": _download,
    "chrome_open_tabs": _open_tabs,
    "chrome_close_tabs": _close_tabs,
    "open_site": _open_site,
    "update_browse_history": _browse_history,
}
