"""``bepa selfroll``: the policy's own successes when it follows the expert's plans (LEVEL-1, D_self)."""

from __future__ import annotations

import argparse
from contextlib import closing

from bepa_torchrl.commands.arguments import add_settings, check_new
from bepa_torchrl.commands.convert import add_traces


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "expert traces → plans → the policy's own successes (LEVEL-1, D_self)"
    parser = commands.add_parser("selfroll", help=text)
    add_traces(parser)
    add_settings(parser)
    parser.set_defaults(program=self_roll_traces)


def self_roll_traces(options: argparse.Namespace) -> int:
    """Writes D_self as a cache folder; tasks of the training split only."""
    from bepa_torchrl.experiment.config import load_config

    settings = load_config(options.overrides, config_dir=options.config_dir)
    check_new(options.out, "folder")
    from bepa_torchrl.experiment.environment import check_environment
    from bepa_torchrl.experiment.factory import make_env, make_policy, make_tasks, rollout_policy
    from bepa_torchrl.experiment.preparation import self_roll_all
    from bepa_torchrl.experts import read_source

    check_environment(settings)
    tasks = make_tasks(settings)
    traces = read_source(options.traces, tasks.train)
    policy = make_policy(settings, seed=settings.seed)
    with rollout_policy(settings, policy) as rollout, closing(make_env(settings, rollout, tasks.suite)) as env:
        cache, rolled = self_roll_all(settings, rollout, env.vector, tasks.train, traces)
    cache.dumps(options.out)
    print(f"{len(cache)} tasks self-rolled in {rolled.episodes} episodes: {options.out}")
    return 0
