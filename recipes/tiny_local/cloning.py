"""Cloning data from recordings of oracles: turns about recorded screens.

A screen is of the expert's run on a known task, with the expert's own response; or of a native run on any task.
Encoding a screen costs more than all turns about it, so a native one has several, which are of three kinds:

- *plain*, of known tasks: the native oracle's response; a share of the prompts has the expert's plan;
- *swapped*: the native response, with the instruction of another task and the plan of this one, so that plans are
  followed, and labels read, that no instruction of the data is associated with;
- *grounding*: the native response, with its thought as the instruction.

Recordings have few seeds, so their windows are at few positions, and a model learns these by heart. Screens can
therefore be shifted by whole image tokens, with the points of their turns; what leaves at one side comes in at the
other. They have few of the themes as well, so that some screens get other colours.

All data are deterministic in their seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bepa_torchrl.experts.conversion import LAST_THOUGHT, step_thought
from bepa_torchrl.experts.plan import plan_from_trace
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.tasks.setup.themes import GRID
from osworld_gym.types import Action, Point, Screenshot
from recipes.tiny.turns import Screen, Turn

EXPERT = 0.2  #: share of screens of expert runs
ANY_TASK = 0.5  #: share of native screens that are of a task drawn from all; the others are of known tasks
OPENED = 0.03  #: share of the expert's turns that may be its first one
PLANNED = 0.35  #: share of plain turns whose prompt contains a plan
GROUNDED = 1.0  #: share of native screens that have a grounding turn as well
SHIFTED = 0.8  #: share of screens that are shifted, where shifting is on
RECOLOURED = 0.5  #: share of screens with other colours, where shifting is on
MARGIN = (60, 20)  #: (horizontal, vertical) distance in pixels that a shifted point keeps from the screen's edges
DONE = ("done", (Action("finished", content=""),))
EXPERT_DONE: tuple[str, tuple[Action, ...]] = (LAST_THOUGHT, (Action("finished"),))


@dataclass(frozen=True)
class Library:
    """Recordings, by task id.

    Args:
        native: runs of the native oracle, of known and unknown tasks.
        expert: runs of the expert.
        known: ids of the known tasks.
    """

    native: Mapping[str, Sequence[ExpertTrace]]
    expert: Mapping[str, Sequence[ExpertTrace]]
    known: tuple[str, ...]

    @classmethod
    def of(cls, native: Iterable[ExpertTrace], expert: Iterable[ExpertTrace], known: Iterable[str]) -> Library:
        """Sorts traces by task; a task requires at least one trace of each style.

        Raises:
            ValueError: a task has traces of one style only, or there is no known task.
        """
        found: list[dict[str, list[ExpertTrace]]] = []
        for traces in (native, expert):
            found.append({})
            for trace in traces:
                found[-1].setdefault(trace.task_id, []).append(trace)
        if found[0].keys() != found[1].keys():
            lacking = sorted(found[0].keys() ^ found[1].keys())
            raise ValueError(f"cloning requires recordings of both styles; {lacking} have only one: record them")
        chosen = tuple(sorted(set(known) & found[0].keys()))
        if not chosen:
            raise ValueError("cloning requires recordings of known tasks, got none: record them")
        return cls(found[0], found[1], chosen)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Ids of all tasks, sorted."""
        return tuple(sorted(self.native))


def sample(library: Library, seed: int, *, always_plain: bool = False) -> Screen:
    """One recorded screen with its turns, of all kinds.

    Args:
        library: the recordings.
        seed: the seed of all choices.
        always_plain: whether a known task's screen has a turn without a plan in any case, so that a plan comes on top.
    """
    rng = random.Random(f"local cloning {seed}")
    if rng.random() < EXPERT:
        return _expert(library, rng)
    trace = rng.choice(library.native[rng.choice(library.tasks if rng.random() < ANY_TASK else library.known)])
    index = rng.randrange(len(trace.steps) + 1)
    thought, actions = DONE if index == len(trace.steps) else (trace.steps[index].intent, trace.steps[index].actions)
    last = trace.steps[index - 1].intent if index else None
    known = trace.task_id in library.known
    turns = []
    if known:
        plan = _plan(library, trace, rng) if rng.random() < PLANNED else None
        turns.append(Turn(trace.instruction, thought, actions, plan, last))
        if plan is not None and always_plain:
            turns.append(Turn(trace.instruction, thought, actions, None, last))
    for _ in range(1 if known else 2):
        turns.append(Turn(_instruction(library, rng), thought, actions, _plan(library, trace, rng), last))
    if rng.random() < GROUNDED and index < len(trace.steps):
        turns.append(Turn(thought, thought, actions))
    return _screen(trace, index, turns)


def grounding(library: Library, seed: int) -> Screen:
    """One recorded screen of any task with its grounding turn only."""
    rng = random.Random(f"local grounding {seed}")
    trace = rng.choice(library.native[rng.choice(library.tasks)])
    index = rng.randrange(len(trace.steps))
    step = trace.steps[index]
    return _screen(trace, index, [Turn(step.intent, step.intent, step.actions)])


def shifted(screen: Screen, seed: int) -> Screen:
    """A screen moved by random whole image tokens; a share, and those without another position, stay as they are.

    Args:
        screen: the screen; its size is a multiple of an image token's.
        seed: the seed of the shift.
    """
    rng = random.Random(f"local shift {seed}")
    if rng.random() >= SHIFTED:
        return screen
    points = [
        p for turn in screen.turns for action in turn.actions for p in (action.start, action.end) if p is not None
    ]
    height, width, _ = screen.pixels.shape
    dx, dy = (
        rng.choice(_shifts([point[axis] for point in points], size, MARGIN[axis]))
        for axis, size in ((0, width), (1, height))
    )
    pixels = np.roll(screen.pixels, (dy, dx), axis=(0, 1))
    return Screen(pixels, (), tuple(replace(turn, actions=_moved(turn.actions, dx, dy)) for turn in screen.turns))


def _shifts(at: Sequence[float], size: int, margin: int) -> list[int]:
    """Distances, multiples of an image token's side, after which all points are inside the margins; at least 0."""
    low, high = min(at, default=size / 2), max(at, default=size / 2)
    return [d for d in range(-size, size, GRID) if margin <= low + d and high + d < size - margin] or [0]


def _moved(actions: Sequence[Action], dx: int, dy: int) -> tuple[Action, ...]:
    def moved(point: Point | None) -> Point | None:
        return None if point is None else (point[0] + dx, point[1] + dy)

    return tuple(replace(action, start=moved(action.start), end=moved(action.end)) for action in actions)


def recoloured(screen: Screen, seed: int) -> Screen:
    """A screen with its colour channels in random order, half of the time inverted; a share stays as it is."""
    rng = random.Random(f"local colours {seed}")
    if rng.random() >= RECOLOURED:
        return screen
    pixels = screen.pixels[..., rng.sample(range(3), 3)]
    return replace(screen, pixels=255 - pixels if rng.random() < 0.5 else pixels)


def batch(library: Library, step: int, size: int, *, always_plain: bool = False, shift: bool = False) -> list[Screen]:
    """The screens of a training step, see :func:`sample`; with ``shift`` :func:`shifted`, :func:`recoloured`."""
    numbers = range(step * size, (step + 1) * size)
    screens = [sample(library, number, always_plain=always_plain) for number in numbers]
    if not shift:
        return screens
    return [recoloured(shifted(s, number), number) for s, number in zip(screens, numbers, strict=True)]


def grounding_batch(library: Library, step: int, size: int) -> list[Screen]:
    """The screens of one training step of the first phase, see :func:`grounding`."""
    return [grounding(library, step * size + i) for i in range(size)]


def _expert(library: Library, rng: random.Random) -> Screen:
    trace = rng.choice(library.expert[rng.choice(library.known)])
    first = 0 if rng.random() < OPENED else 1
    index = rng.randrange(first, len(trace.steps) + 1)
    step = trace.steps[index] if index < len(trace.steps) else None
    thought, actions = EXPERT_DONE if step is None else (step_thought(step), step.actions)
    last = step_thought(trace.steps[index - 1]) if index else None
    return _screen(trace, index, [Turn(trace.instruction, thought, actions, None, last)])


def _plan(library: Library, trace: ExpertTrace, rng: random.Random) -> str:
    """The plan of one of the expert's runs on the trace's task."""
    return plan_from_trace(rng.choice(library.expert[trace.task_id]))


def _instruction(library: Library, rng: random.Random) -> str:
    return rng.choice(library.native[rng.choice(library.tasks)]).instruction


def _screen(trace: ExpertTrace, index: int, turns: Sequence[Turn]) -> Screen:
    """The frame before a step, or after the last one."""
    png = trace.screenshots[index] if index < len(trace.steps) else trace.final_screenshot
    assert png is not None
    return Screen(Screenshot(png=png).pixels, (), tuple(turns))
