"""``bepa eval``: greedy and sampled success rates of a policy, per split and tag."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from bepa_torchrl.commands.arguments import add_settings, check_new


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("eval", help="success rates of a policy, per split and tag")
    add_settings(parser)
    parser.add_argument("--out", type=Path, help="JSON file for the counts per task")
    parser.set_defaults(program=evaluate_policy)


def evaluate_policy(options: argparse.Namespace) -> int:
    """Prints the success rates on both splits of ``env``; writes the counts per task to ``--out``."""
    from bepa_torchrl.experiment.config import check, load_config

    settings = load_config(options.overrides, config_dir=options.config_dir)
    if options.out is not None:
        check_new(options.out, "--out")
    from bepa_torchrl.experiment.checks import COMMAND
    from bepa_torchrl.experiment.tasks import make_tasks

    check(settings, COMMAND)
    tasks = make_tasks(settings)
    from rich.console import Console  # large packages, after what can be checked without them
    from rich.table import Table

    from bepa_torchrl.analysis.progress import percent
    from bepa_torchrl.analysis.stage_progress import ConsoleProgress
    from bepa_torchrl.evaluation.success_rate import subsets
    from bepa_torchrl.experiment.factory import make_env, make_policy, rollout_policy
    from bepa_torchrl.experiment.preparation import final_evaluation
    from bepa_torchrl.rollout.stages import Stages
    from osworld_gym.atomic import write_text

    policy = make_policy(settings, seed=settings.seed)
    every = [*tasks.train, *tasks.held_out]
    with (
        ConsoleProgress(Console(stderr=True)) as progress,
        rollout_policy(settings, policy) as rollout,
        closing(make_env(settings, rollout, tasks.suite)) as env,
    ):
        found = final_evaluation(settings, rollout, env.vector, every, stages=Stages(progress=progress))
    table = Table("tasks", "number", *found)
    for name, ids in subsets(tasks.train, tasks.held_out, ()).items():
        table.add_row(name, str(len(ids)), *(percent(evaluation.success(ids)) for evaluation in found.values()))
    Console().print(table)
    if options.out is not None:
        counts = {mode: evaluation.to_json() for mode, evaluation in found.items()}
        write_text(options.out, json.dumps(counts, indent=1))
    return 0
