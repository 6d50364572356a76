"""The suites of ``bepa eval suite=NAME``: which tasks, how many passes and steps, as settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import osworld_gym
from bepa_torchrl.evaluation.grounding.files import SUITES as GROUNDING
from osworld_gym.errors import did_you_mean

#: 295 tasks of OSWorld that need no network: the list osworld-offline of cua-speedrun, which is pinned to commit
#: 315a7603173feadf1b8a85cbc006c93ffe1dc1a1 of OSWorld; sha256 of the ids ``osworld_<domain>_<id>``, a line each:
#: c5964dbe0b19aa92c01992596c217d999bde292d1db34136a64a155b13b983a1
OFFLINE = Path(osworld_gym.__file__).parent / "tasks" / "suites" / "osworld" / "offline_295.json"


@dataclass(frozen=True, slots=True)
class EvaluationSuite:
    """A suite as ``bepa eval`` plays it.

    Args:
        overrides: settings that choose its tasks; those of the command line come after them.
        passes: episodes per task, unless ``--passes`` says otherwise.
        about: one line for ``bepa eval --help``.
    """

    overrides: tuple[str, ...]
    passes: int
    about: str


_ALL = ("env.held_out_split=null", "env.train_limit=null")
_EVERY = ("env.train_split=all", *_ALL)
SUITES = {
    "osworld_verified": EvaluationSuite(
        ("env=osworld", "env.train_split=test", *_ALL), 3, "OSWorld's test_all.json (369 tasks) at OSWORLD_ROOT"
    ),
    "osworld_offline": EvaluationSuite(
        ("env=osworld", f"env.train_split={OFFLINE}", *_ALL), 3, "295 of its tasks that need no network"
    ),
    "sim": EvaluationSuite(("env=sim", *_EVERY), 1, "the simulated desktop"),
    "local": EvaluationSuite(("env=local", *_EVERY), 1, "small tasks on a real X desktop"),
    "varied": EvaluationSuite(("env=varied", *_EVERY), 1, "editor, files, menus, small screens"),
    "desktop": EvaluationSuite(("env=desktop", *_EVERY), 1, "office, browser, pictures, mail, films"),
}


def evaluation_suite(name: str) -> EvaluationSuite:
    """The suite of this name. Raises ValueError if there is none."""
    if name not in SUITES:
        known = [*SUITES, *GROUNDING, "online_mind2web"]
        raise ValueError(f"unknown suite {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
    return SUITES[name]
