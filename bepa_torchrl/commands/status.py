"""``bepa status RUN``: progress, throughput, failures and estimated end of a run, from its folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_HELP = "progress, throughput, failures and estimated end of a run"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("status", help=_HELP, description=f"Prints {_HELP}, from its folder alone.")
    parser.add_argument("run", type=Path, help="the run's folder, such as runs/NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.set_defaults(program=status)


def status(options: argparse.Namespace) -> int:
    """Prints the state."""
    from bepa_torchrl.analysis.status import run_status

    found = run_status(options.run)
    print(json.dumps(found) if options.json else "\n".join(report(found)))
    return 0


def report(found: Mapping[str, Any]) -> Iterator[str]:
    """The state as lines of text."""
    yield f"{found['folder']}: {'running' if found['running'] else 'no process runs it'}"
    for name, method in found["methods"].items():
        state = "finished" if method["finished"] else f"iteration {method['iteration']} of {method['iterations']}"
        yield f"{name}: {state}, {_duration(method['seconds'])}, {method['episodes']:.0f} rollouts"
        if method["seconds_per_iteration"] is not None:
            pace = (
                f"{method['seconds_per_iteration']:.1f} s per iteration, {method['episodes_per_second']:.2f} rollouts/s"
            )
            yield f"  {pace}, {100 * method['collecting']:.0f} % of the time collecting"
        if not method["finished"] and method["seconds_left"] is not None:
            since = _duration(method["seconds_since_last"])
            yield f"  about {_duration(method['seconds_left'])} of training left; last iteration {since} ago"
        failures = ", ".join(f"{kind} {count:.0f}" for kind, count in method["failures"].items() if count)
        yield f"  failures: {failures or 'none'}"
        if method["newest"]:
            yield "  newest: " + ", ".join(f"{key} {value:.3g}" for key, value in method["newest"].items())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else (f"{minutes} min {rest:02d} s" if minutes else f"{rest} s")
