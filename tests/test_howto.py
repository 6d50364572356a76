"""The how-to pages: each page's files are written into an empty folder, and its commands print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from repository import ROOT

PAGES = sorted(path for path in (ROOT / "docs" / "howto").glob("*.md") if path.name != "index.md")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.S | re.M)
TRAINS = "bepa train "  # takes more than a few seconds
SECONDS = 500


class Command(NamedTuple):
    """A line that the reader types, and what the page shows below it."""

    line: str
    output: str


def files(page: str) -> dict[str, str]:
    return {name: text for _, name, text in BLOCK.findall(page) if name}


def commands(page: str) -> Iterator[Command]:
    """The commands of the blocks ``console``, in order."""
    for language, _, text in BLOCK.findall(page):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                line, _, output = part.partition("\n")
                yield Command(line, output)


def pattern(output: str) -> str:
    """A regular expression of the output on a page: a line ``…`` is any lines, ``…`` in a line any text."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in output.split("\n")
    ]
    return "".join(lines[:-1])  # after the last line end there is no line


def run(command: Command, folder: Path) -> None:
    """Runs a command as in a terminal whose current folder is this one, and compares what it prints."""
    site = folder / "site"  # where the page's own package is installed
    line = re.sub(
        r"^pip install", f"pip install -q --no-index --no-deps --no-build-isolation --target {site}", command.line
    )
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert re.fullmatch(pattern(command.output), done.stdout), f"$ {command.line}\n{done.stdout}"


def write_files(page: str, folder: Path) -> None:
    for name, text in files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.stem == "policy" else path for path in PAGES],
    ids=lambda path: path.stem,
)
def test_a_page_works_from_an_empty_folder(path: Path, tmp_path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    write_files(page, tmp_path)
    quick = [command for command in commands(page) if TRAINS not in command.line]
    assert quick
    for command in quick:
        run(command, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in PAGES if f"$ {TRAINS}" in path.read_text(encoding="utf-8")], ids=lambda path: path.stem
)
def test_a_page_trains_from_an_empty_folder(path: Path, tmp_path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    write_files(page, tmp_path)
    for command in commands(page):
        if TRAINS in command.line:
            run(command, tmp_path)


def test_every_python_block_of_a_page_is_a_file_that_is_run() -> None:
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        assert [name for language, name, _ in BLOCK.findall(page) if language == "python" and not name] == [], path.name


def test_an_output_that_differs_is_found() -> None:
    assert re.fullmatch(pattern("a … b\n…\nc\n"), "a 1 b\nx\ny\nc\n")
    assert re.fullmatch(pattern("…\nc\n"), "c\n")
    assert not re.fullmatch(pattern("a … b\n"), "a 1 c\n")
    assert not re.fullmatch(pattern(""), "error\n")
