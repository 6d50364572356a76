"""``bepa experts``: what is made of an expert's logs. Each action is a function below with its arguments."""

from __future__ import annotations

import argparse
import json

_CHECK = "what is in folders of expert logs: a line per run, and what it is usable for"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its actions."""
    text = "an expert's logs: what is in them"
    parser = commands.add_parser("experts", help=text, description=text)
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    _add_check(actions)


def _add_check(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("check", help=_CHECK, description=f"Prints {_CHECK}. Reads no pixels, runs no code.")
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="NAME:FOLDER, or FOLDER: each run's own family")
    parser.add_argument("--suite", help="skip runs of tasks that are not in it: a suite's name or folder")
    parser.add_argument("--split", default="all", help="of the suite (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.set_defaults(program=check, needs_extra=False)


def check(options: argparse.Namespace) -> int:
    """Prints the report. Exit code 2 if no run can be read."""
    from bepa_torchrl.experts.readers.check import check_sources
    from bepa_torchrl.failures import BAD_INPUT
    from osworld_gym.tasks.suites.registry import load_suite

    tasks = None if options.suite is None else load_suite(options.suite).split(options.split)
    found = check_sources(options.sources, tasks)
    print(json.dumps(found.to_json()) if options.json else "\n".join(found.lines()))
    return BAD_INPUT if all(run.skipped for run in found.runs) else 0
