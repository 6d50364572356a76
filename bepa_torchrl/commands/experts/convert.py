"""``bepa experts convert``: expert traces in the policy's format (D_conv), by rule or with a model's thoughts."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from bepa_torchrl.commands.arguments import check_new
from bepa_torchrl.commands.experts.arguments import (
    add_endpoint,
    add_job,
    beside,
    chat_model,
    noting,
    sources_and_settings,
)


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    text = "expert traces in the policy's format (D_conv), and what was dropped, by reason"
    parser = actions.add_parser("convert", help=text, description=f"Writes {text}.")
    add_job(parser, "folder for cache.seed, with dropped.json; it must not exist")
    add_endpoint(parser)
    parser.add_argument(
        "--replay",
        action="store_true",
        help="play each converted trace on the desktops of the settings; keep those that the verifier accepts",
    )
    parser.set_defaults(program=convert)


def convert(options: argparse.Namespace) -> int:
    """Writes D_conv. Exit code 2 if no trace can be converted."""
    sources, settings = sources_and_settings(options)
    check_new(options.out, "--out")
    from bepa_torchrl.experiment import preflight
    from bepa_torchrl.experiment.checks import COMMAND
    from bepa_torchrl.experiment.config import check
    from bepa_torchrl.experiment.tasks import make_tasks
    from bepa_torchrl.experts.sources import successful_traces

    check(settings, COMMAND if options.replay else (preflight.checkpoint,))
    model = chat_model(options, beside(options.out, "answers"))
    tasks = make_tasks(settings)
    traces = successful_traces(sources, tasks.train)
    from rich.console import Console  # torch and others, after what can be checked without them

    from bepa_torchrl.experiment.factory import make_env, make_policy
    from bepa_torchrl.experts.converting import convert_traces, lines, thoughts_of, totals
    from bepa_torchrl.experts.replay import keep_accepted
    from bepa_torchrl.experts.rows import converted_cache
    from bepa_torchrl.experts.seed import write_seed
    from bepa_torchrl.failures import BAD_INPUT
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
    from osworld_gym.atomic import new_folder, write_text

    policy = make_policy(settings, seed=settings.seed)
    scaling, text = policy.renderer.image_scaling, settings.policy.action_text
    complete = None if model is None else thoughts_of(model)
    at_once = 1 if model is None else model.endpoint.at_once
    with noting(options):
        try:
            with ConsoleProgress(Console(stderr=True)) as progress:
                conversions = convert_traces(
                    traces, scaling, text, complete=complete, at_once=at_once, progress=progress
                )
                if options.replay:
                    with closing(make_env(settings, scaling, tasks.suite)) as env:
                        conversions = keep_accepted(
                            conversions, {task.id: task for task in tasks.train}, env.vector, progress
                        )
        finally:
            if model is not None:
                print(model.usage.summary(model.endpoint.price), file=sys.stderr)
        cache, long = converted_cache(policy, [(each.trace, each.converted) for each in conversions if each.converted])
        print("\n".join([*lines(conversions), *(f"left out         {reason}" for reason in long)]))
        if not len(cache):
            return BAD_INPUT
        with new_folder(options.out) as part:
            write_seed(part, cache, "converted", suite=tasks.suite, action_text=text, scaling=scaling, policy=policy)
            dropped = {
                "totals": totals(conversions),
                "too_long": long,
                "traces": [each.to_json() for each in conversions],
            }
            write_text(part / "dropped.json", json.dumps(dropped, indent=1, ensure_ascii=False))
    print(f"{len(cache)} tasks: {options.out}")
    return 0
