"""Reads the record of a run's methods: episodes without their steps, groups, the steps of chosen episodes.

Imports no torch. Files are read line by line, so a record larger than the memory can be read; a run that is running
has a last line that may be incomplete, which is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from bepa_torchrl.storage.json_lines import RecordError, stream_lines
from bepa_torchrl.storage.record_fields import GROUP, check_episode, check_fields, check_metrics
from bepa_torchrl.storage.record_format import method_folders, near_run, record_version
from bepa_torchrl.storage.run_folders import SETTINGS

EPISODES, GROUPS = "episodes.jsonl", "groups.jsonl"


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of a record, without its steps.

    Args:
        id: unique in the method's run: ``12-3``, or ``12-3-injected`` for the cached trace at that slot.
        iteration: in which it was trained, or played; None in an evaluation.
        group_id: the ID of its group.
        slot: in the group.
        task_id: the task.
        source: value of a :class:`bepa_torchrl.data.keys.Source`.
        provenance: fields of :class:`bepa_torchrl.data.provenance.Provenance`, or None.
        copied_from: id of the rollout that an injected trace is a copy of; None for one of an expert.
        off_policy: whether it was injected.
        replaced: whether an injected trace took its place.
        trained: whether its rows were in the batch.
        policy_version: of the policy that sampled it, in optimiser steps; None if there was no response.
        updates: the policy's versions after the optimiser steps that it was in; None: the record has none.
        age: optimiser steps between its policy and its first update; None without one.
        reward: the reward of the whole episode; None if the desktop failed.
        advantage: None unless trained.
        stop_reason: why it ended.
        failure: the failure of the desktop, or None.
        n_steps: its number of steps.
        whole: whether the record has its steps.
    """

    id: str
    iteration: int | None
    group_id: int
    slot: int
    task_id: str
    source: str
    provenance: Mapping[str, Any] | None
    copied_from: str | None
    off_policy: bool
    replaced: bool
    trained: bool
    policy_version: int | None
    updates: tuple[int, ...] | None
    age: int | None
    reward: float | None
    advantage: float | None
    stop_reason: str
    failure: str | None
    n_steps: int
    whole: bool

    @property
    def origin(self) -> str:
        """``on_policy``, ``refreshed`` (an injected success of the policy's own), or the source of an expert's."""
        return "refreshed" if self.off_policy and self.source == "on_policy" else self.source


def upgraded(line: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A line of ``episodes.jsonl`` of any version with the fields of the newest.

    Version 1 did not record optimiser steps (``updates`` is None) and had whole episodes only. A rollout that had a
    reward and was not trained on was replaced.
    """
    if "outcome" in line:
        return {"iteration": None, "whole": True, **line}  # an evaluation belongs to none, and keeps all steps
    if "id" in line or version > 1:
        return dict(line)
    injected = bool(line["off_policy"])
    return {
        **line,
        "id": f"{line['group_id']}-{line['slot']}{'-injected' if injected else ''}",
        "provenance": line.get("provenance"),
        "copied_from": None,
        "replaced": not line["trained"] and line["reward"] is not None,
        "updates": None,
        "age": None,
        "n_steps": len(line["steps"]),
        "whole": True,
    }


@dataclass(frozen=True)
class MethodRecord:
    """The record of one method.

    Args:
        folder: the method's.
        version: the version of the record.
    """

    folder: Path
    version: int

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """All episodes, in the order of the record."""
        return tuple(_episode(line) for line in self.lines())

    @cached_property
    def by_id(self) -> dict[str, Episode]:
        return {episode.id: episode for episode in self.episodes}

    def lines(self) -> Iterator[dict[str, Any]]:
        """All episodes with their steps, as JSON values.

        Raises:
            RecordError: a line is damaged, or a field of it is missing, of another type or out of its range.
        """
        path = self.folder / EPISODES
        for number, line in enumerate(stream_lines(path) if path.exists() else (), 1):
            where = f"{path}: line {number}"
            try:
                episode = upgraded(line, self.version)
            except (KeyError, TypeError) as error:
                raise _incomplete(where, error) from error
            check_episode(where, episode)
            yield episode

    def groups(self) -> list[dict[str, Any]]:
        """What happened to each group; empty for version 1.

        Raises:
            RecordError: a line is damaged.
        """
        return self._checked(GROUPS, partial(check_fields, kinds=GROUP))

    def iterations(self) -> list[dict[str, Any]]:
        """The metrics of each iteration.

        Raises:
            RecordError: a line is damaged.
        """
        return self._checked("iterations.jsonl", check_metrics)

    def _checked(self, name: str, check: Callable[[str, dict[str, Any]], None]) -> list[dict[str, Any]]:
        path = self.folder / name
        lines = list(stream_lines(path)) if path.exists() else []
        for number, line in enumerate(lines, 1):
            check(f"{path}: line {number}", line)
        return lines


def find_records(run: Path) -> list[MethodRecord]:
    """The records of a run's methods, or of the one method whose folder this is.

    Raises:
        RecordError: no record is there, also since no iteration is complete yet, or one is of a newer version.
    """
    folders = [run] if _is_method(run) else sorted(path for path in run.glob("*/") if _is_method(path))
    if not folders:
        if (run / SETTINGS).is_file() or method_folders(run):
            raise RecordError(
                f"{run}: expected a run that has a record, which begins with the first iteration; none is complete "
                "yet, see bepa status"
            )
        said = "expected the folder of a run, with a folder per method, or of one method"
        raise RecordError(f"{run}: {said}; {near_run(run)}")
    return [MethodRecord(folder, record_version(folder)) for folder in folders]


def _is_method(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("iterations.jsonl", EPISODES))


_NAMES = tuple(field.name for field in fields(Episode))


def _episode(line: Mapping[str, Any]) -> Episode:
    values = {name: line[name] for name in _NAMES}
    updates = values["updates"]
    return Episode(**values | {"updates": None if updates is None else tuple(updates)})


def _incomplete(where: str, error: Exception) -> RecordError:
    return RecordError(f"{where} is not an episode ({type(error).__name__}: {error}); restore the file")
