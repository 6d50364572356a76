"""Behaviour cloning data: the native oracle's responses on many screens, for many tasks, with and without a plan.

There are three kinds of desk (:class:`Desk`). A *plain* one has known tasks only. On a *shuffled* one every label of
the desktop is at another position, any task may occur, and its plan is in the prompt: the response then follows from
plan and screen only. So the policy learns to follow a plan without learning the positions of unknown labels. On an
*expert* desk the expert itself solves a known task in its own dialect: prose, launcher and keyboard. The policy then
understands that dialect, as a language model understands English and hotkeys; it rarely starts with it, since most
first steps are the native oracle's, and keeps to it once the last thought is in it.

Each screen has turns for the task that is played on it and for others, those of the same page first: the policy will
mostly see screens of half-solved tasks, and a prompt's last thought is always the one that led to the screen. Turns of
other tasks are often *brief*, without the action, since the action only repeats the thought.

All data are deterministic in the desk's seed. A response never depends on hidden state: if a task is asked about a
screen that another task led to, the settings that the screen does not show are as after the asked task's setup.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bepa_torchrl.experts.conversion import LAST_THOUGHT, step_thought
from bepa_torchrl.experts.plan import plan_from_trace
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.oracles.sim.free_prose import seen_on
from osworld_gym.tasks.oracles.sim.oracle import SimOracle
from osworld_gym.tasks.suites.sim.suite import cloning_tasks, sim_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action
from recipes.tiny.grounding import anywhere, grounding_turns, labels_of
from recipes.tiny.turns import Screen, Turn
from recipes.tiny.wording import Styles, worded

OPENED = 0.2  #: share of the expert's episodes whose first step is part of the data
#: probability of a random click instead of the oracle's step, for tasks on one page and on several; in the latter the
#: last thought may be the only hint of the progress, which a random click contradicts
STRAY = {False: 0.05, True: 0.01}
MAX_STEPS = 15
GROUNDING = 1  #: grounding turns per screen of a shuffled desk
#: maximum number of other tasks of a desk: with a page in common, of the same application, any
OTHERS = (6, 2, 2)
OPENING = 2  #: maximum number of turns per screen that open another application, with which most tasks would start
BRIEF = 0.7  #: share of the other tasks' turns that are brief
DONE = ("done", (Action("finished", content=""),))
EXPERT_DONE = (LAST_THOUGHT, (Action("finished"),))


@dataclass(frozen=True)
class Shares:
    """What the desks are made of; the others are plain desks, on which the native oracle acts.

    Args:
        shuffled: share of shuffled desks.
        expert: share of desks on which the expert acts.
        planned: share of plain desks' tasks whose prompt contains a plan.
        long: share of desks on which a task with files, several pages or several texts is played, each of their
            templates as often; None: all tasks as often.
    """

    shuffled: float
    expert: float
    planned: float
    long: float | None = None


READING = Shares(shuffled=0.45, expert=0.2, planned=0.35)  #: for learning to read the screen
ACTING = Shares(shuffled=0.28, expert=0.36, planned=0.6)  #: afterwards: more plans and more of the expert's dialect
FINISHING = Shares(shuffled=0.28, expert=0.36, planned=0.6, long=0.65)  #: at last: more of the tasks that fail most


@lru_cache(maxsize=1)
def _all_tasks() -> tuple[Task, ...]:
    return sim_suite().tasks


class Desk:
    """A desktop with the tasks that are asked about it.

    Args:
        seed: seed of all random choices.
        shares: what desks are made of.
        styles: the styles of the native oracle's thoughts; None: bare decisions.
    """

    def __init__(self, seed: int, shares: Shares = READING, styles: Styles | None = None) -> None:
        self.rng = random.Random(f"desk {seed}")
        self.seed = seed
        self.styles, self._words = styles, random.Random(f"words {seed}")
        kind = self.rng.random()
        self.shares = shares
        self.shuffled = kind < shares.shuffled
        self.expert = shares.shuffled <= kind < shares.shuffled + shares.expert
        self.desktop = SimDesktop(shuffle_labels=self.shuffled, seed=seed)
        pool = _all_tasks() if self.shuffled else cloning_tasks()
        self.tasks = self._choose([task for task in pool if not self._already_there(task)])
        self._plans: dict[str, str] = {}

    def _choose(self, pool: Sequence[Task]) -> list[Task]:
        """The task to play, then the other tasks to ask about, the most similar ones first."""
        played = self._played(pool)
        pages = _places(self.desktop, played)
        near: tuple[Callable[[Task], bool], ...] = (
            lambda task: bool(_places(self.desktop, task) & pages),
            lambda task: task.domain == played.domain,
            lambda _: True,
        )
        chosen = [played]
        for like, most in zip(near, OTHERS, strict=True):
            found = [task for task in pool if like(task) and task not in chosen]
            chosen += self.rng.sample(found, min(len(found), most))
        return chosen

    def _played(self, pool: Sequence[Task]) -> Task:
        """The task to play."""
        if self.shares.long is None:
            return self.rng.choice(pool)
        if self.rng.random() >= self.shares.long:
            return self.rng.choice([task for task in pool if not self._long(task)])
        templates: dict[str, list[Task]] = {}
        for task in filter(self._long, pool):
            templates.setdefault(task.tags[-1], []).append(task)
        return self.rng.choice(templates[self.rng.choice(sorted(templates))])

    def _long(self, task: Task) -> bool:
        """Whether the task is about files, about several pages, or about several typed texts."""
        pages = _places(self.desktop, task)
        return len(pages) > 1 or ("files", "") in pages or "template:send" in task.tags

    def _already_there(self, task: Task) -> bool:
        """Whether a file of the task is initially in its target folder."""
        goals, folder_of = (task.oracle or {})["goals"], self.desktop.catalogue.folder_of
        return any(goal["kind"] == "move" and folder_of(goal["file"]) == goal["folder"] for goal in goals)

    def plan_for(self, task: Task) -> str | None:
        """The expert's plan if the prompt is to contain one, else None."""
        if not self.shuffled and self.rng.random() >= self.shares.planned:
            return None
        if task.id not in self._plans:
            self._plans[task.id] = self._expert_plan(task)
        return self._plans[task.id]

    def _expert_plan(self, task: Task) -> str:
        """The plan of an expert's run, at another seed unless the labels depend on the seed."""
        desktop = SimDesktop(shuffle_labels=self.shuffled, seed=self.seed if self.shuffled else self.seed + 10_000_019)
        steps = _play(desktop, task, "expert")
        trace = ExpertTrace(task.id, task.instruction, "sim_expert", steps, (b"",) * len(steps), True)
        return plan_from_trace(trace)

    def episode(self, turns: int) -> list[Screen]:
        """Screens before each step of the oracle's run of the first task."""
        return self._expert_episode() if self.expert else self._native_episode(turns)

    def _expert_episode(self) -> list[Screen]:
        """The expert's run, its thoughts as conversion writes them. One turn per screen."""
        desktop, task = self.desktop, self.tasks[0]
        _prepare(desktop, task)
        oracle = SimOracle(task, "expert")
        last: str | None = None
        screens: list[Screen] = []
        while len(screens) < MAX_STEPS:
            step = oracle.next_step(desktop)
            thought, actions = EXPERT_DONE if step is None else (step_thought(step), step.actions)
            turn = Turn(task.instruction, thought, actions, None, last, prose=True)
            screens.append(Screen(desktop.screenshot().pixels, labels_of(desktop), (turn,)))
            if step is None:
                break
            desktop.perform(step.actions)
            last = thought
        return screens if self.rng.random() < OPENED else screens[1:]

    def _native_episode(self, turns: int) -> list[Screen]:
        """The native oracle's run, with random clicks between, and turns of the other tasks."""
        task, rng, desktop = self.tasks[0], self.rng, self.desktop
        plan, last, before, screens = self.plan_for(task), None, "", []
        oracle = SimOracle(task, "native")
        stray = STRAY[len(_places(desktop, task)) > 1]
        _prepare(desktop, task)
        for _ in range(MAX_STEPS):
            try:
                step = oracle.next_step(desktop)
            except ValueError:  # a random click removed the task's file, so it cannot be solved
                break
            asked = [Turn(task.instruction, *(DONE if step is None else (step.intent, step.actions)), plan, last)]
            asked += self._others(last, turns)
            seen = seen_on(desktop)
            screens.append(Screen(desktop.screenshot().pixels, labels_of(desktop), self._worded(asked, seen, before)))
            if step is None:
                break
            before = seen
            last = self._stray() if rng.random() < stray else None
            if last is None:
                desktop.perform(step.actions)
                last = step.intent
        return screens

    def _others(self, last: str | None, count: int) -> list[Turn]:
        """Turns of the other tasks about the current screen, and grounding turns on shuffled desks.

        Turns that would not occur in their episodes are left out: those that are done already or repeat the last step.
        """
        rng = self.rng
        fork = self.desktop.fork()
        grounding = grounding_turns(self.desktop, GROUNDING, rng) if self.shuffled else []
        count = max(0, count - len(grounding))
        inside: list[tuple[Task, Turn]] = []
        opening: list[tuple[Task, Turn]] = []
        for task in self.tasks[1:]:
            if len(inside) == count:
                break
            turn = _elsewhere(fork, task, last)
            if turn is not None and turn.thought not in ("done", last):
                (opening if turn.thought.startswith("open ") else inside).append((task, turn))
        chosen = [*inside, *opening[:OPENING]][:count]
        asked = [replace(turn, plan=self.plan_for(task), brief=rng.random() < BRIEF) for task, turn in chosen]
        return asked + grounding

    def _worded(self, turns: Sequence[Turn], seen: str, before: str) -> tuple[Turn, ...]:
        """The turns about a screen in their styles; ``before`` is what the screen of the last thought showed."""
        if self.styles is None:
            return tuple(turns)
        rng = self._words
        return tuple(
            worded(turn, seen, before, self.styles, rng, lambda: anywhere(self.desktop, rng)) for turn in turns
        )

    def _stray(self) -> str:
        """Clicks at random; returns the thought for it."""
        thought, actions = anywhere(self.desktop, self.rng)
        self.desktop.perform(actions)
        return thought


def _prepare(desktop: SimDesktop, task: Task) -> None:
    for step in task.config:
        desktop.setup(step)


def _play(desktop: SimDesktop, task: Task, style: str) -> tuple[ExpertStep, ...]:
    """The oracle's steps on a new desktop."""
    _prepare(desktop, task)
    oracle = SimOracle(task, style)
    steps: list[ExpertStep] = []
    while len(steps) < 2 * MAX_STEPS and (step := oracle.next_step(desktop)) is not None:
        steps.append(step)
        desktop.perform(step.actions)
    return tuple(steps)


def _places(desktop: SimDesktop, task: Task) -> set[tuple[str, str]]:
    """The pages on which a task acts; files count as one page."""
    found = set()
    for goal in (task.oracle or {})["goals"]:
        if goal["kind"] == "set":
            found |= {desktop.catalogue.place(name)[:2] for name in goal["values"]}
        elif goal["kind"] == "mark":
            found.add(desktop.catalogue.place(goal["mark"])[:2])
        else:
            found.add(("files", ""))
    return found


def _elsewhere(desktop: SimDesktop, task: Task, last: str | None) -> Turn | None:
    """The turn of a task on another task's screen; None if the screen does not determine the response.

    Changes ``desktop``'s hidden settings.
    """
    state, places = desktop.inner, _places(desktop, task)
    if len(places) > 1 and last is not None and last.split()[0] != "click":
        last = None
    if ("files", "") in places and not _files_untouched(desktop, task):
        return None
    here = (state.app, state.tab)
    for step in task.config:
        settings = step["parameters"].get("settings", {})
        hidden = {name: value for name, value in settings.items() if desktop.catalogue.place(name)[:2] != here}
        desktop.setup({"type": "sim", "parameters": {"settings": hidden}})
    step_now = SimOracle(task, "native").next_step(desktop)
    if len(places) > 1 and step_now is None:
        return None
    thought, actions = DONE if step_now is None else (step_now.intent, step_now.actions)
    return Turn(task.instruction, thought, actions, None, last)


def _files_untouched(desktop: SimDesktop, task: Task) -> bool:
    """Whether the task's files are in their initial folders, and the list is scrolled to the top."""
    state = desktop.inner
    if state.trash or state.opened or state.scroll or any("trash" in step["parameters"] for step in task.config):
        return False
    return all(
        goal["file"] in state.folders.get(desktop.catalogue.folder_of(goal["file"]), [])
        for goal in (task.oracle or {})["goals"]
        if "file" in goal
    ) and not any(name.endswith("2") for names in state.folders.values() for name in names)


def block(
    number: int, *, screens: int = 64, turns: int = 8, shares: Shares = READING, styles: Styles | None = None
) -> list[Screen]:
    """``screens`` screens with about ``turns + 1`` turns each, from episodes of many desks, in random order."""
    rng = random.Random(f"block {number}")
    found: list[Screen] = []
    desk = 0
    while len(found) < screens:
        found += Desk(number * 1_000 + desk, shares, styles).episode(turns)
        desk += 1
    rng.shuffle(found)
    return found[:screens]


def shard(
    step: int, *, batch: int, turns: int, shares: Shares = READING, styles: Styles | None = None
) -> Sequence[Screen]:
    """The screens of one training step: ``batch`` of a block of ``4 * batch``."""
    return _cached_block(step // 4, 4 * batch, turns, shares, styles)[step % 4 * batch :][:batch]


@lru_cache(maxsize=2)
def _cached_block(number: int, screens: int, turns: int, shares: Shares, styles: Styles | None) -> list[Screen]:
    return block(number, screens=screens, turns=turns, shares=shares, styles=styles)
