"""Checks a run before torch is imported: settings, folder, machine, tasks. A mistake is answered within seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.methods import method_named
from bepa_torchrl.experiment.preflight import check_environment
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.start.folder import (
    check_new_run,
    locked_run,
    methods_of,
    resumed_settings,
    run_folder,
)
from bepa_torchrl.experiment.start.tasks import Tasks, check_settings, make_tasks


@dataclass(frozen=True)
class CheckedRun:
    """A run that can start.

    Args:
        folder: the run's; it exists, and is locked, if the run is resumed.
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


def check_run(
    overrides: Sequence[str], config_dir: Path | None, note: Callable[[str], None], stack: ExitStack
) -> CheckedRun:
    """Checks everything that requires no torch; a run that is resumed is locked until ``stack`` is closed.

    Args:
        overrides: ``key=value``, as on the command line.
        config_dir: a user's folder with further settings.
        note: is called with lines for the user, about a run that is restored from its store.
        stack: holds the lock.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    config = load_config(overrides, config_dir=config_dir)
    folder = run_folder(config)
    if config.resume:
        if config.storage is not None:
            from bepa_torchrl.experiment.remote_copy import restore_missing

            restore_missing(config, folder, note)
        stack.enter_context(locked_run(folder))
        config, configs = resumed_settings(folder, config, overrides)
    else:
        configs = {name: _config_of(name, config, overrides, config_dir) for name in methods_of(config)}
        check_new_run(folder)
        if config.storage is not None:
            from bepa_torchrl.experiment.remote_copy import check_new_in_store

            check_new_in_store(config, folder.name)
    check_environment(config, torchrun=True)
    tasks = make_tasks(config)
    for own in configs.values():
        check_settings(own, method_named(own.algo.name), tasks, prepared=(folder / "prepared").exists())
    return CheckedRun(folder, config, configs, tuple(overrides), tasks)


def _config_of(name: str, config: Settings, overrides: Sequence[str], config_dir: Path | None) -> Settings:
    """The settings of one method, which differ in ``algo`` only."""
    method_named(name)
    if name == config.algo.name:
        return config
    own = [override for override in overrides if not override.startswith(("algo=", "algo."))]
    return load_config([*own, f"algo={name}"], config_dir=config_dir)
