"""``bepa train``: trains a policy by BEPA or another method, and the methods it is compared with."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

from bepa_torchrl.commands.arguments import add_settings, parse_settings

_HELP = "train by BEPA or another method"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("train", help=_HELP, description="Trains a policy by BEPA or another method.")
    add_settings(parser)
    parser.set_defaults(program=train)


def main(arguments: Sequence[str] | None = None, *, prog: str = "bepa train") -> int:
    """The command as a program of its own; returns the exit code."""
    from bepa_torchrl.failures import guarded

    parser = argparse.ArgumentParser(prog=prog, description="Trains a policy by BEPA or another method.")
    add_settings(parser)
    options = parse_settings(parser, arguments)
    return guarded(lambda: train(options), prog)


def train(options: argparse.Namespace) -> int:
    """Trains, evaluates, and writes the run's folder. Mistakes are found before torch is imported.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    from bepa_torchrl.experiment.started_by import is_rank

    if is_rank():
        return _train_as_rank(options)
    from bepa_torchrl.experiment.config import load_methods
    from bepa_torchrl.experiment.launcher import check_ranks_on_ray, effective_settings, run_loaded

    configs = load_methods(options.overrides, config_dir=options.config_dir)
    settings = effective_settings(configs, options.overrides)
    if settings.cluster.trainer == "ray":
        check_ranks_on_ray(settings)
        from bepa_torchrl.experiment.ray_driver import train_on_ray

        return train_on_ray(settings, options.overrides, config_dir=options.config_dir)
    # SIGTERM becomes an ordinary exit, which ends the methods' processes too
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return run_loaded(configs, options.overrides)
    finally:
        signal.signal(signal.SIGTERM, before)


def _train_as_rank(options: argparse.Namespace) -> int:
    """As :func:`train`, in a process that torchrun or Ray has started: rank 0 is the run, the others follow it.

    Processes that are started again (``--max-restarts``, ``restarts``) go on with the run that the first ones have
    begun.
    """
    from bepa_torchrl.experiment.method_handle import end_with_launcher
    from bepa_torchrl.experiment.started_by import by_ray

    end_with_launcher()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # Ray's processes block SIGINT
    if by_ray():  # the processes of a cluster that a script has started in the background ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from bepa_torchrl.experiment.config import load_methods
    from bepa_torchrl.experiment.launcher import overrides_on_torchrun, run_loaded

    overrides = overrides_on_torchrun(options.overrides, int(os.environ["WORLD_SIZE"]))
    configs = load_methods(overrides, config_dir=options.config_dir)  # on each rank, before torch's import
    from bepa_torchrl.experiment.ranks import follow_torchrun
    from bepa_torchrl.experiment.run_folder import begun
    from bepa_torchrl.scale.sharding.torchrun import torchrun_job

    job = torchrun_job()
    assert job is not None
    if job.rank > 0:
        return follow_torchrun(job)
    if job.attempt and begun(next(iter(configs.values()))):
        overrides = [*overrides, "resume=true"]
        configs = load_methods(overrides, config_dir=options.config_dir)
    before = signal.signal(signal.SIGTERM, _end if by_ray() else _end_with_torchrun)
    try:
        return run_loaded(configs, overrides)
    finally:
        job.end()
        signal.signal(signal.SIGTERM, before)


def _end(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _end_with_torchrun(*_: object) -> None:
    """Torchrun ends all ranks on a machine if one of them has exited."""
    print(
        "bepa train: ended by torchrun, which does so if another rank has exited (see its error); "
        "go on with resume=true, from the newest checkpoint; the number of ranks may be another",
        file=sys.stderr,
    )
    _end()
