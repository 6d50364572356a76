"""``bepa selfroll``: the policy's own successes when it follows the expert's plans (LEVEL-1, D_self)."""

from __future__ import annotations

import argparse
import shlex
from contextlib import closing
from pathlib import Path

from bepa_torchrl.commands.arguments import add_settings, check_new
from bepa_torchrl.commands.convert import add_traces


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "expert traces → plans → the policy's own successes (LEVEL-1, D_self); continues where it was interrupted"
    parser = commands.add_parser("selfroll", help=text)
    add_traces(parser)
    add_settings(parser)
    parser.set_defaults(program=self_roll_traces)


def self_roll_traces(options: argparse.Namespace) -> int:
    """Writes D_self as a cache folder; tasks of the training split only.

    Finished episodes are kept in ``OUT.unfinished`` until then: the same command goes on after an interruption.
    """
    from bepa_torchrl.experiment.config import load_config, settings_to_dict

    settings = load_config(options.overrides, config_dir=options.config_dir)
    check_new(options.out, "folder")
    from bepa_torchrl.experiment.environment import check_environment
    from bepa_torchrl.experiment.start.tasks import make_tasks
    from bepa_torchrl.experts.sources import read_source

    check_environment(settings)
    tasks = make_tasks(settings)
    traces = read_source(options.traces, tasks.train)
    # large packages, after what can be checked without them
    from rich.console import Console

    from bepa_torchrl.analysis.stage_progress import ConsoleProgress
    from bepa_torchrl.experiment.factory import make_env, make_policy, rollout_policy
    from bepa_torchrl.experiment.preparation import self_roll_all
    from bepa_torchrl.rollout.stages import Stages
    from bepa_torchrl.storage.ledger import Ledger
    from bepa_torchrl.storage.lock import locked

    policy = make_policy(settings, seed=settings.seed)
    kept: Path = options.out.with_name(f"{options.out.name}.unfinished")
    kept.mkdir(parents=True, exist_ok=True)
    known = settings_to_dict(settings)
    try:
        with locked(kept), ConsoleProgress(Console(stderr=True)) as progress:
            # episodes of another policy or on other desktops are not this command's
            stages = Stages(ledger := Ledger(kept), progress, context=[known["policy"], known["env"]])
            with rollout_policy(settings, policy) as rollout, closing(make_env(settings, rollout, tasks.suite)) as env:
                cache, rolled = self_roll_all(settings, rollout, env.vector, tasks.train, traces, stages)
            cache.dumps(options.out)
            ledger.remove()
    except BaseException as error:
        error.add_note(f"continue with: {_command(options)}")
        raise
    print(f"{len(cache)} tasks self-rolled in {rolled.episodes} episodes: {options.out}")
    return 0


def _command(options: argparse.Namespace) -> str:
    """The command line, which goes on where it was interrupted."""
    folder = [] if options.config_dir is None else ["--config-dir", str(options.config_dir)]
    return shlex.join(["bepa", "selfroll", options.traces, str(options.out), *options.overrides, *folder])
