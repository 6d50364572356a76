"""Checks that a task with an oracle is sound: its verifier scores 0 and 1 where it should."""

from __future__ import annotations

from PIL import Image, ImageChops

from osworld_gym.desktops.base import Desktop
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.base import play_oracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, Screenshot, StopReason

MAX_ORACLE_STEPS = 30
IDLE_STEPS = 3
CARET = (4, 48)  # pixels (width, height): a difference of at most this size is a blinking caret


def check_task(desktop: Desktop, task: Task, seed: int) -> list[str]:
    """Runs the task several times; returns what is wrong with it (an empty list when nothing is).

    The verifier must return 0 on the initial state, 0 for a policy that only waits and then calls ``finished``, and 1
    after the oracle, which must be done within ``MAX_ORACLE_STEPS`` steps. Two resets with the same seed must show the
    same first screen.

    Raises:
        TaskError: the task names an unknown setup step, metric, getter or oracle.
        DesktopError: the desktop failed.
    """
    problems = []
    first = _begin(desktop, task, seed)
    if (score := _score(desktop, task)) != 0.0:
        problems.append(f"the fresh desktop is worth {score:g}, not 0")
    if difference(first, desktop.screenshot()) is not None:  # the evaluator's postconfig closes an application
        _begin(desktop, task, seed)
    for _ in range(IDLE_STEPS):
        desktop.perform([Action("wait")])
    if (score := _score(desktop, task)) != 0.0:
        problems.append(f"doing nothing is worth {score:g}, not 0")
    again = _begin(desktop, task, seed)
    if (box := difference(first, again)) is not None:
        problems.append(f"two starts with seed {seed} differ in the pixels {box}")
    oracle = make_oracle(task)
    steps, stop = play_oracle(desktop, oracle, max_steps=MAX_ORACLE_STEPS)
    if steps == MAX_ORACLE_STEPS and stop is StopReason.finished and oracle.next_step(desktop) is not None:
        problems.append(f"the oracle is not done after {steps} steps")
    score = _score(desktop, task, stop)
    if score != 1.0:
        problems.append(f"the oracle is worth {score:g} after {steps} steps, not 1")
    return problems


def difference(one: Screenshot, other: Screenshot) -> tuple[int, int, int, int] | None:
    """Bounding box (left, top, right, bottom), in pixels, of two frames' difference; None: equal up to a caret."""
    images = [Image.fromarray(frame.pixels) for frame in (one, other)]
    if images[0].size != images[1].size:
        return (0, 0, *images[1].size)
    box = ImageChops.difference(*images).getbbox()
    if box is None or (box[2] - box[0] <= CARET[0] and box[3] - box[1] <= CARET[1]):
        return None
    return box


def _begin(desktop: Desktop, task: Task, seed: int) -> Screenshot:
    """Resets the desktop and sets the task up; returns the first screenshot."""
    desktop.reset(seed)
    prepare(task, desktop, seed=seed)
    return desktop.screenshot()


def _score(desktop: Desktop, task: Task, stop: StopReason = StopReason.finished) -> float:
    return verify(task, desktop, stop=stop).score
