"""``osworld-gym``: what works on this machine (``doctor``), and what there is to do (``tasks``).

Exit status: 0 all is well, 1 a check failed, 2 bad input, 3 the infrastructure failed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

from osworld_gym import __version__
from osworld_gym.desktops.checks import KNOWN_DIFFERENCES, run_checks
from osworld_gym.desktops.registry import PROVIDERS, make_desktop
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.tasks.checks import check_task
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites import load_suite
from osworld_gym.tasks.task import Task

FAILED, BAD_INPUT, INFRASTRUCTURE = 1, 2, 3
LIBRARIES = ("gymnasium", "torch", "torchrl", "transformers")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; an error is one line on standard error."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except (TaskError, ValueError) as error:
        print(f"osworld-gym: {error}", file=sys.stderr)
        return BAD_INPUT
    except DesktopError as error:
        print(f"osworld-gym: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    except BrokenPipeError:  # ``osworld-gym tasks list | head``
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="osworld-gym", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"osworld-gym {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    doctor = commands.add_parser("doctor", help="which providers work on this machine")
    doctor.add_argument("--provider", choices=sorted(PROVIDERS), help="this one only; exit 3 when it does not work")
    doctor.add_argument("--checks", action="store_true", help="run the whole Desktop contract, exit 1 when it fails")
    doctor.set_defaults(command=_doctor)
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
    return parser


def _doctor(arguments: argparse.Namespace) -> int:
    print(f"osworld-gym {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {_version(name)}" for name in LIBRARIES))
    names = [arguments.provider] if arguments.provider else list(PROVIDERS)
    works = [_try_provider(name) for name in names]
    if not any(works):
        return INFRASTRUCTURE
    if not arguments.checks:
        return 0
    sound = [_contract(name) for name, fine in zip(names, works, strict=True) if fine]
    return 0 if all(sound) else FAILED


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _try_provider(name: str) -> bool:
    """Makes one desktop, resets it, looks at it; prints one line."""
    start = perf_counter()
    try:
        with make_desktop(name) as desktop:
            desktop.reset(0)
            width, height = desktop.screenshot().size
    except (DesktopError, ImportError, OSError) as error:
        print(f"{name:10} does not work here: {error}")
        return False
    print(f"{name:10} works: {width}×{height}, first screenshot after {perf_counter() - start:.2f} s")
    return True


def _contract(name: str) -> bool:
    results = run_checks(lambda: make_desktop(name), KNOWN_DIFFERENCES.get(name))
    for result in results:
        print(f"  {name}: {result.outcome:6} {result.name} ({result.seconds:.2f} s) {result.detail}".rstrip())
    return all(result.outcome != "failed" for result in results)


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


if __name__ == "__main__":
    sys.exit(main())
