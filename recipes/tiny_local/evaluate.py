"""What the local policy must show on real desktops before methods are compared on it, and its measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from bepa_torchrl.data.seeding import Stream, derive_seed, desktop_seed, episode_key
from bepa_torchrl.experts.plan import plan_from_trace
from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.policies.base import ModelSampler
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from osworld_gym.desktops.base import Desktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.varied.instances import KNOWN, UNKNOWN
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

SPLITS = ("train", "held_out")
MAX_STEPS = 8  #: steps of an episode, as in ``configs/experiment/local.yaml``; the longest native script has 6
KNOWN_RATE = 0.80  #: minimum success on known tasks
UNKNOWN_RATE = 0.15  #: maximum success on unknown tasks
PLANNED_RATE = 0.50  #: minimum success on unknown tasks with the expert's plan


def measure(
    policy: ModelSampler, suite: Suite, make: Callable[[], Desktop], *, episodes: int, seed: int, desktops: int = 8
) -> dict[str, Any]:
    """Success rates of a policy on a suite's known and unknown tasks, sampled at temperature 1.

    Args:
        policy: acts.
        suite: has splits ``train`` and ``held_out`` of tasks with tags ``known`` and ``unknown``.
        make: creates one desktop.
        episodes: per task and setting.
        seed: the seed of desktops, sampling and the expert's runs.
        desktops: number of desktops in parallel.

    Returns:
        For each split ``known``, ``unknown``, ``unknown_planned``: success rates in [0, 1]; the last one with the plan
        of the expert's run at another seed. ``desktop_failures``: episodes that ended with one, which no rate counts.

    Raises:
        DesktopError: no desktop can be created, or the expert's run failed.
        ValueError: every episode of a setting failed.
    """
    jobs: list[EpisodeJob] = []
    names: list[tuple[str, str]] = []
    with make() as desktop:
        for split in SPLITS:
            for task in suite.split(split):
                settings = [KNOWN] if KNOWN in task.tags else [UNKNOWN, f"{UNKNOWN}_planned"]
                for setting in settings:
                    number = len(jobs)
                    plan = _plan(desktop, task, derive_seed(seed, Stream.EXPERT, number)) if "_" in setting else None
                    names += [(split, setting)] * episodes
                    jobs += _jobs(task, number, seed, episodes, plan)
    options = EpisodeOptions(max_steps=MAX_STEPS, scaling=policy.renderer.image_scaling)
    with closing(DesktopVector(make, desktops, options)) as v:
        results = run_episodes(policy, v, jobs)
    rates: dict[str, Any] = {split: {} for split in SPLITS}
    for split, setting in dict.fromkeys(names):
        rates[split][setting] = _rate([r for r, name in zip(results, names, strict=True) if name == (split, setting)])
    return rates | {"desktop_failures": sum(result.verdict is None for result in results)}


def gate_failures(measured: Mapping[str, Any]) -> list[str]:
    """What is wrong with a base policy, one line per failed condition; empty if it passes.

    Args:
        measured: result of :func:`measure`.
    """
    lines = []
    bounds = {KNOWN: (KNOWN_RATE, 1.0), UNKNOWN: (0.0, UNKNOWN_RATE), f"{UNKNOWN}_planned": (PLANNED_RATE, 1.0)}
    for split in SPLITS:
        for setting, (low, high) in bounds.items():
            rate = measured[split][setting]
            if not low <= rate <= high:
                lines.append(f"{split}: {setting}: expected {low:g} to {high:g}, measured {rate:g}")
    return lines


def _plan(desktop: Desktop, task: Task, seed: int) -> str:
    return plan_from_trace(record_expert(desktop, task, seed))


def _jobs(task: Task, number: int, seed: int, episodes: int, plan: str | None) -> list[EpisodeJob]:
    keys = [episode_key(seed, Stream.TINY_EVALUATION, int(plan is not None), number, slot) for slot in range(episodes)]
    return [EpisodeJob(task, key, desktop_seed(key), number, slot, plan) for slot, key in enumerate(keys)]


def _rate(results: Sequence[EpisodeResult]) -> float:
    """The share of successes among the episodes that a verifier judged."""
    judged = [result for result in results if result.verdict is not None]
    if not judged:
        raise ValueError(f"measure: expected at least one episode without a desktop failure, got {len(results)} failed")
    return round(sum(result.success for result in judged) / len(judged), 4)
