"""AgentNet (OpenCUA): JSON lines of people's trajectories, with pyautogui code in fractions of the screen.

Whether a task was completed was judged by a model, so no run is a verified success. Screenshots come in archives of
their own; those that lie beside the file, or in ``images/``, are used, and tell the screen's size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.executed import describe
from bepa_torchrl.experts.readers.family import last_sentence
from bepa_torchrl.experts.readers.log import Line, each_line
from bepa_torchrl.experts.readers.pictures import png_size
from bepa_torchrl.experts.readers.run import Outcome, Run
from bepa_torchrl.experts.trace import TraceError
from osworld_gym.errors import ParseError
from osworld_gym.opencua.parse import actions_of
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.pyautogui import official_action

NAME = "agentnet"
_FRACTIONS = ImageScaling(relative=1)


def scan(root: Path) -> list[Run]:
    """All trajectories of the files ``*.jsonl`` below a folder whose lines have ``task_id`` and ``traj``."""
    return [run for path in _files(root) for run in _runs(path, root)]


def _files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below.sort()
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".jsonl") and name != "traj.jsonl" and _is_agentnet(path):
                yield path


def _is_agentnet(path: Path) -> bool:
    """By the first line that can be read."""
    for _, line in each_line(path):
        if not isinstance(line, TraceError):
            return isinstance(line.get("traj"), list) and "task_id" in line
    return False


def _runs(path: Path, root: Path) -> Iterator[Run]:
    name = path.relative_to(root).as_posix()
    for where, line in each_line(path):
        if isinstance(line, TraceError):
            yield Run(NAME, path.stem, name, Outcome.no_result, skipped=str(line))
        else:
            yield _run(line, path, f"{name}:{where.rpartition(':')[2]}")


def _run(line: Line, path: Path, name: str) -> Run:
    task = str(line.get("task_id", ""))
    try:
        values = [(entry, dict(entry["value"])) for entry in line["traj"]]
        images = [str(entry.get("image", "")) for entry, _ in values]
    except (KeyError, TypeError, ValueError) as error:
        reason = f"expected traj[] of objects with image and value ({type(error).__name__}: {error})"
        return Run(NAME, task, name, Outcome.no_result, skipped=reason)
    problems = ["success judged by a model, not verified"]
    pictures = [_image(image, path.parent) for image in images]
    missing = sum(picture is None for picture in pictures)
    if missing:
        problems.append(f"no images of {missing} of {len(pictures)} steps")
    size = next((screen for picture in pictures if picture is not None and (screen := png_size(picture))), None)
    read = [_step(value, size) for _, value in values]
    inexact = tuple((index, reason) for index, (_, reason) in enumerate(read) if reason)
    return Run(
        family=NAME,
        task_id=task,
        run=name,
        outcome=Outcome.no_result,
        steps=tuple(step for step, _ in read),
        inexact=inexact,
        pictures=tuple(pictures),
        instruction=str(line.get("instruction") or line.get("natural_language_task") or ""),
        judged=line.get("task_completed") is True,
        problems=(*(f"step {index + 1}: {reason}" for index, reason in inexact), *problems),
        skipped="" if read else "the trajectory has no step",
    )


def _step(value: Mapping[str, Any], size: tuple[int, int] | None) -> tuple[ExpertStep, str]:
    """The step, and why its actions are not what was done; empty if they are."""
    code, texts = str(value.get("code") or ""), {key: str(value.get(key) or "") for key in ("observation", "thought")}
    said = str(value.get("action") or "")
    actions, reason = _actions(code, size)
    step = ExpertStep(
        subtask="",
        plan="\n\n".join(text for text in texts.values() if text),
        reflection=None if value.get("reflection") is None else str(value["reflection"]),
        call=code,
        pyautogui=official_action(actions),
        intent=last_sentence(said) or describe(actions),
        actions=actions,
        response=f"## Thought:\n{texts['thought']}\n\n## Action:\n{said}\n\n## Code:\n```python\n{code}\n```\n",
    )
    return step, reason


def _actions(code: str, size: tuple[int, int] | None) -> tuple[tuple[Action, ...], str]:
    try:
        actions = actions_of(code.strip())
    except ParseError as error:
        return (), error.reason
    if size is None and any(action.start is not None for action in actions):
        return (), "unknown screen size"
    return tuple(_FRACTIONS.action_to_screen(action, size or (1, 1)) for action in actions), ""


def _image(name: str, folder: Path) -> Path | None:
    if not name or "\0" in name:
        return None
    for path in (folder / name, folder / "images" / Path(name).name):
        try:
            if path.resolve().is_relative_to(folder.resolve()):
                png_size(path)
                return path
        except (OSError, ValueError):
            continue
    return None
