"""Prefixes: the first k actions of a cached success are replayed, and the policy goes on from there.

PrefixRL (arXiv:2601.18795), Prefix Sampling (2605.05112), AdaPrefix-GRPO (2607.07674); the rule for k is ours
(docs/definitions.md, "Prefix replay").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import provenance_of
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.replay import Prefix, mean_hash
from osworld_gym.types import StopReason


def next_length(k: int, pass_rate: float, length: int, *, gain: float) -> int:
    """``clip(k + round(gain (1/2 - pass_rate) length), 0, length - 1)``, a half rounded up: the next prefix's steps.

    Args:
        k: steps of the prefix that the group had.
        pass_rate: share of the group's valid rollouts that succeeded, in [0, 1].
        length: steps of the cached trace, at least 1.
        gain: above 0.
    """
    # a pass rate of 2/5 is no exact float: without rounding, 1/10 of 5 steps would not be a half
    step = math.floor(round(gain * (0.5 - pass_rate) * length, 9) + 0.5)
    return min(max(k + step, 0), length - 1)


class PrefixLengths:
    """The number of replayed steps of each task, steered so that half of the rollouts succeed.

    A task begins without a prefix. It has none any more as soon as a rollout without one has succeeded. Where a screen
    after a replay was not the stored one, later prefixes of the task end before that step.

    Args:
        cache: the successes; a trace can be replayed if it states the desktop's seed.
        gain: the gain of :func:`next_length`.

    Raises:
        ValueError: ``gain`` is not above 0.
    """

    def __init__(self, cache: TaskTraceCache, *, gain: float = 1.0) -> None:
        if not gain > 0:
            raise ValueError(f"gain must be above 0, got {gain}")
        self.cache, self.gain = cache, gain
        self._lengths: dict[str, int] = {}
        self._limits: dict[str, int] = {}  #: longest prefix whose screens were as stored
        self._solved: set[str] = set()

    def prefix(self, task_id: str) -> Prefix | None:
        """What is replayed before the rollouts of the task's next group; None: nothing."""
        trace = self.cache.get_trace(task_id)
        k = 0 if trace is None else min(self._lengths.get(task_id, 0), len(trace) - 1)
        return replayed_part(trace, k) if k > 0 else None

    def note(self, results: Sequence[EpisodeResult]) -> None:
        """Sets the next prefix of a task by the results of one group, which had the same prefix.

        Only valid rollouts count. Without any, or without a trace that can be replayed, nothing changes.
        """
        task_id, prefix = results[0].job.task.id, results[0].job.prefix
        valid = [result for result in results if result.stop is not StopReason.env_error]
        if not valid or task_id in self._solved:
            return
        if any(result.success and not result.replayed for result in valid):
            self._solved.add(task_id)
            self._lengths.pop(task_id, None)
            return
        trace = self.cache.get_trace(task_id)
        if trace is None or _seed_of(trace) is None:
            return
        for result in valid:
            if result.mismatch:
                self._limits[task_id] = min(self._limits.get(task_id, len(trace)), max(0, result.replayed - 1))
        rate = sum(result.success for result in valid) / len(valid)
        k = next_length(0 if prefix is None else prefix.steps, rate, len(trace), gain=self.gain)
        self._lengths[task_id] = min(k, self._limits.get(task_id, k))

    def state_dict(self) -> dict[str, Any]:
        """JSON-compatible."""
        return {"lengths": dict(self._lengths), "limits": dict(self._limits), "solved": sorted(self._solved)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a :meth:`state_dict`."""
        self._lengths = {str(task): int(k) for task, k in state["lengths"].items()}
        self._limits = {str(task): int(k) for task, k in state["limits"].items()}
        self._solved = {str(task) for task in state["solved"]}


def replayed_part(trace: TensorDictBase, k: int) -> Prefix | None:
    """The first ``k`` of the S steps of a trace ``[S]``, 0 < k < S; None if it does not state the desktop's seed."""
    seed, rows = _seed_of(trace), row_list(trace)
    if seed is None:
        return None
    return Prefix(
        seed,
        tuple(cast(str, row[K.RESPONSE]) for row in rows[:k]),
        tuple(tuple(cast(Tensor, row.get(K.RESPONSE_TOKENS)).tolist()) for row in rows[:k]),
        tuple(mean_hash(cast(bytes, row[K.SCREENSHOT])) for row in rows[: k + 1]),
    )


def check_replayable(cache: TaskTraceCache, where: str) -> int:
    """The number of tasks whose trace can be replayed.

    Converted traces (``expert.seed_from_converted``) were played by the expert, and never are.

    Args:
        cache: the traces of a method with prefixes.
        where: what the cache is of, for the message.

    Raises:
        ValueError: a self-rolled trace does not state the seed of its desktop, as those of earlier versions, so that
            its task would be trained as by GRPO.
    """
    traces = {task_id: cache.get_trace(task_id) for task_id in cache.task_ids()}
    without = [task_id for task_id, trace in traces.items() if _seed_of(trace) is None]
    old = [task_id for task_id in without if not _converted(traces[task_id])]
    if old:
        raise ValueError(
            f"algo=prefix: {len(old)} of the {len(traces)} traces of {where} do not state the seed of the desktop on "
            f"which they were played (first {old[0]!r}), as those of earlier versions, and cannot be replayed; make "
            "them again with `bepa experts selfroll`, or leave cache.seed out and start a run that makes its own"
        )
    return len(traces) - len(without)


def _converted(trace: TensorDictBase) -> bool:
    provenance = provenance_of(row_list(trace)[0])
    return provenance is not None and provenance.attempt is None


def _seed_of(trace: TensorDictBase) -> int | None:
    provenance = provenance_of(row_list(trace)[0])
    return None if provenance is None else provenance.env_seed


def prefix_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """What prefixes cost and did in an iteration; empty if no job had one.

    ``prefix_episodes``, ``prefix_steps`` (mean steps of their prefixes), ``prefix_mismatches`` (episodes in which a
    screen was not the stored one), ``replayed_steps`` (of the desktops, without a response of the policy), and
    ``success_unprefixed``, the success rate of valid episodes without one, absent if there is none.
    """
    with_prefix = [result for result in results if result.job.prefix is not None]
    if not with_prefix:
        return {}
    metrics = {
        "prefix_episodes": float(len(with_prefix)),
        "prefix_steps": sum(cast(Prefix, result.job.prefix).steps for result in with_prefix) / len(with_prefix),
        "prefix_mismatches": float(sum(result.mismatch for result in with_prefix)),
        "replayed_steps": float(sum(result.replayed for result in with_prefix)),
    }
    valid = [r for r in results if r.job.prefix is None and r.stop is not StopReason.env_error]
    return metrics | ({"success_unprefixed": sum(r.success for r in valid) / len(valid)} if valid else {})
