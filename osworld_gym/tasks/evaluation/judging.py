"""Tasks that a judge scores: what an episode hands to it, and the judge's interface.

Such a task has the evaluator ``{"func": "judge"}``. The judge sees what the policy did, not the desktop: frames,
addresses of the browser's pages, responses and actions. What it says is an opinion, so that its verdict names it
(``Verdict.judge``); one that fails is an infrastructure failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from osworld_gym.desktops.base import Desktop
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, Screenshot, StopReason, Verdict

JUDGED = "judge"  #: ``evaluator.func`` of a task that a judge scores


def is_judged(task: Task) -> bool:
    """Whether a judge scores the task."""
    return task.evaluator.get("func") == JUDGED


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One response of the policy.

    Args:
        response: its text.
        actions: performed, in screen pixels; empty if the response could not be parsed.
        parse_error: why it could not be; None: it could.
        frame: the frame after it.
        url: the URL of the browser's page after it; empty if nobody knows.
    """

    response: str
    actions: tuple[Action, ...]
    parse_error: str | None
    frame: Screenshot
    url: str


@dataclass(frozen=True, slots=True)
class Played:
    """A finished episode as a judge sees it.

    Args:
        task: the task.
        frame: the first frame.
        url: the URL of the browser's page then; empty if nobody knows.
        steps: in order.
        stop: why the episode ended.
        action_text: the format of the responses.
    """

    task: Task
    frame: Screenshot
    url: str
    steps: Sequence[PlayedStep]
    stop: StopReason
    action_text: str

    @property
    def answer(self) -> str:
        """What the policy said when it finished; empty if it did not, or said nothing."""
        actions = self.steps[-1].actions if self.steps else ()
        return next((action.content or "" for action in actions if action.kind == "finished"), "")


class Judge(Protocol):
    """Scores episodes. Several desktops' threads call it at the same time, and rollout processes get a pickled copy."""

    def __call__(self, played: Played) -> Verdict | None:
        """The judge's verdict; None: the episode is only kept, and is judged later, which evaluations alone do.

        Raises:
            DesktopError: ``evaluator_failed``: it gave no verdict. The episode is masked.
        """
        ...


@dataclass(slots=True)
class History:
    """Collects what a judge sees, while an episode of a judged task runs.

    Args:
        desktop: the desktop of the episode.
        task: its task.
        frame: its first frame.
    """

    desktop: Desktop
    task: Task
    frame: Screenshot
    url: str = field(init=False)
    steps: list[PlayedStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = self._page_url()

    def _page_url(self) -> str:
        from osworld_gym.tasks.setup.chrome import page_url  # most tasks have no judge

        return page_url(self.desktop)

    def add(self, response: str, actions: tuple[Action, ...], parse_error: str | None, frame: Screenshot) -> None:
        """Adds a response with the frame after it."""
        self.steps.append(PlayedStep(response, actions, parse_error, frame, self._page_url()))

    def played(self, stop: StopReason, action_text: str) -> Played:
        """The finished episode."""
        return Played(self.task, self.frame, self.url, tuple(self.steps), stop, action_text)
