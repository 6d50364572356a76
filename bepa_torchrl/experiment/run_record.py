"""RunRecord: a run's settings, metrics per iteration, episodes and screenshots on disk; never overwritten."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import episodes_of, row_list
from bepa_torchrl.experiment.record_lines import Kind, kind_of, step_fields, trained_line, untrained_line
from bepa_torchrl.experiment.record_size import record_bytes, thin_record
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.trace_replacement import GroupReport
from bepa_torchrl.storage.json_lines import RecordError, json_line, read_lines, stream_lines
from bepa_torchrl.storage.record_format import FORMAT, FORMAT_FILE, OUTCOMES, VERSION, image_path
from osworld_gym.atomic import replaced_file, sync, write_bytes, write_text
from osworld_gym.types import StopReason
from osworld_gym.uitars.coords import ImageScaling

_EVALUATION = "eval/"  #: metrics with this prefix belong to the iteration that was evaluated


class RunRecord:
    """The folder of one training run.

    - ``config.yaml``: the resolved settings;
    - ``iterations.jsonl``: the metrics of each iteration;
    - ``record.json``: the version of the record;
    - ``episodes.jsonl``: each episode with its advantage and the optimiser steps that it was in; of those that are kept
      whole also the steps, with texts, token ids and log-probs; injected traces name the expert's run they are from;
    - ``groups.jsonl``: what happened to each group: successes, refresh of the cache, injected trace;
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
        self._kinds: set[Kind] | None = None  # not yet read
        self._bytes: int | None = None  # not yet measured
        self._unsynced: set[str] = set()

    def begin(self, settings: str, *, action_text: str = "uitars", scaling: ImageScaling | None = None) -> None:
        """Creates the folder and writes ``settings`` to ``config.yaml``.

        Args:
            settings: the settings of the run, as YAML.
            action_text: the action text of the responses, a name of :data:`osworld_gym.action_text.ACTION_TEXTS`.
            scaling: from the responses' points to pixels of the screen; None: they are pixels of the screen.

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
        self.describe(action_text, scaling)

    def describe(self, action_text: str, scaling: ImageScaling | None) -> None:
        """Writes ``record.json``: the record's version, and how its responses are read, as of :meth:`begin`."""
        points = None if scaling is None else asdict(scaling)
        about = {"format": FORMAT, "version": VERSION, "action_text": action_text, "image_scaling": points}
        write_text(self.folder / FORMAT_FILE, json.dumps(about) + "\n")

    def rewind(self, iteration: int) -> None:
        """Removes the lines after an iteration; a resumed run writes them again.

        The lines of an evaluation have the iteration that it belongs to, and count as of ``reported_at``.
        """
        for name in ("iterations.jsonl", "episodes.jsonl", "groups.jsonl", "evaluations.jsonl"):
            path = self.folder / name
            if path.exists():
                with replaced_file(path) as file:
                    for line in stream_lines(path):
                        if line.get("reported_at", line["iteration"]) <= iteration:
                            file.write(json_line(line).encode())
        self._kinds = self._bytes = None

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
        lines = [{"mode": mode, **self._outcome(result)} for mode, results in played.items() for result in results]
        write_text(self.folder / OUTCOMES, "".join(json_line(line) for line in lines))

    def played(self, result: EpisodeResult, facts: Mapping[str, Any]) -> None:
        """Appends an episode of an evaluation to ``episodes.jsonl``; ``facts`` are further keys of its line."""
        self._append("episodes.jsonl", [self._outcome(result) | dict(facts)])

    def _outcome(self, result: EpisodeResult) -> dict[str, Any]:
        line = untrained_line(0, result) | _problem(result)
        del line["iteration"]
        return line | {"steps": [self._step(row) for row in ([] if result.rows is None else row_list(result.rows))]}

    def evaluated(self) -> set[int]:
        """Iterations of ``iterations.jsonl`` with results of an evaluation."""
        path = self.folder / "iterations.jsonl"
        lines = read_lines(path) if path.exists() else []
        return {line["iteration"] for line in lines if any(key.startswith(_EVALUATION) for key in line)}

    def episodes(
        self, iteration: int, batch: TensorDictBase, played: Sequence[EpisodeResult], *, whole: bool = True
    ) -> None:
        """Appends the episodes of an iteration: those trained on, those replaced, and those that failed.

        Args:
            iteration: the iteration.
            batch: its rows ``[R]`` after the optimiser steps.
            played: its rollouts.
            whole: whether the steps of all are kept; otherwise those of injected traces, of the rollouts that they
                replaced, and of the first episode of each task with each outcome.
        """
        trained = episodes_of(batch)
        injected = {(episode.group_id, episode.slot) for episode in trained if bool(episode.rows[0].get(K.OFF_POLICY))}
        used = {(episode.group_id, episode.slot) for episode in trained} - injected
        results = {(result.job.group_id, result.job.slot): result for result in played}
        pairs = []
        for episode in trained:
            line = trained_line(iteration, episode.rows)
            line |= _problem(None if line["off_policy"] else results.get((episode.group_id, episode.slot)))
            pairs.append((line, episode.rows))
        for at, result in results.items():
            if at not in used:
                replaced = at in injected and result.stop is not StopReason.env_error
                line = untrained_line(iteration, result, replaced=replaced) | _problem(result)
                pairs.append((line, [] if result.rows is None else row_list(result.rows)))
        lines = [self._with_steps(line, rows, whole=whole) for line, rows in pairs]
        self._append("episodes.jsonl", sorted(lines, key=lambda line: (line["group_id"], line["slot"])))

    def groups(self, iteration: int, reports: Iterable[GroupReport]) -> None:
        """Appends what happened to the groups of an iteration: successes, refresh of the cache, injected trace."""
        self._append("groups.jsonl", [{"iteration": iteration, **asdict(report)} for report in reports])

    def sync(self) -> None:
        """Flushes the lines to disk, without screenshots, before a checkpoint after which they are not written again.

        Raises:
            OSError: they cannot be flushed.
        """
        for name in sorted(self._unsynced):
            sync(self.folder / name)
        if self._unsynced:
            sync(self.folder)
        self._unsynced.clear()

    def thin(self, limit: int) -> str:
        """Takes steps and screenshots from the oldest episodes if the record is larger than ``limit`` bytes.

        Returns:
            a line for the user about what was removed; empty if nothing was.
        """
        if self._bytes is None:
            self._bytes = record_bytes(self.folder)
        if self._bytes <= limit:
            return ""
        thinned = thin_record(self.folder, limit)
        self._bytes, self._seen = record_bytes(self.folder), set()
        return str(thinned)

    def _with_steps(self, line: dict[str, Any], rows: Sequence[TensorDictBase], *, whole: bool) -> dict[str, Any]:
        """The line with its steps if it is kept whole, else with none."""
        kind, kinds = kind_of(line), self._kinds_so_far()
        keep = whole or line["off_policy"] or line["replaced"] or kind not in kinds
        kinds.add(kind)
        return line | {"whole": keep, "steps": [self._step(row) for row in rows] if keep else []}

    def _kinds_so_far(self) -> set[Kind]:
        """The kinds of episodes of which one is recorded, by this process or by an earlier one."""
        if self._kinds is None:
            path = self.folder / "episodes.jsonl"
            self._kinds = {kind_of(line) for line in (stream_lines(path) if path.exists() else ())}
        return self._kinds

    def _step(self, row: TensorDictBase) -> dict[str, Any]:
        return {"screenshot": self._image(cast(bytes, row[K.SCREENSHOT])), **step_fields(row)}

    def _image(self, png: bytes) -> str:
        """Stores a screenshot once; returns its hash."""
        name = hashlib.sha256(png).hexdigest()
        if self.images and name not in self._seen:
            path = image_path(self.folder, name)
            if not path.exists():
                write_bytes(path, png, durable=False)
                self._bytes = None if self._bytes is None else self._bytes + len(png)
            self._seen.add(name)
        return name

    def _append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        path = self.folder / name
        try:
            data = "".join(json_line(line) for line in lines).encode()
            with path.open("ab") as file:
                file.write(data)
            self._unsynced.add(name)
            self._bytes = None if self._bytes is None else self._bytes + len(data)
        except OSError as error:
            reason = f"could not be written ({error.strerror}); free some space and go on with resume=true"
            raise OSError(error.errno, reason, str(path)) from error


def _problem(result: EpisodeResult | None) -> dict[str, Any]:
    """Why what the policy left behind could not be read, whether it exceeded the evaluators' limits, and the judge."""
    verdict = None if result is None else result.verdict
    if verdict is None:
        return {}
    return {"problem": verdict.problem or None, "exhausted": verdict.exhausted, "judge": verdict.judge or None}


def rewind_logs(folder: Path, iteration: int, evaluated: Container[int]) -> None:
    """Removes what TorchRL's CSV and TensorBoard loggers wrote after an iteration; call before they are reopened.

    Args:
        folder: the folder of the loggers.
        iteration: the last one that is kept.
        evaluated: iterations whose evaluation is kept; one that is reported later is logged again.
    """

    def kept(tag: str, step: int) -> bool:
        return step <= iteration and (not tag.startswith(_EVALUATION) or step in evaluated)

    for path in folder.rglob("*.csv"):
        tag = f"{path.parent.name}/{path.stem}"
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]  # the last is empty, or torn
        steps = [line.partition(",")[0] for line in lines]  # a power failure may leave others than a number
        own = [x for x, n in zip(lines, steps, strict=True) if n.isdecimal() and kept(tag, int(n))]
        write_text(path, "".join(f"{line}\n" for line in own))
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
