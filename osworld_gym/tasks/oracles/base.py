"""Expert steps in Agent S2's form, each grounded to desktop actions, and the interface of oracles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from osworld_gym.desktops.base import Desktop
from osworld_gym.types import Action


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
