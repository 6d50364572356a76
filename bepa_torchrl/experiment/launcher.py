"""Runs an experiment: prepare (expert traces, LEVEL-1), then train and evaluate one or several methods.

The preparation runs once in this process; then each method trains in a separate process, from the same policy,
preparation and seed. All files are in ``runs/<name>/``, which one process at a time may use.

    config.yaml, overrides.json   the run's settings, and the command line they are from
    prepared/                     expert traces, caches, base evaluation, manifest
    <method>/                     see :mod:`bepa_torchrl.experiment.method_process`
    status.prom                   the numbers of ``bepa status`` as Prometheus metrics
    base/                         the base policy's evaluated episodes (``record.outcomes``)
    results.json, results.txt, overview.png, curves.png, before-after.gif
                                  at the end

With ``storage=URL`` the folder is also uploaded (:mod:`bepa_torchrl.experiment.remote_copy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.experiment.checks import MACHINE
from bepa_torchrl.experiment.checks.tasks import solved_by_experts, task_checks
from bepa_torchrl.experiment.config import ConfigError, check, given_names, load_methods, read_settings
from bepa_torchrl.experiment.run_folder import check_new_run, locked_run, resumed_settings, run_folder
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import Tasks, make_tasks
from osworld_gym.extras import require_extra

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class CheckedRun:
    """A run that can start.

    Args:
        folder: folder of the run; it exists, and is locked, if the run is resumed.
        config: the settings of the run.
        configs: the settings of each method.
        overrides: the command line that they are from.
        tasks: the tasks.
    """

    folder: Path
    config: Settings
    configs: dict[str, Settings]
    overrides: tuple[str, ...]
    tasks: Tasks


def run(overrides: Sequence[str], *, config_dir: Path | None = None, console: Console | None = None) -> int:
    """Loads the settings of an experiment, and runs it: see :func:`run_loaded`.

    Args:
        overrides: ``key=value``, as on the command line.
        config_dir: a user's folder with further settings.
        console: for progress and results; None: standard output.
    """
    return run_loaded(load_methods(overrides, config_dir=config_dir), overrides, console=console)


def run_loaded(configs: dict[str, Settings], overrides: Sequence[str], *, console: Console | None = None) -> int:
    """Runs the experiment; returns the exit code: 0, or that of the first method process that failed.

    The processes of methods and ranks read these settings from the run's folder. An exception that ends a run with a
    folder has a note with the command that continues it, or, after bad input, that another name is needed.

    Args:
        configs: the settings of each method, that of ``algo`` first.
        overrides: the command line that they are from.
        console: for progress and results; None: standard output.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    notes: list[str] = []
    with ExitStack() as stack:
        checked = check_run(configs, overrides, notes.append, stack)
        # large packages, after what can be checked without them
        from rich.console import Console

        from bepa_torchrl.experiment.phases import run_phases

        console = console or Console()
        for note in notes:
            console.print(note, soft_wrap=True, markup=False, highlight=False)
        return run_phases(checked, console, stack)


def effective_settings(configs: dict[str, Settings], overrides: Sequence[str]) -> Settings:
    """The settings that say where ranks run: the saved ones, if the run is resumed and its folder is on this machine.

    Raises:
        RecordError: a change that a resumed run cannot make. ConfigError: the changed settings contradict each other.
    """
    config = next(iter(configs.values()))
    folder = run_folder(config)
    if not config.resume or not (folder / "config.yaml").exists():
        return config
    if "ray" not in (config.cluster.trainer, read_settings(folder / "config.yaml").cluster.trainer):
        return config  # it is read, and locked, later
    return resumed_settings(folder, config, overrides)[0]


def check_ranks_on_ray(settings: Settings) -> None:
    """What placing ranks by Ray requires of this machine; rank 0 checks the rest on its own.

    Raises:
        MissingExtraError: no Ray. FolderInUseError, RecordError: the folder of a new run exists. ConfigError: it cannot
            be made. DesktopError: no cluster at the address.
    """
    if not settings.resume:
        check_new_run(run_folder(settings))
    require_extra("ray", "cluster.trainer=ray")
    from bepa_torchrl.scale.rollouts.ray_address import check_head

    assert settings.cluster.address is not None
    check_head(settings.cluster.address)


def check_run(
    configs: dict[str, Settings], overrides: Sequence[str], note: Callable[[str], None], stack: ExitStack
) -> CheckedRun:
    """Checks everything that requires no torch; a run that is resumed is locked until ``stack`` is closed.

    Args:
        configs: the settings of each method, that of ``algo`` first.
        overrides: ``key=value``, as on the command line.
        note: is called with lines for the user, about a run that is restored from its store.
        stack: holds the lock.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    config = next(iter(configs.values()))
    folder = run_folder(config)
    if config.resume:
        if config.storage is not None:
            from bepa_torchrl.experiment.remote_copy import restore_missing

            restore_missing(config, folder, note)
        stack.enter_context(locked_run(folder))
        config, configs = resumed_settings(folder, config, overrides)
    else:
        check_new(config)
    check(config, MACHINE)
    tasks = checked_tasks(config, configs.values(), prepared=(folder / "prepared").exists())
    return CheckedRun(folder, config, configs, tuple(overrides), tasks)


def check_new(config: Settings) -> None:
    """Checks that the folder of a new run, and its copy in the store, do not exist and can be made.

    Raises:
        ValueError: bad input. OSError: infrastructure.
    """
    folder = run_folder(config)
    check_new_run(folder)
    if config.storage is not None:
        from bepa_torchrl.experiment.remote_copy import check_new_in_store

        check_new_in_store(config, folder.name)


def checked_tasks(config: Settings, configs: Iterable[Settings], *, prepared: bool = False) -> Tasks:
    """The tasks of a run, checked against its settings.

    Args:
        config: the settings of the run.
        configs: the settings of each method.
        prepared: as of :func:`bepa_torchrl.experiment.checks.tasks.task_checks`.

    Raises:
        ConfigError, TaskError: as :func:`make_tasks`, or the settings do not go with the tasks. TraceError: the expert
            cannot be used, or solved none of the tasks.
    """
    tasks = make_tasks(config)
    against_tasks = task_checks(tasks, prepared=prepared)
    for own in configs:
        check(own, against_tasks)
    if not prepared:
        solved_by_experts(config, tasks)
    return tasks


def overrides_on_torchrun(overrides: Sequence[str], ranks: int) -> list[str]:
    """The settings of a run that torchrun has started: ``train.ranks`` is the number of its processes.

    Raises:
        ConfigError: they set another number.
    """
    given = [override for override in overrides if "train.ranks" in given_names([override])]
    own = f"train.ranks={ranks}"
    if wrong := [override for override in given if override.replace(" ", "") != own]:
        raise ConfigError(f"{wrong[0]}, but torchrun has started {ranks} processes; leave train.ranks out")
    return [*overrides, *([] if given else [own])]
