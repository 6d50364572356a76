"""Reads episodes that are not in a run's JSONL files: expert logs, folders of traces, caches, self-roll ledgers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.conversion import step_thought
from bepa_torchrl.experts.readers.registry import AUTO, RunReader, find_reader
from bepa_torchrl.experts.readers.run import Outcome, Run
from bepa_torchrl.experts.sources import split_source
from bepa_torchrl.experts.trace import TraceError, read_trace_file, trace_steps
from bepa_torchrl.viewer.episode import ShownEpisode, ShownStep, outcome_of
from bepa_torchrl.viewer.pictures import Pictures, picture_in
from bepa_torchrl.viewer.recorded import Entry, Stream, read_json_lines, stamp_of, whole
from bepa_torchrl.viewer.responses import ResponseReader, code_of, read_object, shown_actions
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.uitars.coords import ImageScaling

LEDGER = "selfroll.jsonl"


def traces_stream(folder: Path, *, run: str) -> Stream:
    """The traces of a folder as ``bepa record`` and a run's preparation write it."""

    def read(start: int) -> Iterator[Entry]:
        for number, path in enumerate(_files(folder / "traces", "*/*.json")[start:], start + 1):
            yield number, _saved_trace(path, folder)

    return Stream(f"{run}/experts", run, "expert", "expert traces", read, lambda: stamp_of(folder / "traces"))


def logs_stream(source: str, *, run: str) -> Stream:
    """The runs of an expert's logs.

    Args:
        source: ``NAME:FOLDER`` or a folder, whose format is then found.
        run: name on the pages.

    Raises:
        TraceError: the reader or the folder does not exist, or the reader needs a suite.
    """
    name, folder = split_source(source)
    reader = find_reader(name or AUTO)
    if not isinstance(reader, RunReader):
        raise TraceError(f"{source!r}: the reader {name!r} reads runs of given tasks only; use {AUTO}:{folder}")

    def read(start: int) -> Iterator[Entry]:
        for number, logged_run in enumerate(reader.scan(folder)[start:], start + 1):
            yield number, _logged(logged_run)

    return Stream(run, run, "expert", "expert traces", read, lambda: stamp_of(folder))


def cache_stream(folder: Path, method: str, *, run: str, reader: ResponseReader, pictures: Pictures) -> Stream:
    """The traces of a saved cache: self-rolled or converted seeds.

    Args:
        folder: the folder of the cache.
        method: ``self-rolled`` or ``converted``.
        run: name on the pages.
        reader: the reader of the policy's responses.
        pictures: sizes of the screenshots.
    """

    def read(start: int) -> Iterator[Entry]:
        for number, path in enumerate(_files(folder / "traces", "*/rows.json")[start:], start + 1):
            yield number, _cached(path, folder, reader, pictures)

    return Stream(f"{run}/{method}", run, method, "seed traces", read, lambda: stamp_of(folder / "manifest.json"))


def ledger_stream(folder: Path, *, run: str) -> Stream:
    """The attempts of ``selfroll.jsonl``. It has no steps: those of the kept ones are in the cache next to it."""
    path = folder / LEDGER

    def read(start: int) -> Iterator[Entry]:
        for position, line in read_json_lines(path, start):
            yield position, None if line is None else _attempt(line)

    return Stream(f"{run}/attempts", run, "self-rolled", "self-rollouts", read, lambda: stamp_of(path), grows=True)


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else []


# --- experts --------------------------------------------------------------------------------------------------------


def _saved_trace(path: Path, folder: Path) -> ShownEpisode | None:
    """A trace file without loading its images; None if it cannot be read."""
    try:
        data = read_trace_file(path)
        steps = trace_steps(data)
        images = [_image(folder, name) for name in data["screenshots"]]
        reasons = {int(index): str(reason) for index, reason in data.get("inexact", ())}
        return ShownEpisode(
            task=str(data["task_id"]),
            source="expert",
            outcome="success" if data["success"] else "failure",
            instruction=str(data["instruction"]),
            reward=float(bool(data["success"])),
            expert=f"{data['expert']} {data.get('run', '')}".strip(),
            count=len(steps),
            steps=_expert_steps(steps, images, reasons),
            final=_image(folder, data["final_screenshot"]),
        )
    except (TraceError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _image(folder: Path, name: Any) -> Path | None:
    return picture_in(folder / "images", f"{name}.png") if name else None


def _logged(run: Run) -> ShownEpisode:
    """A run of an expert's logs; one that cannot be read as a trace has the reason as its problem."""
    rewards = {Outcome.success: 1.0, Outcome.failure: 0.0}
    reward = rewards.get(run.outcome)
    return ShownEpisode(
        task=run.task_id,
        source="expert",
        outcome=outcome_of(reward),
        instruction=run.instruction,
        stop=str(run.outcome),
        reward=reward,
        problem="; ".join([run.skipped, *run.problems] if run.skipped else run.problems),
        expert=f"{run.family} {run.run}",
        count=len(run.steps),
        steps=_expert_steps(run.steps, run.pictures, dict(run.inexact)),
        final=run.final,
    )


def _expert_steps(
    steps: Sequence[ExpertStep], images: Sequence[Path | None], reasons: Mapping[int, str]
) -> tuple[ShownStep, ...]:
    return tuple(
        ShownStep(
            screenshot=images[index] if index < len(images) else None,
            thought=step.response or step.plan or step_thought(step),
            action=step.call or step.intent,
            actions=shown_actions(step.actions),
            executed=step.pyautogui or code_of(step.actions),
            note=reasons.get(index, ""),
        )
        for index, step in enumerate(steps)
    )


# --- self-rollouts --------------------------------------------------------------------------------------------------


def _cached(path: Path, folder: Path, reader: ResponseReader, pictures: Pictures) -> ShownEpisode | None:
    """A trace of a saved cache, without torch; None if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path.with_name("tensors.safetensors"))
        rows = [_row(row, tensors) for row in json.loads(path.read_text(encoding="utf-8"))]
        first = rows[0]
        steps = [_cached_step(row, folder, reader, pictures) for row in rows]
        origin = json.loads(first.get("provenance") or "{}")
        return ShownEpisode(
            task=str(first["task_id"]),
            source=str(first["source"]),
            outcome="success",  # a cache has nothing else
            slot=int(first["slot"]),
            instruction=str(first["instruction"]),
            stop=str(first["stop_reason"]),
            reward=1.0,
            version=int(first["policy_version"]),
            expert=" ".join(str(origin[name]) for name in ("expert", "origin") if origin.get(name)),
            plan=str(origin.get("plan") or ""),
            count=len(steps),
            steps=tuple(steps),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, SafetensorError):
        return None


def _row(entries: Sequence[Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``rows.json`` by its joined keys: numbers, lists of numbers, text, and names of files."""
    row = {}
    for key, reference in entries:
        ((kind, content),) = reference.items()
        row["/".join(key)] = tensors[content].tolist() if kind == "tensor" else content
    return row


def _cached_step(row: Mapping[str, Any], folder: Path, reader: ResponseReader, pictures: Pictures) -> ShownStep:
    path = picture_in(folder, str(row["screenshot_png"]))
    size = pictures.size(path)
    names = {"tokens": "tokens/response", "log_probs": "log_probs/rollout", "old_log_probs": "log_probs/response"}
    line = {name: row.get(key) for name, key in names.items()}
    return reader.step(str(row["response"]), None if size is None else path, size, line)


def _attempt(line: Mapping[str, Any]) -> ShownEpisode | None:
    try:
        reward = None if line.get("verdict") is None else float(line["verdict"])
        return ShownEpisode(
            task=str(line["task"]),
            source="self_rolled",
            outcome=outcome_of(reward),
            slot=whole(line.get("try")),
            stop=str(line.get("stop") or ""),
            reward=reward,
            failure=str(line.get("failure") or ""),
            problem=str(line.get("problem") or ("" if line.get("kept") or reward != 1.0 else "not kept")),
            expert=str(line.get("expert") or ""),
            plan=str(line.get("plan_hash") or ""),
            count=int(line.get("steps") or 0),
        )
    except (KeyError, TypeError, ValueError):
        return None


def action_reader(folder: Path) -> ResponseReader:
    """The reader of the responses of a folder of seeds, from its ``seed.json``."""
    seed = read_object(folder / "seed.json")
    try:
        scaling = ImageScaling(**seed.get("scaling", {}))
    except (TypeError, ValueError):
        scaling = None
    return ResponseReader(str(seed.get("action_text", "uitars")), scaling)
