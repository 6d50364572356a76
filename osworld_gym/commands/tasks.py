"""``osworld-gym tasks list | show | check``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from osworld_gym.commands.status import FAILED
from osworld_gym.desktops.registry import PROVIDERS, make_desktop
from osworld_gym.errors import TaskError
from osworld_gym.tasks.checks import check_task
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites import load_suite
from osworld_gym.tasks.task import Task


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    tasks = commands.add_parser("tasks", help="list, show and check tasks").add_subparsers(required=True)
    for name, command, text in (
        ("list", _list, "one line per task: id, domain, tags, instruction"),
        ("show", _show, "one task as JSON"),
        ("check", _check, "verifier 0 on the fresh desktop, 0 for doing nothing, 1 after the oracle"),
    ):
        sub = tasks.add_parser(name, help=text, description=text)
        sub.add_argument("--suite", default="sim", help="sim, local, or an OSWorld evaluation_examples folder")
        sub.set_defaults(command=command)
        if name == "show":
            sub.add_argument("task", help="task id")
        else:
            sub.add_argument("--split", default="all", help="of the suite (default: all)")
        if name == "check":
            sub.add_argument("--provider", choices=sorted(PROVIDERS), help="default: the suite's own")
            sub.add_argument("--seed", type=int, default=0)


def _list(arguments: argparse.Namespace) -> int:
    for task in load_suite(arguments.suite).split(arguments.split):
        print("\t".join((task.id, task.domain, ",".join(task.tags), " ".join(task.instruction.split()))))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    task = load_suite(arguments.suite).task(arguments.task)
    print(json.dumps(task.to_json(), indent=2, ensure_ascii=False))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    suite = load_suite(arguments.suite)
    tasks = _with_oracle(suite, suite.split(arguments.split))
    provider = arguments.provider or (suite.name if suite.name in PROVIDERS else None)
    if provider is None:
        raise TaskError(f"suite {suite.name!r} has no provider of its own: name one with --provider")
    failed = 0
    with make_desktop(provider) as desktop:
        for task in tasks:
            problems = check_task(desktop, task, arguments.seed)
            failed += bool(problems)
            for problem in problems:
                print(f"{task.id}: {problem}")
    print(f"{len(tasks) - failed} of {len(tasks)} tasks of {suite.name}/{arguments.split} are sound")
    return FAILED if failed else 0


def _with_oracle(suite: Suite, tasks: Sequence[Task]) -> list[Task]:
    found = [task for task in tasks if task.oracle is not None]
    if not found:
        raise TaskError(f"no task of suite {suite.name!r} has an oracle, so none can be checked")
    return found
