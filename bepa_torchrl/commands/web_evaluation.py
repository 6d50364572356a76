"""``bepa eval suite=online_mind2web``: plays in a browser; a judge scores that, or trajectories of any agent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bepa_torchrl.commands.arguments import check_new
from bepa_torchrl.commands.experts.arguments import add_endpoint, chat_model, given_of_endpoint, noting
from bepa_torchrl.commands.hosted_policy import check_not_hosted, counted, hosted_model, temperature_of

if TYPE_CHECKING:
    from bepa_torchrl.endpoint import ChatModel
    from bepa_torchrl.experiment.settings import Settings

WEB = "online_mind2web"


def add_web(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the suite."""
    add_endpoint(parser, prefix="judge-", title=f"the judge of suite={WEB}")
    parser.add_argument(
        "--trajectories",
        type=Path,
        metavar="FOLDER",
        help=f"of {WEB}: judge TASK_ID/result.json and trajectory/ there, and play nothing",
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help=f"human labels of {WEB}, JSON: task id to 0, 1 or 2"
    )


def check_no_judge(options: argparse.Namespace) -> None:
    """Raises ValueError if an option of the suite is given with another one."""
    given = [name for name in ("trajectories", "labels") if getattr(options, name) is not None]
    if given := [*given, *given_of_endpoint(options, "judge-")]:
        raise ValueError(f"--{given[0]} is read with suite={WEB} only; leave it out")


def evaluate_web(options: argparse.Namespace, overrides: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Plays and judges, or judges what ``--trajectories`` names; returns the outcomes and how they were measured.

    Raises:
        ValueError, TaskError: bad input. EndpointError: an endpoint gave no answer; what was played and judged is kept.
        DesktopError, OSError: infrastructure; what was played is kept.
    """
    if options.check is not None or options.osworld_layout:
        raise ValueError(
            "--oracle, --nothing and --osworld-layout are for tasks that are played with a verifier, and "
            f"suite={WEB} has a judge; leave them out"
        )
    if options.passes not in (None, 1):
        raise ValueError(f"--passes={options.passes}: suite={WEB} is played once; leave it out")
    for name in ("data", "out"):
        if getattr(options, name) is None:
            raise ValueError(f"suite={WEB} requires --data Online_Mind2Web.json and --out FOLDER; --{name} is missing")
    if options.trajectories is not None:
        check_not_hosted(options, "--trajectories")
        return _judge(options, overrides)
    return _play(options, overrides)


def _judge(options: argparse.Namespace, overrides: list[str]) -> tuple[list[Any], dict[str, Any]]:
    if overrides or options.steps is not None or options.temperature is not None:
        raise ValueError(
            "--trajectories judges trajectories that exist, and plays nothing; leave out settings, --steps and "
            "--temperature"
        )
    if options.judge_model is None:
        raise ValueError("--trajectories requires a judge: --judge-model NAME, and --judge-url URL")
    if not options.out.is_dir():
        check_new(options.out, "--out")
    from osworld_gym.tasks.suites.web import read_web_tasks

    tasks, labels = read_web_tasks(options.data), _labels(options)
    model = chat_model(options, options.out / "answers", prefix="judge-")
    assert model is not None
    from rich.console import Console  # large packages, after what can be checked without them

    from bepa_torchrl.experiment.web_run import judge_evaluation
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress

    with noting(options), _asked(model), ConsoleProgress(Console(stderr=True)) as progress:
        return judge_evaluation(tasks, options.trajectories, model, options.out, labels=labels, progress=progress)


def _play(options: argparse.Namespace, overrides: list[str]) -> tuple[list[Any], dict[str, Any]]:
    from bepa_torchrl.experiment.checks import COMMAND, HOSTED
    from bepa_torchrl.experiment.config import check
    from bepa_torchrl.experiment.tasks import make_tasks
    from osworld_gym.tasks.suites.web import read_web_tasks

    data = read_web_tasks(options.data)
    settings = _settings(options, overrides)
    if not options.out.is_dir():
        check_new(options.out, "--out")
    labels, temperature = _labels(options), temperature_of(options, 0.0)
    check(settings, COMMAND if options.policy_model is None else HOSTED)
    tasks = make_tasks(settings)
    hosted = hosted_model(options, overrides, settings, temperature)
    model = chat_model(options, options.out / "answers", prefix="judge-")
    from rich.console import Console  # large packages, after what can be checked without them

    from bepa_torchrl.evaluation.web.played import KeptForJudging
    from bepa_torchrl.experiment.evaluation_run import play_evaluation
    from bepa_torchrl.experiment.web_run import TRAJECTORIES, can_be_judged, judge_played
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress

    with noting(options), counted(hosted), _asked(model), ConsoleProgress(Console(stderr=True)) as progress:
        outcomes, facts = play_evaluation(
            settings,
            tasks,
            options.out,
            name=WEB,
            passes=1,
            temperature=temperature,
            progress=progress,
            hosted=hosted,
            judge=KeptForJudging(options.out / TRAJECTORIES),
            to_judge=partial(can_be_judged, options.out),
        )
        played = outcomes, facts | {"data": options.data.name}
        return judge_played(data, played, model, options.out, labels=labels, progress=progress)


def _settings(options: argparse.Namespace, overrides: list[str]) -> Settings:
    """The settings of an evaluation that plays. Raises ValueError: they name another suite, or a judge."""
    from bepa_torchrl.experiment.config import load_config, with_changes

    for given in overrides:
        if given.startswith(("env.suite=", "env=", "judge.")):
            instead = "--judge-model and its options" if given.startswith("judge.") else "--data FILE"
            raise ValueError(f"{given}: suite={WEB} takes {instead} instead; leave it out")
    steps = [] if options.steps is None else [f"env.max_steps={options.steps}"]
    settings = load_config(["env=web", *overrides, *steps], config_dir=options.config_dir)
    return with_changes(settings, {"env.suite": str(options.data)})


def _labels(options: argparse.Namespace) -> Mapping[str, bool | None] | None:
    from bepa_torchrl.evaluation.web.agreement import read_labels

    return None if options.labels is None else read_labels(options.labels)


@contextmanager
def _asked(model: ChatModel | None) -> Iterator[None]:
    """Prints at the end, also at an early one, what the judge was asked."""
    try:
        yield
    finally:
        if model is not None:
            print(f"judge: {model.usage.summary(model.endpoint.price)}", file=sys.stderr)
