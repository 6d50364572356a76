"""``bepa why RUN --update N`` or ``--trace ID``: what an optimiser step was made of, or what a trace did."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

_HELP = "what an update was made of, or which updates a trace was in"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("why", help=_HELP, description=f"Prints {_HELP}, from a run's folder alone.")
    parser.add_argument("run", type=Path, help="the run's folder, or that of one of its methods")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--update", type=int, metavar="N", help="the step after which the policy's version is N")
    asked.add_argument(
        "--trace", metavar="ID", help="an expert's trace or plan by the start of its hash, a task, or a rollout 12-3"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.set_defaults(program=why, needs_extra=False)


def why(options: argparse.Namespace) -> int:
    """Prints a report per method that has the update or the trace.

    Raises:
        RecordError: no method has.
    """
    from bepa_torchrl.analysis.prepared import expert_files, plans_by_hash, prepared_provenance
    from bepa_torchrl.analysis.records import find_records
    from bepa_torchrl.analysis.why import TraceReport, UpdateReport, why_trace, why_update
    from bepa_torchrl.storage.json_lines import RecordError, finite
    from osworld_gym.commands.output import printable

    reports: list[UpdateReport | TraceReport] = []
    problems = []
    for record in find_records(options.run):
        try:
            plans = plans_by_hash(record)
            if options.update is not None:
                reports.append(why_update(record, options.update, plans))
            else:
                seeds, files = prepared_provenance(record), expert_files(record)
                reports.append(why_trace(record, options.trace, seeds, files, plans))
        except RecordError as error:
            problems.append(error)
    if not reports:
        raise problems[0]
    if options.json:
        print(json.dumps(finite({"run": str(options.run), "methods": [report.to_json() for report in reports]})))
    else:
        print("\n".join(printable(line) for report in reports for line in report.lines()))
    return 0
