"""Leases and the run's plan as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.task_queue import Lease
from bepa_torchrl.scale.wire.errors import ProtocolError
from osworld_gym.errors import TaskError
from osworld_gym.tasks.task import Task


def encode_lease(lease: Lease) -> dict[str, Any]:
    """The lease as JSON values; its task must be one."""
    return asdict(lease)


def decode_lease(fields: Mapping[str, Any]) -> Lease:
    """The inverse of :func:`encode_lease`. Raises ProtocolError: not a lease."""
    try:
        return Lease(**fields)
    except TypeError as error:
        raise ProtocolError(f"expected a lease: {error}") from error


def encode_plan(plan: RolloutPlan) -> dict[str, Any]:
    """The plan as JSON values, with the tasks as OSWorld's task files."""
    evaluation = plan.evaluation
    return {
        "tasks": [task.to_json() for task in plan.tasks],
        "seeds": asdict(plan.seeds),
        "temperature": plan.temperature,
        "retries": plan.retries,
        "evaluation": None
        if evaluation is None
        else {
            "tasks": [task.to_json() for task in evaluation.tasks],
            "episodes": evaluation.episodes,
            "seed": evaluation.seed,
            "temperature": evaluation.temperature,
        },
    }


def decode_plan(fields: Mapping[str, Any]) -> RolloutPlan:
    """The inverse of :func:`encode_plan`. Raises ProtocolError: not a plan."""
    try:
        seeds, evaluation = fields["seeds"], fields["evaluation"]
        return RolloutPlan(
            _tasks(fields),
            RolloutSeeds(int(seeds["seed"]), str(seeds["env_seed"])),
            float(fields["temperature"]),
            int(fields["retries"]),
            None
            if evaluation is None
            else EvaluationPlan(
                _tasks(evaluation),
                int(evaluation["episodes"]),
                int(evaluation["seed"]),
                float(evaluation["temperature"]),
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, TaskError) as error:
        raise ProtocolError(f"expected the plan of a run: {type(error).__name__}: {error}") from error


def _tasks(fields: Mapping[str, Any]) -> tuple[Task, ...]:
    return tuple(Task.from_json(task, where="the trainer's plan") for task in fields["tasks"])
