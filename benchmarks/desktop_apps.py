"""Start-up time and memory of each application on a local desktop with the home template.

    python -m benchmarks.desktop_apps [RUNS [APPLICATION ...]]

Each run is a fresh desktop, 1920×1080; the table has seconds to the window and to an unchanging screen. Memory is the
proportional set size of all processes inside, minus that of the empty desktop. After the first run, whose figures are
in brackets, the files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from osworld_gym.desktops.home_template.applications import App, installed
from osworld_gym.desktops.local.desktop import LocalDesktop

DEADLINE = 120.0  # seconds for a window
_PSS = "cat /proc/[0-9]*/smaps_rollup 2>/dev/null | awk '/^Pss:/ {s += $2} END {print s}'"


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds from the command to the window and to an unchanging screen; MB more than empty."""

    window: float
    still: float
    memory: float


def measure(app: App) -> Start:
    """Starts the application on a fresh desktop and measures it."""
    desktop = LocalDesktop(1920, 1080)
    with desktop:
        desktop.reset(0)
        empty = _memory(desktop)
        start = time.monotonic()
        desktop.launch(app.command, shell=False, window=False)
        _until(lambda: any(app.title in window["title"] for window in desktop.windows()), app.name)
        window = time.monotonic() - start
        desktop.wait_still(10.0)
        still = time.monotonic() - start
        return Start(window, still, _memory(desktop) - empty)


def _memory(desktop: LocalDesktop) -> float:
    return int(desktop.run(_PSS, shell=True).output) / 1000


def _until(there: Callable[[], bool], name: str) -> None:
    end = time.monotonic() + DEADLINE
    while not there():
        if time.monotonic() > end:
            raise SystemExit(f"{name}: no window within {DEADLINE:.0f} s")
        time.sleep(0.02)


def main(runs: int, names: list[str]) -> None:
    """Prints the table, with the machine's load before and after."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {runs} runs each, median (first)\n")
    print("| application | window s | still s | memory MB |\n|---|---|---|---|")
    for app in installed():
        if names and app.name not in names:
            continue
        starts = [measure(app) for _ in range(runs)]
        columns = []
        for field in ("window", "still"):
            values = [getattr(start, field) for start in starts]
            columns.append(f"{statistics.median(values):.1f} ({values[0]:.1f})")
        memory = statistics.median(start.memory for start in starts)
        print(f"| {app.name} | {' | '.join(columns)} | {memory:.0f} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUNS", type=int, nargs="?", default=3)
    parser.add_argument("names", metavar="APPLICATION", nargs="*", default=[])
    given = parser.parse_args()
    main(given.runs, given.names)
