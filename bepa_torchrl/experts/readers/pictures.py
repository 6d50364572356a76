"""Screenshots of a run folder: which file belongs to which step, checked by their headers only."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bepa_torchrl.experts.readers.log import Line

_FIRST = re.compile(r"step_0(?:_.*)?\.png")
_HEADER, _END = 24, 12  #: bytes of a PNG's signature and size, and of its end chunk


def png_size(path: Path) -> tuple[int, int]:
    """(width, height) of a PNG file, pixels, from its header; its end is checked, nothing is decoded.

    Raises:
        ValueError: not a complete PNG. OSError: not readable.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
        if not header.startswith(b"\x89PNG\r\n\x1a\n") or len(header) < _HEADER:
            raise ValueError(f"not a PNG: it begins with {header[:8]!r}")
        file.seek(-_END, os.SEEK_END)
        if file.read(_END)[4:8] != b"IEND":
            raise ValueError("the PNG is cut off")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


@dataclass
class Pictures:
    """The screenshots of one run.

    Args:
        before: the file before each step, or None.
        final: the file after the last step, or None.
        size: (width, height) of the screen, pixels; None if there is no screenshot.
        problems: sentences about what is missing.
    """

    before: list[Path | None] = field(default_factory=list)
    final: Path | None = None
    size: tuple[int, int] | None = None
    problems: list[str] = field(default_factory=list)


def find_pictures(
    folder: Path,
    steps: Sequence[Sequence[Line]],
    notes: Sequence[Line],
    taken: Literal["before", "after"],
    *,
    later: Collection[str] | None = None,
) -> Pictures:
    """The screenshots of a run.

    Args:
        folder: the run's folder.
        steps: the lines of each step.
        notes: lines without an action, which may name the first screenshot (``initial_state``).
        taken: whether a line's ``screenshot_file`` shows the screen before or after its action.
        later: names of the screenshots of later runs in the folder, which have replaced this one's of the same names,
            and its first screenshot; None: it is the last run.
    """
    pictures = Pictures()
    files = {number: _file_of(step[0 if taken == "before" else -1], number) for number, step in enumerate(steps, 1)}
    checked = [_checked(folder, files[number], f"step {number}", pictures, later or ()) for number in files]
    if taken == "before":
        pictures.before = checked
        return pictures
    name = _first(folder, notes) if later is None else None
    first = None
    if name is None:
        pictures.problems.append("no first screenshot (step_0*.png): no images of step 1")
    else:
        first = _checked(folder, name, "first screenshot", pictures)
    pictures.before, pictures.final = [first, *checked[:-1]], checked[-1] if checked else first
    return pictures


def screenshot_names(steps: Sequence[Sequence[Line]]) -> set[str]:
    """The names of the screenshots that the lines of a run have."""
    names = (_file_of(line, number) for number, step in enumerate(steps, 1) for line in step)
    return {name for name in names if isinstance(name, str)}


def _file_of(line: Line, number: int) -> object:
    return line.get("screenshot_file", f"step_{number}.png")


def _first(folder: Path, notes: Sequence[Line]) -> object:
    """The name of the first screenshot: the newest ``step_0*.png``, or what a note names."""
    try:
        names = sorted(name for name in os.listdir(folder) if _FIRST.fullmatch(name))
    except OSError:
        names = []
    if names:
        return names[-1]
    return next((note["initial_state"] for note in notes if "initial_state" in note), None)


def _checked(folder: Path, name: object, what: str, pictures: Pictures, later: Collection[str] = ()) -> Path | None:
    """The file if it is a complete PNG of the screen's size, else None with a problem."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        pictures.problems.append(f"{what}: expected the name of a screenshot in the run's folder, got {name!r:.80}")
        return None
    if name in later:
        pictures.problems.append(f"{what}: {name} is a screenshot of a later run in the same log")
        return None
    path = folder / name
    try:
        size = png_size(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        pictures.problems.append(f"{what}: {name} is not a readable screenshot ({reason})")
        return None
    pictures.size = pictures.size or size
    if size != pictures.size:
        pictures.problems.append(
            f"{what}: {name} has {size[0]}x{size[1]} pixels, others {pictures.size[0]}x{pictures.size[1]}"
        )
        return None
    return path
