"""An instance of a template as a task with the oracle's two scripts; the setup, verifiers and words of this suite."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osworld_gym.tasks.setup.arrange import CHOSEN, LISTING, START
from osworld_gym.tasks.setup.themes import GRID
from osworld_gym.tasks.suites.authoring import TRASH, Data, make_task, mouse, prints
from osworld_gym.tasks.task import Task

#: files that tasks are about
FILES = ("apple", "river", "stone", "cloud", "lemon", "tiger")
#: files that are there by chance
OTHERS = ("bread", "candle", "desert", "engine", "forest", "garden", "hammer", "island", "jacket", "kettle", "ladder",
          "marble", "needle", "orange", "pepper", "quartz", "rocket", "saddle", "tunnel", "window")  # fmt: skip
FOLDERS = ("Archive", "Letters", "Photos")
#: new names and texts to type
TEXTS = ("winter", "summer", "silver", "copper", "violin", "guitar")

#: submenu → items of the desktop's menu; first letters differ, since openbox selects by them
MENU = {
    "Sound": ("mute", "echo", "bass"),
    "Display": ("night", "zoom", "blur"),
    "Power": ("sleep", "timer", "wake"),
    "Network": ("proxy", "roaming", "hotspot"),
    "Access": ("camera", "history", "location"),
    "Input": ("gestures", "repeat", "sticky"),
}
KNOWN_GROUPS = ("Sound", "Display", "Power")

KNOWN, UNKNOWN = "known", "unknown"
#: content of the file manager's files: bytes that no application claims, so that their menu is the same everywhere
BINARY = "\x00\x01\x02"
#: where the file manager's icons are in its window of this suite, see ``gui_script.Layout``
LAYOUT: Data = {"first": [190, 136], "step": [100, 79], "margin": 140, "grid": GRID}


@dataclass(frozen=True)
class Instance:
    """One task before it is numbered.

    Args:
        template: the name of the template, which is in the task's id.
        topic: template and object, e.g. ``toggle Toolbar``; used for splitting.
        known: whether a base policy that was cloned on the known tasks has seen everything that the task requires.
        expert: the oracle's script with keyboard and shortcuts.
        native: its script with the mouse, and with the keyboard for texts only.
    """

    template: str
    topic: str
    known: bool
    domain: str
    instruction: str
    config: tuple[Data, ...]
    evaluator: Data
    expert: tuple[Data, ...]
    native: tuple[Data, ...]


def as_task(instance: Instance, number: int) -> Task:
    """The instance as a task in OSWorld's format."""

    def steps(script: Sequence[Data]) -> list[Data]:
        return [step | {"subtask": instance.instruction.rstrip(".")} for step in script]

    return make_task(
        f"varied-{instance.template}-{number:02d}",
        instance.domain,
        instance.instruction,
        instance.config,
        instance.evaluator,
        {
            "type": "local",
            "layout": LAYOUT,
            "steps": steps(instance.expert),
            "native": steps(instance.native),
        },
        tags=(KNOWN if instance.known else UNKNOWN, f"template:{instance.template}"),
    )


# --- setup ------------------------------------------------------------------------------------------------------------


def arrange(**parameters: Any) -> Data:
    """Setup step: files, colours and positions that vary with the seed (``tasks/setup/arrange.py``)."""
    return {"type": "arrange", "parameters": parameters}


# --- verifiers --------------------------------------------------------------------------------------------------------


def chosen(*labels: str) -> Data:
    """Evaluator: exactly these items of the desktop's menu were chosen."""
    return prints(f"sort -u ~/{CHOSEN}", "".join(f"{label}\n" for label in sorted(labels)))


#: prints the lines of the documents folder's listing that are new or gone
CHANGES = f"({LISTING}) | comm -3 ~/{START} - | tr -d '\\t' | sort"


def changed(*lines: str) -> Data:
    """Evaluator: exactly these lines of the documents folder's listing are new or gone; the rest is as at the start."""
    return prints(CHANGES, "".join(f"{line}\n" for line in sorted(lines)))


def trashed(path: str, content: str) -> Data:
    """Evaluator: the file is in the trash, alone, and nothing else in the documents folder has changed."""
    name = path.rsplit("/", 1)[-1]
    return prints(f"{CHANGES}; ls {TRASH}", f"{listed_file(path, content)}\n{name}\n")


def contains(path: str, text: str) -> Data:
    """Evaluator: the file contains this text and nothing else but ends of lines after it."""
    return prints(f"printf '%s\\n' \"$(cat {path})\"", f"{text}\n")


def listed_file(path: str, content: str) -> str:
    """The line of the listing for a file; ``path`` is relative to the documents folder."""
    return f"{hashlib.sha256(content.encode()).hexdigest()}  ./{path}"


# --- steps of the oracles ---------------------------------------------------------------------------------------------


def click_item(on: Data, label: str, intent: str, *, menus: int = 1) -> Data:
    """A click on an item of a menu, as soon as so many menus are open."""
    return mouse("click", on, f"the item {label}", intent) | {"when": {"menus": menus}}
