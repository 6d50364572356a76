"""``bepa experts selfroll``: the policy's own successes when it follows the expert's plans (LEVEL-1, D_self)."""

from __future__ import annotations

import argparse
from contextlib import closing
from functools import partial
from pathlib import Path

from bepa_torchrl.commands.arguments import check_new
from bepa_torchrl.commands.experts.arguments import add_job, beside, noting, sources_and_settings


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    text = "the policy's own successes when it follows the expert's plans (LEVEL-1, D_self)"
    parser = actions.add_parser(
        "selfroll", help=text, description=f"Writes {text}. Continues where it was interrupted."
    )
    add_job(parser, "folder for cache.seed, with selfroll.jsonl; it must not exist")
    parser.add_argument("--plans", metavar="FILE", help="plans.jsonl of bepa experts plan, as expert.plans=FILE")
    parser.set_defaults(program=self_roll)


def self_roll(options: argparse.Namespace) -> int:
    """Writes D_self; tasks of the training split only.

    Finished episodes are kept in ``OUT.unfinished`` until then: the same command goes on after an interruption.
    """
    from bepa_torchrl.experiment.config import check, settings_to_dict, with_changes

    sources, settings = sources_and_settings(options)
    if options.plans is not None:
        settings = with_changes(settings, {"expert.plans": options.plans})
    check_new(options.out, "--out")
    from bepa_torchrl.experiment.checks import COMMAND
    from bepa_torchrl.experiment.checks.tasks import tasks_of_provider
    from bepa_torchrl.experiment.tasks import make_tasks
    from bepa_torchrl.experts.plans import read_plans
    from bepa_torchrl.experts.sources import successful_traces

    if settings.expert.plans is not None:
        read_plans(Path(settings.expert.plans).expanduser())
    check(settings, COMMAND)
    tasks = make_tasks(settings)
    check(settings, (partial(tasks_of_provider, tasks=tasks),))
    traces = successful_traces(sources, tasks.train)
    # large packages, after what can be checked without them
    from rich.console import Console

    from bepa_torchrl.experiment.factory import make_env, make_policy, rollout_policy
    from bepa_torchrl.experiment.preparation import self_roll_all
    from bepa_torchrl.experts.attempts import AttemptFile, table
    from bepa_torchrl.experts.seed import write_seed
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
    from bepa_torchrl.rollout.stages import Stages
    from bepa_torchrl.storage.ledger import Ledger
    from bepa_torchrl.storage.lock import locked
    from osworld_gym.atomic import new_folder

    policy = make_policy(settings, seed=settings.seed)
    kept = beside(options.out, "unfinished")
    kept.mkdir(parents=True, exist_ok=True)
    known = settings_to_dict(settings)
    with noting(options), locked(kept), ConsoleProgress(Console(stderr=True)) as progress:
        # episodes of another policy or on other desktops are not this command's
        stages = Stages(ledger := Ledger(kept), progress, context=[known["policy"], known["env"]])
        attempts = AttemptFile(kept)
        with (
            rollout_policy(settings, policy) as rollout,
            closing(make_env(settings, rollout.renderer.image_scaling, tasks.suite)) as env,
        ):
            cache, rolled = self_roll_all(settings, rollout, env.vector, tasks.train, traces, stages, attempts.add)
        with new_folder(options.out) as part:
            write_seed(
                part,
                cache,
                "self_rolled",
                suite=tasks.suite,
                action_text=settings.policy.action_text,
                scaling=policy.renderer.image_scaling,
                policy=policy,
            )
            AttemptFile(part).extend(rolled.attempts)
        ledger.remove()
    print("\n".join(table(rolled, len({trace.task_id for trace in traces}))))
    print(f"{len(cache)} tasks self-rolled in {rolled.episodes} episodes: {options.out}")
    return 0
