"""``bepa eval suite=online_mind2web``: a judge reads the trajectories of any agent."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bepa_torchrl.commands.arguments import check_new
from bepa_torchrl.commands.experts.arguments import add_endpoint, chat_model, noting


def add_web(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the suite."""
    add_endpoint(parser, prefix="judge-", title="the judge of suite=online_mind2web", max_tokens=2048)
    parser.add_argument(
        "--trajectories", type=Path, metavar="FOLDER", help="of online_mind2web: TASK_ID/result.json and trajectory/"
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="human labels of online_mind2web, JSON: task id to 0, 1 or 2"
    )


def check_no_judge(options: argparse.Namespace) -> None:
    """Raises ValueError if an option of the suite is given with another one."""
    for name in ("trajectories", "labels", "judge_model", "judge_url", "judge_price"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is read with suite=online_mind2web only; leave it out")


def judge_web(options: argparse.Namespace, overrides: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Judges the trajectories; returns the outcomes and how they were measured.

    Raises:
        ValueError: bad input. EndpointError: the endpoint gave no answer; the judgements before it are kept.
    """
    if overrides or options.passes not in (None, 1) or options.steps is not None or options.temperature is not None:
        raise ValueError(
            "suite=online_mind2web judges trajectories that exist, and plays nothing; leave out settings, --passes, "
            "--steps and --temperature"
        )
    for name in ("data", "trajectories", "out", "judge_model"):
        if getattr(options, name) is None:
            raise ValueError(
                "suite=online_mind2web requires --data Online_Mind2Web.json, --trajectories FOLDER, --judge-model "
                f"NAME and --out FOLDER; --{name.replace('_', '-')} is missing"
            )
    if not options.out.exists():
        check_new(options.out, "--out")
    from bepa_torchrl.evaluation.web.agreement import read_labels
    from bepa_torchrl.evaluation.web.tasks import read_web_tasks

    tasks = read_web_tasks(options.data)
    labels = None if options.labels is None else read_labels(options.labels)
    model = chat_model(options, options.out / "answers", prefix="judge-")
    assert model is not None
    from rich.console import Console  # large packages, after what can be checked without them

    from bepa_torchrl.experiment.web_run import judge_evaluation
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress

    with noting(options), ConsoleProgress(Console(stderr=True)) as progress:
        try:
            return judge_evaluation(tasks, options.trajectories, model, options.out, labels=labels, progress=progress)
        finally:
            print(f"judge: {model.usage.summary(model.endpoint.price)}", file=sys.stderr)
