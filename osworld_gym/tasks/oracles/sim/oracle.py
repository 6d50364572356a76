"""SimOracle: solves a simulated task in a closed loop, in the style of a framework expert or of the policy."""

from __future__ import annotations

import random
import zlib

from osworld_gym.desktops.base import Desktop
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
            if goal.get("kind") not in KINDS:
                raise TaskError(f"task {task.id!r}: unknown goal {goal!r}; kinds: {', '.join(KINDS)}")
        self.task, self.style, self._goals = task, style, goals
        self._first = True
        self._at: tuple[str, ...] = ()
        self._rng: random.Random | None = None  # of the expert's words

    def next_step(self, desktop: Desktop) -> ExpertStep | None:
        """The next step, or None when every goal is reached.

        Raises:
            TypeError: ``desktop`` is not a ``SimDesktop``.
            TaskError: a goal names a setting that the desktop does not have.
        """
        if not isinstance(desktop, SimDesktop):
            raise TypeError(f"SimOracle requires a SimDesktop, got {type(desktop).__name__}")
        self._check_settings(desktop)
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

    def _check_settings(self, desktop: SimDesktop) -> None:
        known = desktop.inner.settings
        for name in (name for goal in self._goals if goal["kind"] == "set" for name in goal.get("values", ())):
            if name not in known:
                raise TaskError(
                    f"task {self.task.id!r}: oracle: no setting {name!r}; known: {', '.join(sorted(known))}"
                )

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
