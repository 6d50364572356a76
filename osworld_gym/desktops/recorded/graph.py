"""The recording of one task: per seed the states that were seen, what led from one to the next, and their scores.

A state is what a sequence of actions leads to, not what its screen looks like: after an item of a menu was chosen, the
screen may be the first one again, and the score another. So states form a tree, but for one case: actions of the mouse
after which neither screen nor score has changed lead back to the state they were performed in. Keys do not: what they
change may be out of sight until later, as after ctrl c.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_text
from osworld_gym.guest.pixels import pixel_inside
from osworld_gym.types import Action, Point

SQUARE = 20  #: side in pixels of the squares of the screen in which a click is the same click
IDLE = ("finished", "call_user", "wait")  #: kinds of actions that change nothing on a recorded desktop
VERSION = 2  #: 1: keys after which the screen was the same led back, also ctrl c
_NAME = re.compile(r"[0-9a-f]{32}")


class RecordingError(ValueError):
    """A recording that cannot be used; the message names its file."""


@dataclass
class State:
    """One state.

    Args:
        screen: name of its image.
        score: what the task's verifier gave in this state, in [0, 1].
        after: key of the actions that were performed here → index of the state after them.
    """

    screen: str
    score: float
    after: dict[str, int] = field(default_factory=dict)


@dataclass
class Recording:
    """The states of one task.

    Args:
        size: (width, height) of the screen in pixels.
        seeds: seed of the desktop → its states; the first one is that after the task's setup.
    """

    size: tuple[int, int]
    seeds: dict[int, list[State]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes the file atomically."""
        seeds = {str(seed): [asdict(state) for state in states] for seed, states in self.seeds.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"version": VERSION, "size": self.size, "seeds": seeds}) + "\n")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Reads what :meth:`save` wrote.

        Raises:
            RecordingError: there is no such file, or it is not a recording of this version.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ValueError(f"expected version {VERSION}, got {data['version']}")
            width, height = (int(side) for side in data["size"])
            seeds = {int(seed): _states(states) for seed, states in data["seeds"].items()}
            if not seeds:
                raise ValueError("expected at least one seed, got none")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordingError(f"{path}: not a recording ({error}); record the task again") from error
        return cls((width, height), seeds)


def _states(data: Sequence[Any]) -> list[State]:
    """Checks that names are names of images, scores are in [0, 1] and indices are of states."""
    states = [State(**state) for state in data]
    if not states:
        raise ValueError("a seed without a state")
    for state in states:
        if not _NAME.fullmatch(state.screen) or not 0 <= state.score <= 1:
            raise ValueError(f"a state with screen {state.screen!r} and score {state.score!r}")
        if not all(type(index) is int and 0 <= index < len(states) for index in state.after.values()):
            raise ValueError(f"a state that leads to {sorted(state.after.values())} of {len(states)} states")
    return states


def acting(actions: Sequence[Action]) -> list[Action]:
    """The actions that do something."""
    return [action for action in actions if action.kind not in IDLE]


def has_keys(key: str) -> bool:
    """Whether the actions of a key (:func:`key_of`) press keys or type."""
    return any(part[3] is not None or part[4] is not None for part in json.loads(key))


def key_of(actions: Sequence[Action], size: tuple[int, int]) -> str:
    """The key of actions that are performed in one call: equal for points in the same square.

    Args:
        actions: at least one.
        size: (width, height) of the screen in pixels.
    """

    def square(point: Point | None) -> list[int] | None:
        return None if point is None else [side // SQUARE for side in pixel_inside(point, size)]

    parts = [[a.kind, square(a.start), square(a.end), a.key, a.content, a.direction, a.clicks] for a in actions]
    return json.dumps(parts, ensure_ascii=False)
