"""``bepa status RUN``: progress, throughput, failures and estimated end of a run, from its folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

_HELP = "progress, throughput, failures and estimated end of a run"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("status", help=_HELP, description=f"Prints {_HELP}, from its folder alone.")
    parser.add_argument("run", type=Path, help="the run's folder, such as runs/NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.set_defaults(program=status, needs_extra=False)


def status(options: argparse.Namespace) -> int:
    """Prints the state."""
    from bepa_torchrl.monitoring.status import report, run_status
    from bepa_torchrl.storage.json_lines import finite

    state = run_status(options.run)
    print(json.dumps(finite(state), allow_nan=False) if options.json else "\n".join(report(state)))
    return 0
