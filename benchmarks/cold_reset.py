"""A cold reset of this checkout against another one, in turn. ``python -m benchmarks.cold_reset --against HEAD~5``.

A cold reset starts a new desktop without a warm pool and takes its first unchanging frame. Both codes run in child
processes of the same Python, alternately, so that a noisy machine affects them alike.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.section import write_section

ROOT = Path(__file__).parents[1]
#: runs in a child: prints a JSON list of seconds, one of each reset; the first two also start the keeper
RESETS = """
import json, sys, time
from osworld_gym.desktops.local.desktop import LocalDesktop
seconds = []
with LocalDesktop(template=None) as desktop:
    for seed in range(int(sys.argv[1]) + 2):
        start = time.perf_counter()
        desktop.reset(seed)
        desktop.screenshot()
        seconds.append(time.perf_counter() - start)
print(json.dumps(seconds[2:]))
"""


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The files of another commit of this repository, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-f", folder, commit], check=True)
        try:
            compileall.compile_dir(folder, quiet=2)  # as an installed package is; a desktop cannot write bytecode
            yield Path(folder)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", folder], check=True)


def described(commit: str) -> str:
    """The abbreviated name and the date of a commit."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h %cs", commit]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def resets(code: Path, number: int) -> list[float]:
    """Seconds of ``number`` cold resets with the packages in the folder ``code``."""
    command = [sys.executable, "-c", RESETS, str(number)]
    environment = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(command, cwd=code, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    return list(json.loads(done.stdout))


def compare(other: Path, number: int, turns: int) -> tuple[list[float], list[float]]:
    """Seconds of the other code's resets and of this one's."""
    before: list[float] = []
    after: list[float] = []
    for _ in range(turns):
        before += resets(other, number)
        after += resets(ROOT, number)
    return before, after


def table(commit: str, before: list[float], after: list[float]) -> str:
    """Markdown: p50 and p99 of both, and their ratios."""
    lines = [f"| cold reset and first frame, s | {commit} | this code | ratio |", "|---|---|---|---|"]
    for name, q in (("p50", 50), ("p99", 99)):
        old, new = (float(np.percentile(seconds, q)) for seconds in (before, after))
        lines.append(f"| {name} of {len(after)} | {old:.3f} | {new:.3f} | {new / old:.2f}× |")
    return "\n".join([*lines, "", f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", default="HEAD", help="commit whose code is the baseline (default: HEAD)")
    parser.add_argument("--resets", type=int, default=15, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table to docs/desktops-results.md")
    arguments = parser.parse_args()
    with checkout(arguments.against) as other:
        text = table(described(arguments.against), *compare(other, arguments.resets, arguments.turns))
    if arguments.write:
        write_section("A cold reset, before and after", text)
    print(text)


if __name__ == "__main__":
    main()
