"""ExpertTrace: one run of an expert (steps, screenshots, success), stored as JSON and PNG files.

A folder of traces contains ``traces/<expert>/<task>.json`` and ``images/<sha256>.png``; each distinct image is stored
once and verified against its name when it is read. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_bytes
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action, Point, Screenshot

SCHEMA = "bepa.expert-trace/1"
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class TraceError(ValueError):
    """An expert trace or its file is invalid. The message names the file and how to fix it."""


@dataclass(frozen=True, slots=True)
class ExpertTrace:
    """One run of an expert.

    Args:
        task_id: the task's id in its suite.
        instruction: the task's instruction, without plan.
        expert: name of the expert, e.g. ``agent_s2``.
        steps: the expert's steps, in order.
        screenshots: PNG bytes, one before each step; empty bytes where a log has none.
        success: the verifier's result.
        final_screenshot: PNG bytes after the last step, or None if the log has none.
        env_seed: seed of the desktop, or None for another framework's log.
        origin: the run or log folder it was read from; empty for a recording.
        run: the run's folder below its source, which tells several runs of one task apart; empty: there is one.
        inexact: (index of a step, reason) of the steps whose executed code ``actions`` does not represent exactly.
        left_out: the SHA-256 of each screenshot and of the final one, where they were not loaded; else None.

    Raises:
        TraceError: the numbers of steps and screenshots differ.
    """

    task_id: str
    instruction: str
    expert: str
    steps: tuple[ExpertStep, ...]
    screenshots: tuple[bytes, ...]
    success: bool
    final_screenshot: bytes | None = None
    env_seed: int | None = None
    origin: str = ""
    run: str = ""
    inexact: tuple[tuple[int, str], ...] = ()
    left_out: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.screenshots):
            steps, images = len(self.steps), len(self.screenshots)
            raise TraceError(f"{self.where}: expected one screenshot per step, got {images} for {steps} steps")

    @property
    def where(self) -> str:
        """The trace's name in error messages."""
        return f"trace of {self.task_id!r} by {self.expert!r}"

    @property
    def content_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of its steps and screenshots."""
        images = self.image_hashes[:-1]
        content = [self.task_id, self.instruction, self.expert, [_hashed(step) for step in self.steps], images]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def image_hashes(self) -> tuple[str | None, ...]:
        """The SHA-256 of the screenshot before each step, then of the final one; None where the log has none."""
        if self.left_out is not None:
            return self.left_out
        images = (*self.screenshots, self.final_screenshot)
        return tuple(hashlib.sha256(png).hexdigest() if png else None for png in images)

    @property
    def faithful(self) -> bool:
        """Whether the steps' actions represent everything that was executed."""
        return not self.inexact

    def check_images(self) -> None:
        """Checks that there is a screenshot before every step.

        Raises:
            TraceError: a step has none; the message names it.
        """
        missing = [str(number) for number, png in enumerate(self.screenshots, 1) if not png]
        if missing:
            raise TraceError(
                f"{self.where}: no screenshot before step {', '.join(missing[:5])}; such a trace serves for plans only"
            )

    @property
    def screen_size(self) -> tuple[int, int]:
        """(width, height) of the expert's screen, pixels.

        Raises:
            TraceError: there is no screenshot.
        """
        images = [png for png in (*self.screenshots, self.final_screenshot) if png]
        if not images:
            raise TraceError(f"{self.where}: has no screenshot, so the screen's size is unknown")
        return Screenshot(png=images[0]).size


def save_trace(trace: ExpertTrace, folder: Path) -> Path:
    """Writes the trace under ``folder``, each file atomically; returns its JSON file."""
    images = [_save_image(png, folder) if png else None for png in trace.screenshots]
    final = None if trace.final_screenshot is None else _save_image(trace.final_screenshot, folder)
    data = {
        "schema": SCHEMA,
        "task_id": trace.task_id,
        "instruction": trace.instruction,
        "expert": trace.expert,
        "success": trace.success,
        "env_seed": trace.env_seed,
        "run": trace.run,
        "inexact": trace.inexact,
        "steps": [asdict(step) for step in trace.steps],
        "screenshots": images,
        "final_screenshot": final,
        "origin": trace.origin,
    }
    path = trace_path(folder, trace.expert, f"{trace.task_id} {trace.run}" if trace.run else trace.task_id)
    _write(path, json.dumps(data, ensure_ascii=False, indent=1).encode())
    return path


def trace_path(folder: Path, expert: str, task_id: str) -> Path:
    """The JSON file of a trace in a folder of traces; a name for each task, or for each run of a task."""
    return folder / "traces" / _file_name(expert) / f"{_file_name(task_id)}.json"


def save_traces(traces: Iterable[ExpertTrace], folder: Path) -> list[Path]:
    """Writes each trace by :func:`save_trace`; returns the JSON files."""
    return [save_trace(trace, folder) for trace in traces]


def load_trace(path: Path, *, images: bool = True) -> ExpertTrace:
    """Reads one trace file of a folder that :func:`save_trace` wrote.

    Args:
        path: the file.
        images: whether to load the screenshots; False: their hashes only.

    Raises:
        TraceError: not a trace file, of another schema, or an image is missing or damaged.
    """
    data = read_trace_file(path)
    folder = path.parent.parent.parent
    try:
        final = data["final_screenshot"]
        names = tuple(data["screenshots"])
        return ExpertTrace(
            task_id=str(data["task_id"]),
            instruction=str(data["instruction"]),
            expert=str(data["expert"]),
            steps=trace_steps(data),
            screenshots=tuple(_load_image(name, folder) if name and images else b"" for name in names),
            success=bool(data["success"]),
            final_screenshot=_load_image(final, folder) if final and images else None,
            env_seed=None if data["env_seed"] is None else int(data["env_seed"]),
            origin=str(data.get("origin", "")),
            run=str(data.get("run", "")),
            inexact=tuple((int(index), str(reason)) for index, reason in data.get("inexact", ())),
            left_out=None if images else (*names, final),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: incomplete trace ({type(error).__name__}: {error}); record it again") from error


def read_trace_file(path: Path) -> dict[str, Any]:
    """The content of a trace file, without its images.

    Raises:
        TraceError: not a trace file, or of another schema.
    """
    data = read_json(path)
    if data.get("schema") != SCHEMA:
        raise TraceError(f"{path}: expected schema {SCHEMA!r}, got {data.get('schema')!r}; record the trace again")
    return data


def trace_steps(data: Mapping[str, Any]) -> tuple[ExpertStep, ...]:
    """The steps of a trace file. Raises KeyError, TypeError or AttributeError if they are incomplete."""
    return tuple(_step(step) for step in data["steps"])


def load_traces(folder: Path, expert: str | None = None, *, images: bool = True) -> list[ExpertTrace]:
    """All traces of a folder, or those of one expert, ordered by file name.

    Args:
        folder: the folder of traces.
        expert: None: all.
        images: as of :func:`load_trace`.

    Raises:
        TraceError: the folder has no traces, or one cannot be read.
    """
    paths = sorted((folder / "traces").glob(f"{_file_name(expert) if expert else '*'}/*.json"))
    if not paths:
        raise TraceError(
            f"{folder}: no traces{f' of {expert!r}' if expert else ''} in it; record or convert some first"
        )
    return [load_trace(path, images=images) for path in paths]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        TraceError: unreadable, invalid JSON, or not an object.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(data, dict):
        raise TraceError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data


def parse_json(text: str) -> Any:
    """The value of a JSON text, in which halves of characters, which no file or tokenizer takes, are question marks.

    A program that cuts a text at a number of UTF-16 units leaves such a half, as an escape.

    Raises:
        ValueError, RecursionError: it is none.
    """
    value = json.loads(text)
    if not _HALF.search(text):
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _file_name(name: str) -> str:
    """A name as one path component: unchanged if safe, otherwise sanitised, with a hash to keep names distinct."""
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name):
        return name
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60] + "-" + hashlib.sha256(name.encode()).hexdigest()[:8]


def _save_image(png: bytes, folder: Path) -> str:
    name = hashlib.sha256(png).hexdigest()
    path = folder / "images" / f"{name}.png"
    if not path.exists():
        _write(path, png)
    return name


def _load_image(name: str, folder: Path) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", name):
        raise TraceError(f"{folder}: an image name must be 64 hex digits, got {name!r}")
    path = folder / "images" / f"{name}.png"
    try:
        png = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: image of a trace is missing ({error})") from error
    if hashlib.sha256(png).hexdigest() != name:
        raise TraceError(f"{path}: image is damaged: its bytes do not have its name's hash")
    return png


def _write(path: Path, data: bytes) -> None:
    write_bytes(path, data)


def _step(data: Mapping[str, Any]) -> ExpertStep:
    fields = {key: data[key] for key in ("subtask", "plan", "reflection", "call", "pyautogui", "intent")}
    actions = tuple(read_action(action) for action in data["actions"])
    return ExpertStep(**fields, actions=actions, response=data.get("response"))


def _hashed(step: ExpertStep) -> dict[str, Any]:
    """A step for :attr:`ExpertTrace.content_hash`: coordinates as a stored trace has them, 4 as 4.0."""
    data = asdict(step)
    for action in data["actions"]:
        for key in ("start", "end"):
            action[key] = None if action[key] is None else [float(value) for value in action[key]]
        if action["clicks"] is None:  # so that the hash is that of traces stored before actions had it
            del action["clicks"]
    return data


def _point(values: Any) -> Point:
    x, y = values
    return float(x), float(y)


def read_action(data: Mapping[str, Any]) -> Action:
    """An action from its fields as JSON. Raises KeyError, TypeError or ValueError if they are incomplete."""
    points = {key: None if data[key] is None else _point(data[key]) for key in ("start", "end")}
    return Action(
        data["kind"],
        **points,
        key=data["key"],
        content=data["content"],
        direction=data["direction"],
        clicks=data.get("clicks"),  # traces of earlier versions do not have it
    )
