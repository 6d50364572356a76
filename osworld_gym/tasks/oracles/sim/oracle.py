"""SimOracle: solves a simulated task in a closed loop, in the style of a framework expert or of the policy."""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Mapping

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.sim.applications import TOGGLE
from osworld_gym.desktops.sim.desktop import SimDesktop
from osworld_gym.desktops.sim.goals import KINDS, Goal, reached
from osworld_gym.desktops.sim.scene import DESK
from osworld_gym.errors import TaskError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.oracles.sim.expert_habits import expert_step
from osworld_gym.tasks.oracles.sim.moves import Move, next_move, open_move, place_of, tab_move
from osworld_gym.tasks.oracles.sim.native_habits import native_step
from osworld_gym.tasks.task import Task

STYLES = ("expert", "native")
#: what goals of these kinds have besides ``kind``; ``empty``: nothing that the oracle requires; every other: ``file``
_FIELDS = {
    "set": ("values",),
    "mark": ("mark", "item"),
    "rename": ("file", "name"),
    "move": ("file", "folder"),
    "empty": (),
}


class SimOracle:
    """The oracle of one task; :meth:`next_step` works from any state of the desktop.

    Args:
        task: a task of the simulated suite (``task.oracle`` has ``type`` ``sim`` and ``goals``).
        style: ``expert``: launcher, shortcuts, search by typing, several inputs per step, Agent S2's verbose plan;
            ``native``: mouse, one primitive action per step, ``intent`` a short phrase like the policy's Thought.

    Raises:
        TaskError: the task has no goals of the simulated desktop.
        ValueError: unknown style.
    """

    def __init__(self, task: Task, style: str = "expert") -> None:
        if style not in STYLES:
            raise ValueError(f"unknown oracle style {style!r}; known: {', '.join(STYLES)}")
        oracle = task.oracle or {}
        goals = oracle.get("goals")
        if oracle.get("type") != "sim" or not isinstance(goals, (list, tuple)) or not goals:
            raise TaskError(f"task {task.id!r}: SimOracle requires oracle.type 'sim' and goals, got {task.oracle!r}")
        for goal in goals:
            kind = goal.get("kind") if isinstance(goal, Mapping) else None
            if kind not in KINDS:
                raise TaskError(f"task {task.id!r}: unknown goal {goal!r}; kinds: {', '.join(KINDS)}")
            needed = _FIELDS.get(kind, ("file",))
            if not all(key in goal for key in needed) or (kind == "set" and not isinstance(goal["values"], Mapping)):
                form = ", ".join(needed).replace("values", "values {setting: value}")
                raise TaskError(f"task {task.id!r}: a goal of kind {kind!r} requires {form}, got {goal!r}")
        self.task, self.style, self._goals = task, style, goals
        self._first = True
        self._at: tuple[str, ...] = ()
        self._rng: random.Random | None = None  # of the expert's words

    def next_step(self, desktop: Desktop) -> ExpertStep | None:
        """The next step, or None when every goal is reached.

        Raises:
            TaskError: ``desktop`` is not a ``SimDesktop``, or it lacks a setting, value, mark or folder of a goal.
        """
        if not isinstance(desktop, SimDesktop):
            raise TaskError(
                f"task {self.task.id!r}: oracle.type 'sim' requires the simulated desktop, got "
                f"{type(desktop).__name__}; fix: provider sim, or an oracle.type 'local' with steps"
            )
        self._check_goals(desktop)
        goal = next((goal for goal in self._goals if not reached(goal, desktop.inner)), None)
        if goal is None:
            return None
        move = next_move(goal, desktop, native=self.style == "native")
        if self.style == "native":
            return native_step(move, desktop)
        if move.kind not in ("popup", "close") and desktop.scene().top == DESK:
            move = self._announce(goal, desktop) or move
        if self._rng is None:  # the same words for the same task on the same first screen
            self._rng = random.Random(f"prose {self.task.id} {zlib.crc32(desktop.screenshot().pixels.tobytes())}")
        first, self._first = self._first, False
        return expert_step(move, desktop, first, self._rng)

    def _check_goals(self, desktop: SimDesktop) -> None:
        for goal in self._goals:
            if goal["kind"] == "set":
                for name, value in goal["values"].items():
                    self._check_value(name, value, desktop)
            elif goal["kind"] == "mark":
                marks = [mark for place in desktop.catalogue.places.values() for mark in place.control.marks]
                self._check_name("mark", goal["mark"], marks)
            elif goal["kind"] == "move":
                self._check_name("folder", goal["folder"], desktop.inner.folders)

    def _check_value(self, name: str, value: object, desktop: SimDesktop) -> None:
        self._check_name("setting", name, desktop.inner.settings)
        place = desktop.catalogue.places.get(name)
        if place is None:
            return
        options = (True, False) if place.control.kind == TOGGLE else place.control.options
        if (options and value not in options) or (not options and not isinstance(value, str)):
            wrong = f"{name!r}: expected {options or 'a text'}, got {value!r}"
            raise TaskError(f"task {self.task.id!r}: oracle: {wrong}")

    def _check_name(self, what: str, name: object, known: Collection[str]) -> None:
        if name not in known:
            raise TaskError(f"task {self.task.id!r}: oracle: no {what} {name!r}; known: {', '.join(sorted(known))}")

    def _announce(self, goal: Goal, desktop: SimDesktop) -> Move | None:
        """Opens application and tab once, even if already open, so that the plan is valid from any other screen."""
        app, tab = place_of(goal, desktop)
        if self._at[:1] != (app,):
            self._at = (app,)
            return open_move(app)
        if tab and desktop.inner.app == app and self._at != (app, tab):
            self._at = (app, tab)
            return tab_move(tab)
        return None
