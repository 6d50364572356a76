"""The ledger of self-rollouts, ``selfroll.jsonl``: a line per attempt; and the table of its counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.self_rollout import Attempt, SelfRolloutSet
from bepa_torchrl.storage.json_lines import json_line
from osworld_gym.types import StopReason

SELFROLL = "selfroll.jsonl"


class AttemptFile:
    """``selfroll.jsonl`` in a folder, written from its start: an interrupted job adds kept attempts again.

    A line has the fields of :class:`~bepa_torchrl.experts.self_rollout.Attempt`; ``plan_hash``, ``try`` and ``verdict``
    (the score) are its ``plan``, ``attempt`` and ``score``.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / SELFROLL
        self.path.write_text("", encoding="utf-8")

    def add(self, attempt: Attempt) -> None:
        """Appends an attempt. Raises OSError if the disk is full."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_line(_line(attempt)))

    def extend(self, attempts: Iterable[Attempt]) -> None:
        """Appends several."""
        for attempt in attempts:
            self.add(attempt)


def _line(attempt: Attempt) -> dict[str, Any]:
    names = {"plan": "plan_hash", "attempt": "try", "score": "verdict"}
    return {names.get(name, name): value for name, value in asdict(attempt).items()}


def table(rolled: SelfRolloutSet, tasks: int) -> Iterator[str]:
    """Counts per expert: tasks that were tried, attempts, successes, kept, lost to the infrastructure, mean steps.

    Args:
        rolled: all self-rollouts.
        tasks: number of tasks that have a trace.
    """
    yield "expert            tasks  tries  successes  kept  lost  mean steps"
    for expert in dict.fromkeys(attempt.expert for attempt in rolled.attempts):
        own = [attempt for attempt in rolled.attempts if attempt.expert == expert]
        played = [attempt for attempt in own if attempt.stop != StopReason.env_error.value]
        wins = sum(attempt.score == 1.0 for attempt in own)
        kept = sum(attempt.kept for attempt in own)
        steps = sum(attempt.steps for attempt in played) / max(1, len(played))
        tried = len({attempt.task for attempt in own})
        lost = len(own) - len(played)
        yield f"{expert:<16}  {tried:>5}  {len(own):>5}  {wins:>9}  {kept:>4}  {lost:>4}  {steps:>10.1f}"
    yield f"{tasks} tasks with a trace, {len(rolled.entries)} self-rolled; {rolled.unplanned} traces without a plan"
    if rolled.leaking:
        yield f"{rolled.leaking} successes rejected, whose thoughts quote the plan (expert.max_leak)"
    yield f"{rolled.leak_rate:.0%} of the thoughts of successes mention or quote the plan"
