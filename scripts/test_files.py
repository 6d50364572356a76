"""Runs each test file with a marker in a process of its own: ``python -m scripts.test_files ray --timeout 600``.

The nightly tests of it alone: ``python -m scripts.test_files ray --nightly``. Other options are pytest's. No file
begins after the time TESTS_START_BEFORE, in seconds since 1970; those that did not begin are named, and fail nothing.

A process then joins few Ray clusters in its life, as a run does. One that had joined and left several was ended by
SIGSEGV, and with it all tests that were to follow, without a word about where it was.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
NO_TESTS = 5  #: pytest's exit status if all tests of a file are deselected


def marked_files(marker: str, folder: Path = TESTS) -> list[Path]:
    """The test files in which ``mark.MARKER`` occurs."""
    named = re.compile(rf"\bmark\.{marker}\b")
    return sorted(path for path in folder.rglob("test_*.py") if named.search(path.read_text(encoding="utf-8")))


def outcome(status: int) -> str:
    """What an exit status says: ``passed``, ``failed``, or the signal that ended the process."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return {0: "passed", NO_TESTS: "no tests"}.get(status, f"failed (exit status {status})")


def run_files(files: Sequence[Path], options: Sequence[str]) -> dict[Path, str]:
    """Runs pytest on each file that begins in time; returns what became of it. Prints a line for each."""
    found: dict[Path, str] = {}
    for path in files:
        if time.time() > float(os.environ.get("TESTS_START_BEFORE", "inf")):
            print(f"not run: {path.name}", flush=True)
            continue
        start = time.monotonic()
        status = subprocess.run([sys.executable, "-m", "pytest", *options, str(path)], check=False).returncode
        found[path] = outcome(status)
        print(f"{path.name}: {found[path]}, {time.monotonic() - start:.0f} s", flush=True)
    return found


def pytest_options(marker: str, options: Sequence[str]) -> list[str]:
    """Selects the tests with this marker that are not nightly, or with ``--nightly`` those that are."""
    others = [option for option in options if option != "--nightly"]
    return ["-m", f"{marker} and {'nightly' if len(others) < len(options) else 'not nightly'}", *others]


def main(arguments: Sequence[str]) -> int:
    """Runs the files in random order; the exit status is 1 if one failed, and 2 if no file has such tests."""
    marker, *options = arguments
    files = marked_files(marker)
    random.shuffle(files)
    found = run_files(files, pytest_options(marker, options))
    if not files or (len(found) == len(files) and set(found.values()) == {"no tests"}):
        print(f"no test file has tests marked {marker}; fix: a marker of pyproject.toml", file=sys.stderr)
        return 2
    wrong = {path: said for path, said in found.items() if said not in ("passed", "no tests")}
    left_out = f", {len(files) - len(found)} not run" if len(found) < len(files) else ""
    print(f"{len(found) - len(wrong)} of {len(files)} files passed{left_out}")
    for path, said in wrong.items():
        print(f"{path}: {said}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
