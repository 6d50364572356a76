"""Expert steps in Agent S2's form, each grounded to desktop actions, the interface of oracles, and their loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from osworld_gym.desktops.base import Desktop
from osworld_gym.types import CALL_USER_TOLERANCE, Action, StopReason


@dataclass(frozen=True, slots=True)
class ExpertStep:
    """One step of a framework expert (Agent S2; paper, Appendix E.4 and Table of its action space).

    Args:
        subtask: the manager's subtask, e.g. ``Open the sound settings``.
        plan: the worker's ``executor_plan``: verification, screenshot analysis and next action, as text.
        reflection: the reflection text, or None.
        call: the tool-level call, e.g. ``agent.click("the mute toggle", 1, "left")``.
        pyautogui: the grounded code, e.g. ``pyautogui.click(72, 40, clicks=1, button='left')``. Text, never run here.
        intent: the step as one line of a plan, e.g. ``Click "mute"``.
        actions: the actions to perform, in screen pixels; one step may need several.
        response: the expert's text as it wrote it, if that is not Agent S2's; None: ``plan`` and ``call``.
    """

    subtask: str
    plan: str
    reflection: str | None
    call: str
    pyautogui: str
    intent: str
    actions: tuple[Action, ...]
    response: str | None = None


class Oracle(Protocol):
    """Solves one task. It may read privileged state of the desktop that a policy has no access to."""

    def next_step(self, desktop: Desktop) -> ExpertStep | None:
        """The next step from the current state, or None when the task is done (the caller then sends ``finished``)."""
        ...


def play_oracle(
    desktop: Desktop,
    oracle: Oracle,
    *,
    max_steps: int,
    on_step: Callable[[ExpertStep], None] | None = None,
) -> tuple[int, StopReason]:
    """Performs the oracle's steps on a desktop where its task is set up; returns their number and the stop reason.

    The stop reason is ``call_user`` after ``CALL_USER_TOLERANCE`` actions ``call_user``, else ``finished``, also after
    ``max_steps``.

    Args:
        max_steps: maximum number of steps.
        on_step: called with each step after it was performed, before the oracle's next step.

    Raises:
        DesktopError: the desktop failed.
    """
    calls = 0
    for count in range(max_steps):
        step = oracle.next_step(desktop)
        if step is None:
            return count, StopReason.finished
        desktop.perform(step.actions)
        if on_step is not None:
            on_step(step)
        calls += any(action.kind == "call_user" for action in step.actions)
        if calls >= CALL_USER_TOLERANCE:
            return count + 1, StopReason.call_user
    return max_steps, StopReason.finished
