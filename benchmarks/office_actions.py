"""Actions in LibreOffice until the returned frame, this checkout against another one, in turn.

    python -m benchmarks.office_actions --against HEAD~5 [--rounds 2] [--write]

Every action of :data:`ACTIONS` in Calc, Writer and Impress at 1920×1080, with a second between two. *Late* is the share
of actions whose frame differed in more than 200 pixels from each of several frames of the half second around a second
later: one of them is in the same phase of a moving selection frame. Both codes run in child processes of the same
Python, alternately, on the same desktop template.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.cold_reset import ROOT, checkout, described
from benchmarks.section import write_section

APPS = ("calc", "writer", "impress")
#: (kind, arguments), points in screen pixels
ACTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("click", {"start": (700.0, 500.0)}),
    ("type", {"content": "hello "}),
    ("click", {"start": (300.0, 400.0)}),
    ("hotkey", {"key": "ctrl b"}),
    ("type", {"content": "12"}),
    ("press_enter", {}),
    ("hotkey", {"key": "alt o"}),
    ("hotkey", {"key": "escape"}),
    ("hotkey", {"key": "escape"}),
    ("scroll", {"start": (900.0, 540.0), "direction": "down"}),
    ("hotkey", {"key": "ctrl z"}),
    ("right_single", {"start": (500.0, 500.0)}),
    ("hotkey", {"key": "escape"}),
    ("hotkey", {"key": "ctrl a"}),
    ("click", {"start": (500.0, 300.0)}),
)
#: runs in a child: prints a JSON list of [seconds to the frame, whether that was late]
STEPS = """
import io, json, sys, time
from PIL import Image, ImageChops
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.types import Action
out = []
def grey(shot):
    return Image.open(io.BytesIO(shot.png)).convert("L")
with LocalDesktop(1920, 1080) as desktop:
    desktop.reset(0)
    desktop.setup({"type": "launch", "parameters": {"command": ["soffice", "--" + sys.argv[1]], "window": True}})
    desktop.wait_still(20.0)
    for kind, arguments in json.loads(sys.argv[2]):
        start = time.perf_counter()
        desktop.perform([Action(kind, **arguments)])
        frame = desktop.screenshot()
        seconds = time.perf_counter() - start
        time.sleep(0.75)
        later, end = [], time.perf_counter() + 0.5
        while not later or time.perf_counter() < end:
            later.append(grey(desktop.screenshot()))
        changed = [ImageChops.difference(grey(frame), shot).point([0] + [255] * 255).histogram()[255] for shot in later]
        out.append([seconds, min(changed) > 200])
print(json.dumps(out))
"""


def steps(code: Path, app: str) -> list[tuple[float, bool]]:
    """(seconds, whether the frame was late) of every action, with the packages in ``code``."""
    command = [sys.executable, "-c", STEPS, app, json.dumps(ACTIONS)]
    environment = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(command, cwd=code, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    return [(float(seconds), bool(late)) for seconds, late in json.loads(done.stdout)]


def row(name: str, before: list[tuple[float, bool]], after: list[tuple[float, bool]]) -> str:
    """One line of the table."""
    cells = []
    for part in (50, 90):
        old, new = (float(np.percentile([seconds for seconds, _ in times], part)) for times in (before, after))
        cells.append(f"{old:.2f} → {new:.2f} ({new / old:.2f}×)")
    late = " → ".join(f"{np.mean([late for _, late in times]):.0%}" for times in (before, after))
    return f"| {name} | {len(after)} | {' | '.join(cells)} | {late} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", default="HEAD", help="commit whose code is the baseline (default: HEAD)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the table to docs/desktops-results.md")
    arguments = parser.parse_args()
    before: dict[str, list[tuple[float, bool]]] = {app: [] for app in APPS}
    after: dict[str, list[tuple[float, bool]]] = {app: [] for app in APPS}
    with checkout(arguments.against) as other:
        for _ in range(arguments.rounds):
            for app in APPS:
                before[app] += steps(other, app)
                after[app] += steps(ROOT, app)
    lines = [f"Against {described(arguments.against)}: seconds from the action to its frame, before → after.", ""]
    lines += ["| application | actions | p50 s | p90 s | late |", "|---|---|---|---|---|"]
    lines += [row(app.capitalize(), before[app], after[app]) for app in APPS]
    lines += [row("all", *([time for app in APPS for time in times[app]] for times in (before, after)))]
    text = "\n".join([*lines, "", f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."])
    if arguments.write:
        write_section("An action in LibreOffice, before and after", text)
    print(text)


if __name__ == "__main__":
    main()
