"""Runs an experiment: prepare (expert traces, LEVEL-1), then train and evaluate one or several methods.

The preparation runs once in this process; then each method trains in a separate process, from the same policy,
preparation and seed. All files are in ``runs/<name>/``, which one process at a time may use.

    config.yaml, overrides.json   the run's settings, and the command line they are from
    prepared/                     expert traces, caches, base evaluation, manifest
    <method>/                     see :mod:`bepa_torchrl.experiment.method_process`
    status.prom                   the numbers of ``bepa status`` as Prometheus metrics
    base/                         the base policy's evaluated episodes (``record.outcomes``)
    results.json, results.txt, curves.png, before-after.gif
                                  at the end

With ``storage=URL`` the folder is also uploaded (:mod:`bepa_torchrl.experiment.remote_copy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.experiment.start.checked import check_run

if TYPE_CHECKING:
    from rich.console import Console


def run(overrides: Sequence[str], *, config_dir: Path | None = None, console: Console | None = None) -> int:
    """Runs the experiment; returns the exit code: 0, or that of the first method process that failed.

    An exception that ends a run with a folder has a note with the command that continues it.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    notes: list[str] = []
    with ExitStack() as stack:
        checked = check_run(overrides, config_dir, notes.append, stack)
        # large packages, after what can be checked without them
        from rich.console import Console

        from bepa_torchrl.experiment.phases.sequence import run_phases

        console = console or Console()
        for note in notes:
            console.print(note, soft_wrap=True, markup=False, highlight=False)
        return run_phases(checked, console, stack)
