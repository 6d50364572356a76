"""``bepa doctor``: installed versions, and whether the default run's policy, desktop and tasks are usable."""

from __future__ import annotations

import argparse
import errno
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.commands.arguments import add_settings

if TYPE_CHECKING:
    from bepa_torchrl.experiment.settings import Settings

_PACKAGES = ("torch", "torchrl", "tensordict", "transformers", "gymnasium", "hydra-core")
_EXTRAS = ("", "bepa", "torchrl")  #: the requirements of training are those of these extras
_MISSING = "missing"
_LEAST_SPACE = 100e6  #: free bytes of the runs' folder; a run of a small policy writes less


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "what is installed, and whether a run with these settings could start"
    parser = commands.add_parser("doctor", help=text, description=f"Prints {text}.")
    add_settings(parser)
    parser.set_defaults(program=doctor, needs_extra=False)


def doctor(options: argparse.Namespace) -> int:
    """Prints what was found, after the checks that ``bepa train`` makes before it loads the policy.

    Raises:
        ConfigError, TaskError, TraceError: the settings name something that is not there, or contradict each other.
        ValueError: an installed package has a version that training does not accept, or the policy's
            device is not here. RecordError: nothing to resume.
        DesktopError: the desktop cannot be used on this machine. OSError: the store of ``storage`` cannot be used, or
            the disk of ``runs`` is full.
    """
    from bepa_torchrl.failures import BAD_INPUT
    from osworld_gym.extras import missing_extra

    for package in _PACKAGES:
        print(f"{package:14} {_version(package)}")
    problem = missing_extra("bepa", "training")
    if problem:
        print(problem)
        return BAD_INPUT
    _check_versions()
    from bepa_torchrl.experiment.checks import COMMAND
    from bepa_torchrl.experiment.config import check, load_methods
    from bepa_torchrl.experiment.launcher import checked_tasks

    configs = load_methods(options.overrides, config_dir=options.config_dir)
    settings = next(iter(configs.values()))
    prepared = False
    if not settings.resume:
        _check_new(settings)
    elif settings.storage is None:
        settings, configs, prepared = _resumed(settings, options.overrides)
    check(settings, COMMAND)
    suite = checked_tasks(settings, configs.values(), prepared=prepared).suite
    splits = ", ".join(f"{name} {len(ids)}" for name, ids in suite.splits.items())
    print(f"{'runs':14} {settings.runs}: {_free_space(Path(settings.runs).expanduser()) / 1e9:.1f} GB free")
    print(f"{'desktop':14} {settings.env.provider}: usable (`osworld-gym doctor` tries every provider)")
    print(f"{'suite':14} {settings.env.suite}: {splits}")
    if settings.storage is not None and not settings.resume:
        print(f"{'storage':14} {settings.storage}: usable, a small object was written, read and removed")
    if settings.policy.device != "cpu" and settings.cluster.trainer != "ray":
        from bepa_torchrl.policies.device import check_device  # torch

        check_device(settings.policy.device)
    print(f"{'policy':14} {settings.policy.checkpoint}: {_found(settings.policy.checkpoint)}")
    return 0


def _check_versions() -> None:
    """Raises ValueError if this distribution requires other versions than the installed ones."""
    from packaging.requirements import Requirement

    try:
        lines = requires("osworld-gym") or []
    except PackageNotFoundError:  # the modules of a clone, which pip has not installed
        return
    wrong = []
    for wanted in map(Requirement, lines):
        applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in _EXTRAS)
        installed = _version(wanted.name)
        if applies and installed != _MISSING and not wanted.specifier.contains(installed, prereleases=True):
            wrong.append(f"{wanted.name}{wanted.specifier}, got {installed}")
    if wrong:
        fix = "pip install -c constraints.txt '.[bepa]' in a clone"
        raise ValueError(f"installed packages: expected {'; '.join(dict.fromkeys(wrong))}; fix: {fix}")


def _resumed(settings: Settings, overrides: Sequence[str]) -> tuple[Settings, dict[str, Settings], bool]:
    """The settings with which a run would go on, for all and for each method, and whether its preparation is there."""
    from bepa_torchrl.experiment.run_folder import locked_run, resumed_settings, run_folder

    folder = run_folder(settings)
    with locked_run(folder):
        return *resumed_settings(folder, settings, overrides), (folder / "prepared").exists()


def _check_new(settings: Settings) -> None:
    """Whether a run could be made, and its copy in the store; nothing of them is."""
    from bepa_torchrl.experiment.launcher import check_new

    if settings.storage is None:
        return check_new(settings)
    from bepa_torchrl.experiment.remote_copy import leaving_no_folder

    with leaving_no_folder(settings.storage):
        check_new(settings)


def _free_space(folder: Path) -> int:
    """Free bytes where a folder is, or would be. Raises OSError (ENOSPC) if they are fewer than a small run's."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < _LEAST_SPACE:
        text = f"disk full: {free / 1e6:.1f} MB are free, a run requires {_LEAST_SPACE / 1e6:.0f} or more; "
        raise OSError(errno.ENOSPC, text + "free some space, or set runs=FOLDER", str(folder))
    return free


def _found(checkpoint: str) -> str:
    """Where a checkpoint is that has passed the checks."""
    from bepa_torchrl.checkpoints.hub import is_cached, is_repository

    if not is_repository(checkpoint):
        return "found"
    if is_cached(checkpoint):
        return "found in the local Hugging Face cache"
    return "not in the local Hugging Face cache: it is downloaded at the start, which was not tried"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _MISSING
