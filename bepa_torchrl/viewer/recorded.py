"""Reads the episodes of a run's JSONL files, from any position on, while the run goes on writing them."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.viewer.episode import ShownEpisode, outcome_of
from bepa_torchrl.viewer.pictures import Pictures, picture_in
from bepa_torchrl.viewer.responses import ResponseReader
from osworld_gym.types import StopReason

#: a position in a stream, and the episode that ends there; None: what is there cannot be read
Entry = tuple[int, ShownEpisode | None]


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence of episodes that a page lists.

    Args:
        name: unique in the pages, e.g. ``runs/long/bepa/episodes``; ids of episodes start with it.
        run: the run that it belongs to.
        method: the method of the run, or ``base``, ``expert``, ``self-rolled``, ``converted``.
        part: training, before training, after training, evaluation, expert traces, self-rollouts, seed traces.
        read: position → entries after it. Position 0 is the start.
        stamp: changes when there may be more to read.
        grows: whether entries are only added, so that reading can go on where it ended.
    """

    name: str
    run: str
    method: str
    part: str
    read: Callable[[int], Iterator[Entry]]
    stamp: Callable[[], object]
    grows: bool = False


def read_json_lines(path: Path, start: int = 0) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """The objects of a JSONL file with the position after each, bytes; None for a line that is not a JSON object.

    A last line without its end is being written, or was torn by a crash: it is left out.

    Args:
        path: the file; one that does not exist has no lines.
        start: a position that an earlier call gave.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                data = None
            yield start, data if isinstance(data, dict) else None


def recorded_stream(
    path: Path, *, run: str, method: str, part: str, reader: ResponseReader, pictures: Pictures
) -> Stream:
    """The episodes of ``episodes.jsonl``, ``outcomes.jsonl`` or ``evaluations.jsonl`` in their folder."""

    def read(start: int) -> Iterator[Entry]:
        for position, line in read_json_lines(path, start):
            yield position, None if line is None else _episode(line, path.parent, reader, pictures)

    return Stream(f"{run}/{method}/{path.stem}", run, method, part, read, lambda: stamp_of(path), grows=True)


def stamp_of(*paths: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """File number, size and time of change of each file; None for one that does not exist."""
    stats = [path.stat() if path.exists() else None for path in paths]
    return tuple(None if stat is None else (stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _episode(line: Mapping[str, Any], folder: Path, reader: ResponseReader, pictures: Pictures) -> ShownEpisode | None:
    """A line as an episode, whatever fields its version has; None if it names no task or a field has another type."""
    try:
        steps = [_step(step, folder, reader, pictures) for step in line.get("steps") or ()]
        origin = line.get("provenance") or {}
        reward, mode = _reward(line), _mode(line)
        return ShownEpisode(
            task=str(line["task_id"]),
            source=_source(line),
            outcome=outcome_of(reward),
            iteration=whole(line.get("iteration")),
            group=whole(line.get("group_id")),
            slot=whole(line.get("slot", line.get("episode"))),
            instruction=str(line.get("instruction") or ""),
            stop=str(line.get("stop_reason") or line.get("stop") or ""),
            reward=reward,
            advantage=None if line.get("advantage") is None else float(line["advantage"]),
            version=whole(line.get("policy_version", line.get("requested_version"))),
            injected=bool(line.get("off_policy")),
            trained=None if mode or line.get("trained") is None else bool(line["trained"]),
            failure=str(line.get("failure") or ""),
            problem=str(line.get("problem") or ""),
            judge=str(line.get("judge") or ""),
            mode=mode,
            expert=" ".join(str(origin[name]) for name in ("expert", "origin") if origin.get(name)),
            plan=str(origin.get("plan") or ""),
            updates=tuple(int(update) for update in line.get("updates") or ()),
            copied_from=str(line.get("copied_from") or ""),
            count=int(line.get("n_steps") or len(steps)),
            replayed=int(line.get("replayed_steps") or 0),
            steps=tuple(steps),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):  # the last: a number no token can have
        return None


def whole(value: Any) -> int | None:
    """A whole number or None. Raises TypeError for anything else, which the pages cannot sort or compare."""
    return None if value is None else operator.index(value)


def _reward(line: Mapping[str, Any]) -> float | None:
    """The reward; the episodes of asynchronous evaluations have ``success`` instead."""
    masked = line.get("stop") == StopReason.env_error.value
    reward = line.get("reward", None if masked else line.get("success"))
    if reward is None:
        return None
    if not 0 <= float(reward) <= 1:  # also NaN, which would be shown as a failure
        raise ValueError(f"expected a reward in 0..1, got {reward}")
    return float(reward)


def _mode(line: Mapping[str, Any]) -> str:
    """``greedy`` or ``sampled`` of a run's evaluation, ``pass N`` of ``bepa eval``; empty for a training episode."""
    outcome = line.get("outcome")
    return f"pass {int(outcome['attempt']) + 1}" if isinstance(outcome, dict) else str(line.get("mode") or "")


def _source(line: Mapping[str, Any]) -> str:
    """The source; an injected trace of the policy's own was refreshed by an earlier success."""
    source = str(line.get("source") or "on_policy")
    return "refreshed" if source == "on_policy" and line.get("off_policy") else source


def _step(step: Mapping[str, Any], folder: Path, reader: ResponseReader, pictures: Pictures) -> Any:
    name = str(step.get("screenshot") or "")
    path = picture_in(folder / "images", f"{name[:2]}/{name}.png") if name else None
    size = None if path is None else pictures.size(path)
    return reader.step(str(step.get("text") or ""), None if size is None else path, size, step)
