"""Trains the methods of a run, each in its own process, and shows their progress."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console

from bepa_torchrl.analysis.progress import Progression
from bepa_torchrl.analysis.prometheus import StatusFile
from bepa_torchrl.analysis.status import report, run_status
from bepa_torchrl.experiment.method_handle import MethodChild
from bepa_torchrl.experiment.method_process import finished
from bepa_torchrl.experiment.methods import method_named
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.failures import BAD_INPUT, INFRASTRUCTURE, INTERRUPTED

if TYPE_CHECKING:
    from bepa_torchrl.scale.store.mirror import RunUploader

_POLL = 0.5  #: seconds between two updates of the display
_INTERRUPT_SECONDS = 30.0  #: after Ctrl-C, for the methods to end their desktops and workers


def train_methods(
    folder: Path,
    configs: dict[str, Settings],
    config: Settings,
    console: Console,
    uploader: RunUploader | None,
    command: str,
) -> int:
    """Runs one process per method, at most ``processes`` at a time, until all end or one fails.

    Args:
        folder: the run's.
        configs: the settings of each method.
        config: the settings of the run.
        console: for progress.
        uploader: of the run's folder.
        command: the command that continues the run.

    Returns:
        0, or the exit code of the failed process; its error is printed in one line and the others are ended.
    """
    waiting = [name for name, own in configs.items() if not finished(folder / name, own)]
    running: dict[str, MethodChild] = {}
    iterations = {name: own.train.iterations if method_named(name).rl else 0 for name, own in configs.items()}
    status = StatusFile(folder)
    try:
        with Progression(folder, iterations, console) as progression:
            while waiting or running:
                while waiting and len(running) < config.processes:
                    name = waiting.pop(0)
                    on_ray = config.cluster.address is not None
                    running[name] = MethodChild(folder / name, threads=config.threads, on_ray=on_ray)
                code = _poll(running, console, command)
                progression.update()
                status.update()
                if uploader is not None:
                    uploader.check()
                if code != 0:
                    return code
        return 0
    except KeyboardInterrupt:
        _interrupt(running.values())
        summary = "\n".join(report(run_status(folder) | {"running": False}))
        console.print(summary, markup=False, highlight=False, soft_wrap=True)
        raise
    finally:
        for child in running.values():
            child.stop()
        status.update(ended=True)


def _interrupt(children: Iterable[MethodChild]) -> None:
    """Asks the processes to end, and waits for them for a while."""
    for child in children:
        child.interrupt()
    end = monotonic() + _INTERRUPT_SECONDS
    for child in children:
        child.wait(max(0.0, end - monotonic()))


def _poll(running: dict[str, MethodChild], console: Console, command: str) -> int:
    """Waits briefly for the first process; prints notices and removes the processes that have ended.

    Returns:
        0, or the exit code of one that failed.

    Raises:
        KeyboardInterrupt: one was interrupted.
    """
    next(iter(running.values())).wait(_POLL)
    for name, child in list(running.items()):
        code = child.wait(0.0)
        for notice in child.notices():
            console.print(notice, soft_wrap=True, markup=False, highlight=False)
        if code is None:
            continue
        del running[name]
        if code == INTERRUPTED:  # Ctrl-C reaches this process and its children in any order
            raise KeyboardInterrupt
        if code != 0:
            again = "" if code == BAD_INPUT else f"; continue with: {command}"
            print(f"{child.failure()}{again}", file=sys.stderr)
            return INFRASTRUCTURE if code < 0 or child.lost_ray() else code
    return 0
