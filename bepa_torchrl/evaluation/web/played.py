"""An episode played in a desktop's browser as a trajectory of Online-Mind2Web, version 2.

The first step is the navigation to the task's website, with the first frame; then a step for each response, with the
frame after it; the last one is the answer. The history holds what was performed, in pixels of the screen, no reasoning.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bepa_torchrl.evaluation.web.trajectories import WebStep, write_trajectory
from osworld_gym.action_text import action_text
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.judging import Played
from osworld_gym.tasks.suites.web import WebTask
from osworld_gym.types import Action

DONE, FAILED = "SUCCESS", "FAILED"
#: kinds of actions whose name here is another one
_WORDS = {
    "left_double": "DOUBLE_CLICK",
    "right_single": "RIGHT_CLICK",
    "middle_single": "MIDDLE_CLICK",
    "hotkey": "PRESS",
    "call_user": "ASK_USER",
}


@dataclass(frozen=True, slots=True)
class KeptForJudging:
    """Writes each episode's trajectory, to be judged later.

    Args:
        root: folder of the trajectories.
    """

    root: Path

    def __call__(self, played: Played) -> None:
        """Writes the trajectory in place of an earlier one. Raises DesktopError if it cannot be written."""
        write_played(self.root, played)


def write_played(root: Path, played: Played) -> Path:
    """Writes an episode's trajectory, in place of an earlier one; returns its folder.

    What the official rules object to, such as a text that was typed and looks like reasoning, is written, too:
    :func:`~bepa_torchrl.evaluation.web.trajectories.problems` names it.

    Raises:
        DesktopError: ``evaluator_failed``: it cannot be written, so that nobody can judge the episode.
    """
    task = WebTask.of(played.task)
    steps = web_steps(played, task.website)
    pictures = [png for _, png in steps]
    try:
        shutil.rmtree(root / task.id, ignore_errors=True)
        return write_trajectory(root, task, [step for step, _ in steps], pictures, _clean(played.answer), refuse=False)
    except OSError as error:
        message = f"the trajectory of {task.id} cannot be written ({error}); free some space"
        raise DesktopError(FailureReason.evaluator_failed, message) from error


def web_steps(played: Played, website: str) -> list[tuple[WebStep, bytes]]:
    """The steps of an episode, each with its picture (PNG bytes)."""
    text = action_text(played.action_text)
    opened = WebStep(f"page -> NAVIGATE -> {website} | {DONE}", played.url, None, DONE)
    steps, last = [(opened, played.frame.png)], ""
    url, png = opened.url, played.frame.png
    for step in played.steps:
        thought = _clean(text.thought_of(step.response)) or None
        url, png = step.url, step.frame.png
        performed = [action for action in step.actions if action.kind != "finished"]
        if performed or len(performed) == len(step.actions):
            steps.append((_step(performed, step.parse_error, url, thought), png))
        else:
            last = thought or ""
    answer = f"TASK_COMPLETE -> ANSWER: {_clean(played.answer)}"
    return [*steps, (WebStep(answer, url, last or None), png)]


def _step(actions: Sequence[Action], parse_error: str | None, url: str, thought: str | None) -> WebStep:
    if parse_error is not None:
        return WebStep(f"page -> UNREADABLE -> {parse_error} | {FAILED}", url, thought, FAILED)
    return WebStep(f"{'; '.join(map(action_line, actions)) or 'page -> NOTHING'} | {DONE}", url, thought, DONE)


def action_line(action: Action) -> str:
    """An action as a line of the history, such as ``page -> CLICK coords(3, 4)``."""
    parts = [_WORDS.get(action.kind, action.kind.upper())]
    parts += [f"coords({point[0]:.0f}, {point[1]:.0f})" for point in (action.start, action.end) if point is not None]
    words = " ".join(parts)
    more = [
        action.key,
        action.direction,
        None if action.content is None else json.dumps(_clean(action.content), ensure_ascii=False),
    ]
    return " -> ".join(["page", words, *(each for each in more if each is not None)])


def _clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()
