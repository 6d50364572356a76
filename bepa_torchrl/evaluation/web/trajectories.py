"""Trajectories of Online-Mind2Web: ``<task id>/result.json`` with the pictures in ``<task id>/trajectory/``.

v1: ``action_history`` is a list of texts, and the pictures are all files of ``trajectory/``, in the order of the first
number in their names. v2 (``schema_version`` "online-mind2web-v2"): ``action_history`` is a list of steps, each with
its picture; the last step is the answer. Defined by Online-Mind2Web's src/run.py and schema_v2.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osworld_gym.atomic import new_folder, write_bytes, write_text
from osworld_gym.tasks.suites.web import WebTask

RESULT, PICTURES, V2 = "result.json", "trajectory", "online-mind2web-v2"
_ANSWER = re.compile(r"TASK_COMPLETE\s*->\s*ANSWER:(.*)", re.DOTALL)
_OUTCOME = re.compile(r"\|\s*([A-Z_]+)\s*$")
_REASONING = re.compile(r"(?i)\b(thought|reasoning)\s*:")
_NUMBER = re.compile(r"\d+")


class TrajectoryError(ValueError):
    """A trajectory is missing or torn, so that nobody can judge it. The message names the file."""


@dataclass(frozen=True, slots=True)
class WebStep:
    """One step of an agent.

    Args:
        action: what was done, such as ``button -> CLICK coords(3, 4) -> … | SUCCESS``; no reasoning.
        url: the URL of the page at that moment; empty if nobody knows.
        thought: the agent's reasoning; None if it has none.
        status: ``SUCCESS`` or a word for a failure, as at the end of the action; None if it is not given.
        picture: name of its picture; empty in v1, where pictures belong to no step.
    """

    action: str
    url: str = ""
    thought: str | None = None
    status: str | None = None
    picture: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What an agent did for a task.

    Args:
        task_id: the ID of the task.
        task: its text, as the agent's runner had it.
        steps: in order; the last one of v2 is the answer.
        pictures: files of the pictures, in order.
        answer: the agent's final answer; may be empty.
        version: 1 or 2.
        digest: the digest of ``result.json`` and of the pictures' names and sizes.
    """

    task_id: str
    task: str
    steps: tuple[WebStep, ...]
    pictures: tuple[Path, ...]
    answer: str
    version: int
    digest: str

    @property
    def history(self) -> list[str]:
        """The actions that a judge reads: in v2 without the last one, which is the agent's answer and no action."""
        actions = [step.action for step in self.steps]
        return actions[:-1] if self.version == 2 else actions


def read_trajectory(folder: Path) -> Trajectory:
    """The trajectory in a task's folder.

    Raises:
        TrajectoryError: ``result.json`` or a picture is missing, or something else than expected.
    """
    path = folder / RESULT
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, got {type(data).__name__}")
        second = data.get("schema_version") == V2
        history = data["action_history"]
        if not isinstance(history, list):
            raise ValueError(f"action_history: expected a list, got {type(history).__name__}")
        steps = tuple(map(_step if second else _text_step, history))
        answer = data.get("agent_final_answer" if second else "final_result_response") or ""
        task, task_id = str(data["task"]), str(data.get("task_id", folder.name))
    except FileNotFoundError as error:
        raise TrajectoryError(f"{path} is missing") from error
    except KeyError as error:
        raise TrajectoryError(f"{path}: the key {error} is missing") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise TrajectoryError(f"{path} cannot be read ({error})") from error
    names = [step.picture for step in steps] if second else _numbered(folder / PICTURES)
    pictures = tuple(folder / PICTURES / name for name in names)
    return Trajectory(task_id, task, steps, pictures, str(answer), 2 if second else 1, _digest(raw, pictures))


def problems(trajectory: Trajectory, task: WebTask) -> list[str]:
    """What the official rules object to; such a trajectory can be judged, but not be submitted.

    In both versions the history must hold no reasoning. In v2, the last step must also be the answer and agree with
    ``agent_final_answer`` (spaces aside), ``action_status`` must agree with the action's end, and the run must start at
    the task's website.
    """
    return list(dict.fromkeys(_problems(trajectory.steps, trajectory.answer, task, trajectory.version == 2)))


def write_trajectory(
    root: Path,
    task: WebTask,
    steps: Sequence[WebStep],
    pictures: Sequence[bytes],
    answer: str,
    *,
    refuse: bool = True,
) -> Path:
    """Writes a trajectory in v2; returns its folder.

    Args:
        root: the root of all trajectories; the task's folder is made below it and must not exist.
        task: the task.
        steps: in order, the last one ``TASK_COMPLETE -> ANSWER: …``; their ``picture`` is not read.
        pictures: PNG bytes, one per step.
        answer: the agent's final answer.
        refuse: whether one that the rules of :func:`problems` object to is refused.

    Raises:
        ValueError: the rules object to it, or there is not a picture per step.
        OSError: it cannot be written; nothing of it remains.
    """
    problem = next(_problems(steps, answer, task, True), None) if refuse else None
    if problem is not None or len(pictures) != len(steps):
        reason = problem or f"expected a picture per step, got {len(pictures)} for {len(steps)} steps"
        raise ValueError(f"{task.id}: not a trajectory of Online-Mind2Web: {reason}")
    names = [f"{number:04d}.png" for number in range(len(steps))]
    history = [
        {"step": number, "screenshot": name, "url": step.url, "action": step.action}
        | ({} if step.status is None else {"action_status": step.status})
        | {"thought": step.thought}
        for number, (name, step) in enumerate(zip(names, steps, strict=True))
    ]
    data = {
        "schema_version": V2,
        "task": task.text,
        "task_id": task.id,
        "reference_length": task.reference_length,
        "agent_final_answer": answer,
        "action_history": history,
    }
    with new_folder(root / task.id) as folder:
        for name, png in zip(names, pictures, strict=True):
            write_bytes(folder / PICTURES / name, png, durable=False)
        write_text(folder / RESULT, json.dumps(data, indent=1, ensure_ascii=False) + "\n", durable=False)
    return root / task.id


def _text_step(action: Any) -> WebStep:
    if not isinstance(action, str):
        raise ValueError(f"action_history: expected texts, or schema_version {V2!r}, got {type(action).__name__}")
    return WebStep(action)


def _step(step: Any) -> WebStep:
    if not isinstance(step, Mapping):
        raise ValueError(f"action_history: expected steps, got {type(step).__name__}")
    picture = str(step["screenshot"])
    if Path(picture).name != picture:
        raise ValueError(f"screenshot: expected the name of a file in {PICTURES}/, got {picture[:80]!r}")
    thought, status = step["thought"], step.get("action_status")
    return WebStep(
        str(step["action"]),
        str(step.get("url") or ""),
        None if thought is None else str(thought),
        None if status is None else str(status),
        picture,
    )


def _numbered(folder: Path) -> list[str]:
    """The pictures of v1 in their order."""
    try:
        names = [path.name for path in folder.iterdir() if _NUMBER.search(path.name)]
    except OSError as error:
        raise TrajectoryError(f"{folder} cannot be read ({error.strerror or error})") from error
    return sorted(names, key=lambda name: (int(_first_number(name)), name))


def _first_number(name: str) -> str:
    match = _NUMBER.search(name)
    assert match is not None
    return match[0]


def _digest(raw: bytes, pictures: Sequence[Path]) -> str:
    """Of the result and of the pictures' names and sizes. Raises TrajectoryError if there is no picture."""
    if not pictures:
        raise TrajectoryError("the trajectory has no picture")
    sha = hashlib.sha256(raw)
    for path in pictures:
        try:
            sha.update(f"{path.name} {path.stat().st_size}\n".encode())
        except OSError as error:
            raise TrajectoryError(f"{path} is missing") from error
    return sha.hexdigest()[:16]


def _problems(steps: Sequence[WebStep], answer: str, task: WebTask, second: bool) -> Iterator[str]:
    if any(_REASONING.search(step.action) or (step.thought and step.thought in step.action) for step in steps[:-1]):
        yield "the history holds reasoning"
    if not second:
        return
    last = _ANSWER.fullmatch(steps[-1].action.strip()) if steps else None
    if last is None:
        yield "the last step is not TASK_COMPLETE -> ANSWER: …"
    elif last[1].split() != answer.split():
        yield "the last step's answer is not agent_final_answer"
    for step in steps:
        end = _OUTCOME.search(step.action)
        if step.status is not None and end is not None and step.status.upper() != end[1]:
            yield "action_status is not what the action ends in"
    site = _host(task.website)
    if steps and site not in (_host(steps[0].url), "") and site not in steps[0].action:
        yield "the run does not start at the task's website"


def _host(url: str) -> str:
    """The host of a URL without ``www.``; empty if it has none."""
    return (urlsplit(url if "//" in url else f"//{url}").hostname or "").removeprefix("www.")
