"""Case sheets: an expert's trace, its conversion and the self-rollout of one task, step by step under each other."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from textwrap import shorten, wrap
from typing import cast

from matplotlib.figure import Figure
from PIL import Image
from tensordict import TensorDictBase

from bepa_torchrl.analysis.figures.files import Row
from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.commands.output import printable

COLUMNS = 8  #: steps that a sheet shows of each trace: the first ones and the last
_WIDTH = 480  #: of a screenshot in a sheet, pixels
_COLUMN, _ROW, _TEXT = 2.1, 2.6, 1.35  #: width of a column, least height of a row, height of titles and text, inches
_LINES, _LINE = 8, 34  #: of the text under a screenshot; characters per line


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step in a sheet: its 0-based number, the screenshot before it (PNG; empty if there is none), and its text."""

    number: int
    png: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """One task's traces by kind, ``expert``, ``converted`` and ``self_rolled``; kinds without a trace are left out."""

    task_id: str
    instruction: str
    traces: dict[str, tuple[ShownStep, ...]]


def find_cases(
    traces: Sequence[ExpertTrace], converted: TaskTraceCache, self_rolled: TaskTraceCache, limit: int
) -> Iterator[Case]:
    """The first ``limit`` tasks with all three traces; fewer if there are fewer."""
    caches = {"converted": converted, "self_rolled": self_rolled}
    complete: dict[str, ExpertTrace] = {}
    for trace in traces:
        if all(trace.task_id in cache for cache in caches.values()):
            complete.setdefault(trace.task_id, trace)
    for trace in islice(complete.values(), limit):
        texts = [step.intent or step.call or step.pyautogui for step in trace.steps]
        shots = zip(trace.screenshots, texts, strict=True)
        shown = {"expert": tuple(ShownStep(i, png, text) for i, (png, text) in enumerate(shots))}
        shown |= {kind: _steps(row_list(cache.get_trace(trace.task_id))) for kind, cache in caches.items()}
        yield Case(trace.task_id, trace.instruction, shown)


def case_rows(case: Case) -> list[Row]:
    """Task, kind of the trace, 0-based step, and its text."""
    return [
        {"task": case.task_id, "trace": kind, "step": step.number, "text": step.text}
        for kind, steps in case.traces.items()
        for step in steps
    ]


def shown(steps: Sequence[ShownStep], columns: int = COLUMNS) -> list[ShownStep]:
    """All steps, or the first ``columns - 1`` and the last."""
    return list(steps) if len(steps) <= columns else [*steps[: columns - 1], steps[-1]]


def case_size(case: Case) -> tuple[float, float]:
    """(width, height) of a sheet in inches: each row has room for its tallest screenshot, its titles and its text."""
    columns = max(2, *(len(shown(steps)) for steps in case.traces.values()))
    pictures = [_small(step.png).size for steps in case.traces.values() for step in shown(steps) if step.png]
    tallest = max((height / width for width, height in pictures), default=0.0)
    return _COLUMN * columns, max(_ROW, _COLUMN * tallest + _TEXT) * len(case.traces)


def draw_case(figure: Figure, case: Case) -> None:
    """A row per trace, a column per step.

    Screenshots are at the top of their cells, so that what a cell has more than its screenshot is room for the text.
    """
    columns = max(len(shown(steps)) for steps in case.traces.values())
    grid = figure.subplots(len(case.traces), columns, squeeze=False)
    for axis in grid.flat:
        axis.axis("off")
    for axes, (kind, steps) in zip(grid, case.traces.items(), strict=True):
        for axis, step in zip(axes, shown(steps), strict=False):
            if step.png:
                axis.imshow(_small(step.png))
                axis.set_anchor("N")
            title = f"{kind}, step {step.number + 1} of {len(steps)}"
            axis.set_title(title, fontsize=7, parse_math=False)
            text = "\n".join(_lines(step.text))
            axis.text(0, -0.04, text, transform=axis.transAxes, va="top", fontsize=6, parse_math=False)
    title = shorten(printable(f"{case.task_id}: {case.instruction}"), 150)
    figure.suptitle(title, fontsize=9, parse_math=False)


def _steps(rows: Sequence[TensorDictBase]) -> tuple[ShownStep, ...]:
    return tuple(ShownStep(i, cast(bytes, row[K.SCREENSHOT]), cast(str, row[K.RESPONSE])) for i, row in enumerate(rows))


def _lines(text: str) -> list[str]:
    """The beginning of a text, without control characters."""
    lines = [part for line in text.splitlines() for part in wrap(printable(line), _LINE)]
    return [*lines[: _LINES - 1], "…"] if len(lines) > _LINES else lines


def _small(png: bytes) -> Image.Image:
    """A screenshot of any size at a width that a sheet can show."""
    with Image.open(io.BytesIO(png)) as file:
        picture = file.convert("RGB")
    picture.thumbnail((_WIDTH, _WIDTH))
    return picture
