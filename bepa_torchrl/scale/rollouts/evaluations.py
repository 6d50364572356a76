"""Evaluations as tasks of the queue: played by the workers of the rollouts, reported when complete, never trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bepa_torchrl.evaluation.success_rate import Evaluation, evaluation_job
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from bepa_torchrl.scale.rollouts.task_queue import FinishedGroup
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The episodes of every evaluation of a run; slot s is episode ``s % episodes`` of task ``s // episodes``.

    Args:
        tasks: every task is played ``episodes`` times.
        episodes: per task.
        seed: seed of desktops and sampling.
        temperature: sampling temperature; 0 is greedy.
    """

    tasks: tuple[Task, ...]
    episodes: int
    seed: int
    temperature: float

    @property
    def size(self) -> int:
        """Number of slots."""
        return len(self.tasks) * self.episodes

    def job(self, slot: int) -> EpisodeJob:
        """The job of a slot."""
        number, episode = divmod(slot, self.episodes)
        return evaluation_job(self.tasks[number], self.seed, number, episode)


def episode_outcome(result: EpisodeResult, versions: Sequence[int]) -> dict[str, Any]:
    """What a worker returns for an episode of an evaluation, as JSON-compatible values; no rows.

    Args:
        result: the result of the episode.
        versions: the versions of the weights of its turns, in order.
    """
    return {
        "success": result.success,
        "stop": result.stop.value,
        "failure": None if result.failure is None else result.failure.value,
        "versions": [versions[0], versions[-1]] if versions else [],
    }


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """An evaluation whose episodes have all ended.

    Args:
        iteration: at whose end it was requested.
        version: the version of the weights at that time.
        episodes: one JSON-compatible mapping per episode: ``task_id``, ``episode``, ``requested_version`` and the
            entries of :func:`episode_outcome`; ``reason`` if the slot was given up.
    """

    iteration: int
    version: int
    episodes: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, plan: EvaluationPlan, group: FinishedGroup) -> FinishedEvaluation:
        """Makes one from the queue's result; a slot that was given up is an infrastructure failure."""
        iteration, version = group.task
        given_up = {
            "success": False,
            "stop": StopReason.env_error.value,
            "failure": FailureReason.died.value,
            "versions": [],
        }
        episodes = []
        for slot, outcome in enumerate(group.results):
            job = plan.job(slot)
            known = {"task_id": job.task.id, "episode": job.slot, "requested_version": version}
            reason = {"reason": group.reasons[slot]} if slot in group.reasons else {}
            episodes.append(known | (given_up if outcome is None else outcome) | reason)
        return cls(iteration, version, tuple(episodes))

    @property
    def counts(self) -> Evaluation:
        """Successes and valid episodes per task, as of :func:`~bepa_torchrl.evaluation.success_rate.evaluate`."""
        counts: dict[str, tuple[int, int]] = {}
        for episode in self.episodes:
            wins, played = counts.get(episode["task_id"], (0, 0))
            counts[episode["task_id"]] = (wins + episode["success"], played + _valid(episode))
        return Evaluation(counts)

    def metrics(self) -> dict[str, float]:
        """Episodes, failures, and the optimiser steps between the request and the weights that played (``lag``)."""
        lags = [episode["versions"][-1] - self.version for episode in self.episodes if episode["versions"]]
        metrics = {
            "episodes": float(len(self.episodes)),
            "failures": float(sum(not _valid(episode) for episode in self.episodes)),
        }
        if lags:
            metrics |= {"version_lag_mean": sum(lags) / len(lags), "version_lag_max": float(max(lags))}
        return metrics


def _valid(episode: Mapping[str, Any]) -> bool:
    """Whether an episode has a score; one that crashed its desktop has, although it states a failure."""
    return bool(episode["stop"] != StopReason.env_error.value)
