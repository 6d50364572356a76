"""RunRecord: a run's settings, metrics per iteration, episodes and screenshots on disk; never overwritten."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import provenance_of
from bepa_torchrl.data.step_rows import episodes_of, int_entry, row_list
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.storage.json_lines import RecordError, json_line, read_lines
from osworld_gym.atomic import replaced_file, write_bytes, write_text
from osworld_gym.types import StopReason

OUTCOMES = "outcomes.jsonl"
_EVALUATION = "eval/"  #: metrics with this prefix belong to the iteration that was evaluated


class RunRecord:
    """The folder of one training run.

    - ``config.yaml``: the resolved settings;
    - ``iterations.jsonl``: the metrics of each iteration;
    - ``episodes.jsonl``: each episode with its steps, texts, token ids, log-probs and advantage; in iterations that
      are not recorded whole, the injected traces; these name the expert's run they are from;
    - ``outcomes.jsonl``: each episode of the policy's own evaluation, with its steps and texts;
    - ``evaluations.jsonl``: of ``collect.mode=async``: each episode of an evaluation with the weights' versions;
    - ``images/<2 hex>/<sha256>.png``: screenshots by hash.

    Args:
        folder: the folder of the method's run.
        images: whether screenshots are stored.
    """

    def __init__(self, folder: Path, *, images: bool = True) -> None:
        self.folder, self.images = folder, images
        self._seen: set[str] = set()

    def begin(self, settings: str) -> None:
        """Creates the folder and writes ``settings`` to ``config.yaml``.

        Raises:
            RecordError: the folder contains a run already.
        """
        path = self.folder / "config.yaml"
        if path.exists():
            raise RecordError(
                f"{self.folder} contains a run already; choose another name=, or continue it with resume=true"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(path, settings)

    def rewind(self, iteration: int) -> None:
        """Removes the lines after an iteration; a resumed run writes them again.

        The lines of an evaluation have the iteration that it belongs to, and count as of ``reported_at``.
        """
        for name in ("iterations.jsonl", "episodes.jsonl", "evaluations.jsonl"):
            path = self.folder / name
            if path.exists():
                kept = [line for line in read_lines(path) if line.get("reported_at", line["iteration"]) <= iteration]
                write_text(path, "".join(json_line(line) for line in kept))

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Appends one line; ``metrics`` includes ``iteration``."""
        self._append("iterations.jsonl", [metrics])

    def evaluation(self, iteration: int, reported_at: int, episodes: Iterable[Mapping[str, Any]]) -> None:
        """Appends the episodes of an evaluation.

        Args:
            iteration: that it belongs to.
            reported_at: the iteration at whose end it was complete.
            episodes: JSON-compatible.
        """
        first = {"iteration": iteration, "reported_at": reported_at}
        self._append("evaluations.jsonl", [first | dict(episode) for episode in episodes])

    def outcomes(self, played: Mapping[str, Sequence[EpisodeResult]]) -> None:
        """Replaces ``outcomes.jsonl``: the episodes by mode, ``greedy`` or ``sampled``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [{"mode": mode, **self._untrained(0, result)} for mode, results in played.items() for result in results]
        for line in lines:
            del line["iteration"]
        write_text(self.folder / OUTCOMES, "".join(json_line(line) for line in lines))

    def evaluated(self) -> set[int]:
        """Iterations of ``iterations.jsonl`` with results of an evaluation."""
        path = self.folder / "iterations.jsonl"
        lines = read_lines(path) if path.exists() else []
        return {line["iteration"] for line in lines if any(key.startswith(_EVALUATION) for key in line)}

    def episodes(self, iteration: int, batch: TensorDictBase, played: Sequence[EpisodeResult]) -> None:
        """Appends the episodes of an iteration: those trained on, those replaced, and those that failed."""
        lines = [self._trained(iteration, episode.rows) for episode in episodes_of(batch)]
        found = {(result.job.group_id, result.job.slot): result for result in played}
        for line in lines:
            line |= _problem(None if line["off_policy"] else found.get((line["group_id"], line["slot"])))
        used = {(line["group_id"], line["slot"], line["off_policy"]) for line in lines}
        for result in played:
            if (result.job.group_id, result.job.slot, False) not in used:
                lines.append(self._untrained(iteration, result))
        self._append("episodes.jsonl", sorted(lines, key=lambda line: (line["group_id"], line["slot"])))

    def injections(self, iteration: int, batch: TensorDictBase) -> None:
        """Appends the injected traces of an iteration only."""
        injected = [episode.rows for episode in episodes_of(batch) if bool(episode.rows[0].get(K.OFF_POLICY))]
        self._append("episodes.jsonl", [self._trained(iteration, rows) for rows in injected])

    def _trained(self, iteration: int, rows: Sequence[TensorDictBase]) -> dict[str, Any]:
        first = rows[0]
        return {
            "iteration": iteration,
            "group_id": int_entry(first, K.GROUP_ID),
            "slot": int_entry(first, K.SLOT),
            "task_id": first[K.TASK_ID],
            "instruction": first[K.INSTRUCTION],
            "source": first[K.SOURCE],
            "provenance": None if (found := provenance_of(first)) is None else found.to_json(),
            "off_policy": bool(first.get(K.OFF_POLICY)),
            "trained": True,
            "policy_version": int_entry(first, K.POLICY_VERSION),
            "stop_reason": first[K.STOP_REASON],
            "reward": float(cast(Tensor, first.get(K.RETURN))),
            "advantage": float(cast(Tensor, first.get(K.ADVANTAGE))),
            "failure": None,
            "steps": [self._step(row) for row in rows],
        }

    def _untrained(self, iteration: int, result: EpisodeResult) -> dict[str, Any]:
        rows = [] if result.rows is None else row_list(result.rows)
        return {
            "iteration": iteration,
            "group_id": result.job.group_id,
            "slot": result.job.slot,
            "task_id": result.job.task.id,
            "instruction": result.job.task.instruction,
            "source": K.Source.on_policy.value,
            "provenance": None,
            "off_policy": False,
            "trained": False,
            "policy_version": int_entry(rows[0], K.POLICY_VERSION) if rows else None,
            "stop_reason": result.stop.value,
            "reward": None if result.stop is StopReason.env_error else float(result.success),
            "advantage": None,
            "failure": None if result.failure is None else result.failure.value,
            **_problem(result),
            "steps": [self._step(row) for row in rows],
        }

    def _step(self, row: TensorDictBase) -> dict[str, Any]:
        return {
            "screenshot": self._image(cast(bytes, row[K.SCREENSHOT])),
            "text": row[K.RESPONSE],
            "tokens": cast(Tensor, row.get(K.RESPONSE_TOKENS)).tolist(),
            "log_probs": _log_probs(row.get(K.ROLLOUT_LOG_PROB)),
            "old_log_probs": _log_probs(row.get(K.OLD_LOG_PROB)),
        }

    def _image(self, png: bytes) -> str:
        """Stores a screenshot once; returns its hash."""
        name = hashlib.sha256(png).hexdigest()
        if self.images and name not in self._seen:
            path = image_path(self.folder, name)
            if not path.exists():
                write_bytes(path, png, durable=False)
            self._seen.add(name)
        return name

    def _append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        path = self.folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(json_line(line) for line in lines))
        except OSError as error:
            reason = f"could not be written ({error.strerror}); free some space and go on with resume=true"
            raise OSError(error.errno, reason, str(path)) from error


def _problem(result: EpisodeResult | None) -> dict[str, Any]:
    """Why what the policy left behind could not be read, and whether it exceeded the evaluators' limits."""
    verdict = None if result is None else result.verdict
    return {"problem": verdict.problem or None, "exhausted": verdict.exhausted} if verdict is not None else {}


def _log_probs(values: Any) -> list[float | None]:
    """Log-probs rounded to six digits; None for NaN, which is not valid JSON."""
    return [None if math.isnan(value) else round(value, 6) for value in cast(Tensor, values).tolist()]


def image_path(folder: Path, name: str) -> Path:
    """The file of the screenshot with this hash in a method's folder."""
    return folder / "images" / name[:2] / f"{name}.png"


def rewind_logs(folder: Path, iteration: int, evaluated: Container[int]) -> None:
    """Removes what TorchRL's CSV and TensorBoard loggers wrote after an iteration; call before they are reopened.

    Args:
        folder: of the loggers.
        iteration: the last one that is kept.
        evaluated: iterations whose evaluation is kept; one that is reported later is logged again.
    """

    def kept(tag: str, step: int) -> bool:
        return step <= iteration and (not tag.startswith(_EVALUATION) or step in evaluated)

    for path in folder.rglob("*.csv"):
        tag = f"{path.parent.name}/{path.stem}"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(path, "".join(x for x in lines if x.endswith("\n") and kept(tag, int(x.split(",", 1)[0]))))
    for path in folder.rglob("events.out.tfevents.*"):
        _rewind_events(path, kept)


def _rewind_events(path: Path, kept: Callable[[str, int], bool]) -> None:
    """Rewrites one event file without the events that are not kept and without an incomplete record."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with replaced_file(path) as file:
        writer = RecordWriter(file)
        for data in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(data)
            if not event.HasField("summary") or all(kept(value.tag, event.step) for value in event.summary.value):
                writer.write(data)
