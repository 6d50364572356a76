"""ATIF, the trajectory format of Harbor: ``trajectory.json`` with agent steps, tool calls and images.

A desktop step is the tool call ``computer_action``, in screen pixels. Our own exports have the exact actions under
``extra.actions`` of a step. Which files of Harbor's folders are runs, and how they ended, is in
:mod:`bepa_torchrl.experts.readers.harbor`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.executed import describe
from bepa_torchrl.experts.readers.family import last_sentence
from bepa_torchrl.experts.readers.harbor import Trial, own_trajectories, trials
from bepa_torchrl.experts.readers.pictures import png_size
from bepa_torchrl.experts.readers.run import Run
from bepa_torchrl.experts.trace import TraceError, read_action
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import MODIFIERS, key_name
from osworld_gym.uitars.pyautogui import official_action

NAME = "atif"
_POINTED = {
    "click": "click",
    "left_click": "click",
    "double_click": "left_double",
    "triple_click": "left_triple",
    "right_click": "right_single",
    "middle_click": "middle_single",
    "move": "hover",
    "mouse_move": "hover",
}
_ENDS = {
    **dict.fromkeys(("done", "finished", "answer", "terminate"), "finished"),
    "fail": "call_user",
    "wait": "wait",
}
_COMPLETE = "mark_task_complete"  #: what Harbor's desktop agent calls beside the last action, or alone
_KEYS = ("key", "keys", "keypress", "hotkey")
_LOOKS = ("screenshot", "zoom")  #: calls that change nothing


def scan(root: Path) -> list[Run]:
    """All runs of an agent in the files ``*trajectory*.json`` of this format below a folder, and trials without one."""
    runs: list[Run] = []
    found: set[Path] = set()
    for path, data in own_trajectories(root):
        trial = Trial.of(path)
        found.add(trial.folder)
        runs.append(_run_of(data, path, trial, root))
    return [*runs, *(_without_log(trial, root) for trial in trials(root) if trial.folder not in found)]


def trial_of(run: str) -> str:
    """The folder of the trial that a run is of, below its source: a trial may have several trajectories."""
    path = Path(run)
    return Trial.of(path).folder.as_posix() if path.suffix == ".json" else run


def _run_of(data: Mapping[str, Any] | TraceError, path: Path, trial: Trial, root: Path) -> Run:
    name = path.relative_to(root).as_posix()
    if isinstance(data, TraceError):
        return Run(NAME, trial.task, name, trial.outcome({})[0], skipped=str(data))
    try:
        return _run(data, path, trial, root)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"not a valid {data['schema_version']} trajectory ({type(error).__name__}: {error})"
        return Run(NAME, trial.task, name, trial.outcome({})[0], skipped=reason)


def _without_log(trial: Trial, root: Path) -> Run:
    """A trial whose agent left no trajectory, which has a result all the same, or crashed."""
    outcome, why = trial.outcome({})
    return Run(NAME, trial.task, trial.folder.relative_to(root).as_posix(), outcome, skipped=why or "no trajectory")


@dataclass
class _Reading:
    """The steps that have been read so far: the newest image is the screen before the next step."""

    root: Path
    folder: Path
    newest: Path | None = None
    steps: list[ExpertStep] = field(default_factory=list)
    pictures: list[Path | None] = field(default_factory=list)
    inexact: list[tuple[int, str]] = field(default_factory=list)
    instruction: str = ""
    copied: int = 0  #: agent steps of another trajectory, which were left out
    missing: int = 0  #: those of them since the last own step

    def read(self, step: Mapping[str, Any]) -> None:
        if step["source"] == "user" and not self.instruction:
            self.instruction = _text(step.get("message"))
        if step["source"] == "agent" and step.get("is_copied_context"):
            self.copied, self.missing = self.copied + 1, self.missing + 1
        elif step["source"] == "agent":
            self._agent(step)
        results = (step.get("observation") or {}).get("results") or []
        self._see(step.get("message"), *(result.get("content") for result in results))

    def _agent(self, step: Mapping[str, Any]) -> None:
        calls, own = step.get("tool_calls") or [], (step.get("extra") or {}).get("actions")
        calls = [call for call in calls if call["function_name"] != _COMPLETE] or calls
        if not calls and own is None and self.steps:
            return  # the final message
        read = [_action(call) for call in calls] if own is None else _own_actions(step["extra"])
        reasons = [reason for _, reason in read if reason]
        actions = () if reasons else tuple(action for parsed, _ in read for action in parsed)
        if self.missing:
            reasons.insert(0, f"copied_context: {self.missing} steps of another trajectory before it are left out")
            self.missing = 0
        if reasons:
            self.inexact.append((len(self.steps), reasons[0]))
        message = _text(step.get("message"))
        reasoning = str(step.get("reasoning_content") or "")
        self.steps.append(
            ExpertStep(
                subtask="",
                plan=reasoning or message,
                reflection=None,
                call="\n".join(json.dumps(call["arguments"], ensure_ascii=False) for call in calls),
                pyautogui=official_action(actions),
                intent=last_sentence(message) or describe(actions),
                actions=actions,
                response="\n\n".join(text for text in (reasoning, message) if text) or None,
            )
        )
        self.pictures.append(self.newest)

    def _see(self, *contents: Any) -> None:
        for content in contents:
            for part in content if isinstance(content, list) else []:
                if part.get("type") == "image":
                    self.newest = _image(self.root, self.folder, str(part["source"]["path"]))


def _run(data: Mapping[str, Any], path: Path, trial: Trial, root: Path) -> Run:
    reading = _Reading(root, path.parent)
    for step in data["steps"]:
        reading.read(step)
    if reading.steps and (further := data.get("continued_trajectory_ref")):
        reading.inexact.append((len(reading.steps) - 1, f"continued: the steps after it are in {further}"))
    extra = data.get("extra") or {}
    outcome, why = trial.outcome(extra)
    missing = sum(picture is None for picture in reading.pictures)
    problems = [f"step {index + 1}: {reason}" for index, reason in reading.inexact]
    if missing:
        problems.append(f"no images before {missing} of {len(reading.steps)} steps")
    return Run(
        family=NAME,
        task_id=str(extra.get("task_id") or trial.task),
        run=path.relative_to(root).as_posix(),
        outcome=outcome,
        steps=tuple(reading.steps),
        inexact=tuple(reading.inexact),
        pictures=tuple(reading.pictures),
        final=reading.newest,
        instruction=reading.instruction,
        problems=tuple(problems),
        skipped=why or ("" if reading.steps else _no_step(reading.copied)),
    )


def _action(call: Mapping[str, Any]) -> tuple[tuple[Action, ...], str]:
    """The actions of a tool call, and why they are not what it did; empty if they are."""
    given = {key: value for key, value in call["arguments"].items() if value is not None}
    kind = str(given.get("type", ""))
    if call["function_name"] == _COMPLETE:
        return (Action("finished"),), ""
    if call["function_name"] != "computer_action":
        return (), f"not a desktop action: {call['function_name']}"
    if kind in _LOOKS:
        return (), ""
    if "modifier" in given or given.get("button", "left") not in ("left", 1):
        return (), f"not_convertible: {kind} with {'a modifier' if 'modifier' in given else given['button']}"
    if kind in _POINTED and (start := _point(given, "x", "y")) is not None:
        return (Action(_POINTED[kind], start=start),), ""
    if kind == "drag" and (start := _point(given, "x", "y")) and (end := _point(given, "end_x", "end_y")):
        return (Action("drag", start=start, end=end),), ""
    if kind == "type" and isinstance(given.get("text"), str):
        return (Action("type", content=given["text"] + ("\n" if given.get("press_enter") else "")),), ""
    if kind in _KEYS and isinstance(given.get("keys"), list | str) and (chords := _chords(given["keys"])):
        return tuple(Action("hotkey", key=" ".join(chord)) for chord in chords), ""
    if kind in _ENDS:
        return (Action(_ENDS[kind]),), ""
    return (), f"not_convertible: {kind or 'no type'}"


def _chords(keys: list[Any] | str) -> list[list[str]]:
    """The chords that ``keys`` press, one after the other; none if a key has no name.

    A list is one chord if all but its last are modifiers, as Harbor's desktop presses them, otherwise several.
    """
    parts = [[name.strip() for name in _split(str(part))] for part in ([keys] if isinstance(keys, str) else keys)]
    if not all(names and all(names) for names in parts):
        return []
    chords = [list(map(key_name, names)) for names in parts]
    if all(len(chord) == 1 and chord[0] in MODIFIERS for chord in chords[:-1]):
        return [[name for chord in chords for name in chord]] if chords else []
    return chords


def _split(keys: str) -> list[str]:
    """The keys of a chord such as ``ctrl+c``; the last of ``ctrl++`` is the plus sign."""
    keys = keys.strip()
    return [*keys[:-2].split("+"), "+"] if keys.endswith("++") else ["+"] if keys == "+" else keys.split("+")


def _own_actions(extra: Mapping[str, Any]) -> list[tuple[tuple[Action, ...], str]]:
    """The actions that ``bepa export`` has written exactly, in screen pixels, and why there are none."""
    actions = tuple(read_action(action) for action in extra["actions"])
    return [(actions, "" if actions else str(extra.get("problem") or "no action"))]


def _no_step(copied: int) -> str:
    return f"the trajectory has no agent step{' but those copied from another' if copied else ''}"


def _point(given: Mapping[str, Any], x: str, y: str) -> Point | None:
    numbers = [float(given[name]) for name in (x, y) if isinstance(given.get(name), int | float)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _text(message: Any) -> str:
    if isinstance(message, list):
        return "\n".join(str(part["text"]) for part in message if part.get("type") == "text")
    return str(message or "")


def _image(root: Path, folder: Path, name: str) -> Path | None:
    """The file of an image; None if it is no PNG, or outside of ``root``: a log may name any file of the machine."""
    path = folder / name
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            return None
        png_size(path)
    except (OSError, ValueError):
        return None
    return path
