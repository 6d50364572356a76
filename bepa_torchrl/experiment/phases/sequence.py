"""Runs the phases of a checked run: the preparation in this process, then a process per method, then the results."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from rich.console import Console

from bepa_torchrl.experiment.config import ConfigError, settings_to_yaml
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.phases.prepare import prepared_run
from bepa_torchrl.experiment.phases.results import show_before_after, write_results
from bepa_torchrl.experiment.phases.training import train_methods
from bepa_torchrl.experiment.remote_copy import uploading
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.start.checked import CheckedRun
from bepa_torchrl.experiment.start.folder import continue_command, make_folder, methods_of, write_settings
from bepa_torchrl.experiment.start.tasks import run_seed
from bepa_torchrl.scale.sharding.torchrun import torchrun_job
from bepa_torchrl.storage.lock import locked
from osworld_gym.atomic import write_text


def run_phases(checked: CheckedRun, console: Console, stack: ExitStack) -> int:
    """Runs all phases; returns the exit code: 0, or that of the first method process that failed.

    Args:
        checked: the run.
        console: for progress and results.
        stack: holds the lock of the run's folder until it is closed.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    folder, config, configs = checked.folder, checked.config, checked.configs
    check_gpus(config)
    check_torchrun(config)
    policy = make_policy(config, seed=config.seed)
    if not (folder / "prepared").exists() and (seed := run_seed(config)) is not None:
        seed.check_policy(policy, policy.renderer.image_scaling)
    if config.resume:
        write_settings(folder, config, configs)
    else:
        make_folder(folder)
        stack.enter_context(locked(folder))
        _begin(folder, config, configs, checked.overrides)
    command = continue_command(config, folder)
    with _noting(command), uploading(config, folder, console) as uploader:
        prepared = prepared_run(config, folder, policy, checked.tasks, console)
        scaling = policy.renderer.image_scaling
        del policy  # the methods' processes have their own: the device must not hold these weights, too
        _free_memory()
        code = train_methods(folder, configs, config, console, uploader, command)
        if code == 0:
            write_results(folder, list(configs), config, prepared, checked.tasks, console)
            if config.record.outcomes and config.record.images and config.eval.final_episodes:
                show_before_after(folder, list(configs), scaling, config.policy.action_text, console)
    return code


@contextmanager
def _noting(command: str) -> Iterator[None]:
    """Adds the command that continues the run to an exception that ends it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"continue with: {command}")
        raise


def check_gpus(config: Settings) -> None:
    """Raises ConfigError if there are fewer GPUs than ranks on this machine."""
    job = torchrun_job()
    ranks = config.train.ranks if job is None else job.local_ranks
    if config.train.ranks > 1 and config.policy.device != "cpu" and torch.cuda.device_count() < ranks:
        where = f"train.ranks={ranks}" if job is None else f"torchrun --nproc-per-node={ranks}"
        raise ConfigError(f"{where} requires {ranks} GPUs, this machine has {torch.cuda.device_count()}; lower it")


def check_torchrun(config: Settings) -> None:
    """Raises ConfigError if several methods would use the processes of torchrun at the same time."""
    if torchrun_job() is not None and config.train.ranks > 1 and config.processes > 1 and len(methods_of(config)) > 1:
        raise ConfigError(
            f"processes={config.processes}: torchrun's processes train one method at a time; set processes=1"
        )


def _begin(folder: Path, config: Settings, configs: dict[str, Settings], overrides: Sequence[str]) -> None:
    """Writes the settings into the run's new folder."""
    for name, own in configs.items():
        RunRecord(folder / name).begin(settings_to_yaml(own))
    write_text(folder / "overrides.json", json.dumps(list(overrides), indent=1))
    write_text(folder / "config.yaml", settings_to_yaml(config))


def _free_memory() -> None:
    """Returns the memory of objects that are no longer used to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
