"""``bepa experts plan``: a plan of each successful run (φ), by rule or by a language model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bepa_torchrl.commands.experts.arguments import (
    add_endpoint,
    add_job,
    chat_model,
    check_job_folder,
    noting,
    sources_and_settings,
)


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    text = "a plan of each successful run, by rule or by a language model with the paper's prompt"
    parser = actions.add_parser("plan", help=text, description=f"Writes {text}. Continues where it was interrupted.")
    add_job(parser, "folder of plans.jsonl and of the model's answers; made if missing, extended if not")
    add_endpoint(parser)
    parser.add_argument("--images", action="store_true", help="give the model the screenshots, too")
    parser.add_argument(
        "--max-characters", type=int, default=4000, metavar="N", help="a longer plan is refused (default: 4000)"
    )
    parser.set_defaults(program=plan)


def plan(options: argparse.Namespace) -> int:
    """Writes the plans. Exit code 2 if there is none."""
    if options.max_characters < 1:
        raise ValueError(f"--max-characters: expected 1 or more, got {options.max_characters}")
    sources, settings = sources_and_settings(options)
    check_job_folder(options.out)
    from bepa_torchrl.experiment.tasks import make_tasks
    from bepa_torchrl.experts.plans import PLANS, PlanFile, PlanMethod, phi_by_model, phi_by_rule, write_plans
    from bepa_torchrl.experts.sources import successful_traces
    from bepa_torchrl.failures import BAD_INPUT

    model = chat_model(options, options.out / "answers")
    by = "rule" if model is None else "model"
    method = PlanMethod(by, settings.expert.plan_source, options.model, options.images)
    images = options.images or method.source == "converted"  # only complete traces can be converted
    traces = successful_traces(sources, make_tasks(settings).train, images=images)
    from rich.console import Console  # large packages, after what can be checked without them

    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
    from bepa_torchrl.storage.lock import locked

    most = options.max_characters
    phi = phi_by_rule(method, most) if model is None else phi_by_model(model, method, most)
    at_once = 1 if model is None else model.endpoint.at_once
    path: Path = options.out / PLANS
    options.out.mkdir(parents=True, exist_ok=True)
    with noting(options), locked(options.out), ConsoleProgress(Console(stderr=True)) as progress:
        try:
            written = write_plans(traces, phi, PlanFile(path, method), at_once=at_once, progress=progress)
        finally:
            if model is not None:
                print(model.usage.summary(model.endpoint.price), file=sys.stderr)
    for name, reason in written.refused:
        print(f"bepa experts plan: no plan: {reason if name in reason else f'{name}: {reason}'}", file=sys.stderr)
    total = written.before + written.added
    print(f"{total} plans ({written.added} new) of {total + len(written.refused)} successful runs: {path}")
    return 0 if total else BAD_INPUT
