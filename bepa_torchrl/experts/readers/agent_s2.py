"""Reads logs of OSWorld's runner for Agent S2 as ExpertTraces.

The layout is that of :mod:`bepa_torchrl.experts.readers.run_folder`; ``response`` is an object with ``executor_plan``,
``plan_code`` and optionally ``reflection``, ``subtask``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.run_folder import read_runs, value_of
from bepa_torchrl.experts.trace import ExpertTrace
from bepa_torchrl.experts.words import sections, sentences
from osworld_gym.errors import ParseError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.task import Task
from osworld_gym.uitars.pyautogui import from_pyautogui


def read_agent_s2(folder: Path, tasks: Iterable[Task]) -> list[ExpertTrace]:
    """All Agent S2 runs below ``folder`` whose task is in ``tasks``, by task id, including failed runs.

    Raises:
        TraceError: no run of these tasks, or a file is missing, invalid, or lacks a key; the message names it.
    """
    return read_runs(folder, tasks, "agent_s2", _step)


def _step(line: Mapping[str, Any], _: tuple[int, int], where: str) -> ExpertStep:
    said = value_of(line, "response", dict, where)
    plan = value_of(said, "executor_plan", str, where)
    source = value_of(line, "action", str, where)
    try:
        actions = tuple(from_pyautogui(source))
    except ParseError:  # kept unchanged; conversion drops and counts it
        actions = ()
    subtask = str(said.get("subtask") or said.get("current_subtask") or "")
    intent = sentences(sections(plan).get("Next Action", ""), 1)
    reflection = said.get("reflection")
    return ExpertStep(
        subtask=subtask,
        plan=plan,
        reflection=None if reflection is None else str(reflection),
        call=str(said.get("plan_code") or _grounded(plan)),
        pyautogui=source,
        intent=intent.rstrip("."),
        actions=actions,
    )


def _grounded(plan: str) -> str:
    """The call in the plan's "Grounded Action" section."""
    return re.sub(r"^```\w*|```$", "", sections(plan).get("Grounded Action", "")).strip()
