"""ATIF, the trajectory format of Harbor: ``trajectory.json`` with agent steps, tool calls and images.

A desktop step is the tool call ``computer_action``, in screen pixels. The verifier's reward is in Harbor's trial folder
(``verifier/reward.txt`` or ``reward.json`` beside ``agent/``), or under ``extra`` of the trajectory. Our own exports
have the exact actions under ``extra.actions`` of a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.executed import describe
from bepa_torchrl.experts.readers.family import last_sentence
from bepa_torchrl.experts.readers.pictures import png_size
from bepa_torchrl.experts.readers.run import Outcome, Run
from bepa_torchrl.experts.trace import TraceError, read_action, read_json
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import key_name
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
_ENDS = {"done": "finished", "finished": "finished", "fail": "call_user", "wait": "wait"}
_KEYS = ("key", "keys", "keypress", "hotkey")
_LOOKS = ("screenshot", "zoom")  #: calls that change nothing


def scan(root: Path) -> list[Run]:
    """All files ``*trajectory*.json`` of this format below a folder."""
    return [run for path in sorted(root.rglob("*trajectory*.json")) for run in _runs(path, root)]


def _runs(path: Path, root: Path) -> Iterator[Run]:
    """One run, or none if the file is of another format."""
    name = path.relative_to(root).as_posix()
    try:
        data = read_json(path)
    except TraceError as error:
        yield Run(NAME, _trial(path).name, name, Outcome.no_result, skipped=str(error))
        return
    if not str(data.get("schema_version", "")).startswith("ATIF-"):
        return
    try:
        yield _run(data, path, name)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"not a valid {data['schema_version']} trajectory ({type(error).__name__}: {error})"
        yield Run(NAME, _trial(path).name, name, Outcome.no_result, skipped=reason)


@dataclass
class _Reading:
    """The steps that have been read so far: the newest image is the screen before the next step."""

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
                    self.newest = _image(self.folder, str(part["source"]["path"]))


def _run(data: Mapping[str, Any], path: Path, name: str) -> Run:
    reading = _Reading(path.parent)
    for step in data["steps"]:
        reading.read(step)
    if reading.steps and (further := data.get("continued_trajectory_ref")):
        reading.inexact.append((len(reading.steps) - 1, f"continued: the steps after it are in {further}"))
    extra = data.get("extra") or {}
    outcome, why = _outcome(_trial(path), extra)
    missing = sum(picture is None for picture in reading.pictures)
    problems = [f"step {index + 1}: {reason}" for index, reason in reading.inexact]
    if missing:
        problems.append(f"no images before {missing} of {len(reading.steps)} steps")
    return Run(
        family=NAME,
        task_id=str(extra.get("task_id") or _trial(path).name.split("__")[0]),
        run=name,
        outcome=outcome,
        steps=tuple(reading.steps),
        inexact=tuple(reading.inexact),
        pictures=tuple(reading.pictures),
        final=reading.newest,
        instruction=reading.instruction,
        problems=tuple(problems),
        skipped=why or ("" if reading.steps else _no_step(reading.copied)),
    )


def _trial(path: Path) -> Path:
    return path.parent.parent if path.parent.name == "agent" else path.parent


def _outcome(trial: Path, extra: Mapping[str, Any]) -> tuple[Outcome, str]:
    """The verifier's outcome, and why there is none."""
    reward: Any = extra.get("reward")
    text, rewards = trial / "verifier" / "reward.txt", trial / "verifier" / "reward.json"
    if text.is_file():
        try:
            reward = _number(text.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return Outcome.no_result, f"verifier/reward.txt is not readable ({error})"
    elif rewards.is_file():
        values = read_json(rewards)
        values = values.get("rewards", values)
        reward = values.get("reward", min(values.values(), default=None))
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return Outcome.no_result, "no verifier/reward.txt, verifier/reward.json or extra.reward"
    return (Outcome.success if reward == 1 else Outcome.failure), ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _action(call: Mapping[str, Any]) -> tuple[tuple[Action, ...], str]:
    """The actions of a tool call, and why they are not what it did; empty if they are."""
    given = {key: value for key, value in call["arguments"].items() if value is not None}
    kind = str(given.get("type", ""))
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
        return (Action("type", content=given["text"]),), ""
    if kind in _KEYS and isinstance(given.get("keys"), list | str):
        keys = given["keys"] if isinstance(given["keys"], list) else _split(given["keys"])
        names = [str(key).strip() for key in keys]
        if names and all(names):
            return (Action("hotkey", key=" ".join(map(key_name, names))),), ""
    if kind in _ENDS:
        return (Action(_ENDS[kind]),), ""
    return (), f"not_convertible: {kind or 'no type'}"


def _split(keys: str) -> list[str]:
    """The keys of a chord such as ``ctrl+c``; the last of ``ctrl++`` is the plus sign."""
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


def _image(folder: Path, name: str) -> Path | None:
    path = folder / name
    try:
        png_size(path)
    except (OSError, ValueError):
        return None
    return path
