"""``bepa experts check``: what is in folders of expert logs."""

from __future__ import annotations

import argparse
import json

from osworld_gym.commands.arguments import add_import

_HELP = "what is in folders of expert logs: a line per run, and what it is usable for"


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the action."""
    parser = actions.add_parser("check", help=_HELP, description=f"Prints {_HELP}. Reads no pixels, runs no code.")
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="NAME:FOLDER, or FOLDER: each run's own family")
    parser.add_argument("--suite", help="skip runs of tasks that are not in it: a suite's name or folder")
    parser.add_argument("--split", help="split of --suite (default: all)")
    add_import(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.set_defaults(program=check, needs_extra=False)


def check(options: argparse.Namespace) -> int:
    """Prints the report. Exit code 2 if no run can be read."""
    from bepa_torchrl.experts.readers.check import check_sources
    from bepa_torchrl.failures import BAD_INPUT
    from osworld_gym.tasks.suites.registry import load_suite

    if options.suite is None and options.split is not None:
        raise ValueError(f"--split={options.split} is one of a suite; add --suite NAME, or leave --split out")
    tasks = None if options.suite is None else load_suite(options.suite).split(options.split or "all")
    report = check_sources(options.sources, tasks)
    print(json.dumps(report.to_json()) if options.json else "\n".join(report.lines()))
    return BAD_INPUT if all(run.skipped for run in report.runs) else 0
