"""Whether what a rollout cluster sends is the result of its lease: the trainer uses only what it can rely on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.queue_state import Lease
from bepa_torchrl.scale.wire.errors import ProtocolError
from osworld_gym.errors import FailureReason
from osworld_gym.types import StopReason

_OUTCOME = frozenset({"success", "stop", "failure", "versions"})
_WITH_FAILURE = (StopReason.env_error, StopReason.crashed_desktop)


def check_result(result: Any, lease: Lease, plan: RolloutPlan, *, failed: bool) -> None:
    """Checks a result that was decoded.

    Args:
        result: an :class:`EpisodeResult`, or of an evaluation the mapping of
            :func:`~bepa_torchrl.scale.rollouts.evaluations.episode_outcome`.
        lease: the lease that it ends.
        plan: the run's.
        failed: whether the episode failed because of the infrastructure, by the kind of the request.

    Raises:
        ProtocolError: it is not a result of this lease, or contradicts itself.
    """
    if lease.evaluation:
        stop = _check_outcome(result)
    elif isinstance(result, EpisodeResult):
        _check_episode(result, plan.job(lease.group, lease.slot, lease.task))
        stop = result.stop
    else:
        raise ProtocolError(f"expected an episode of group {lease.group}, got the outcome of one of an evaluation")
    if (stop is StopReason.env_error) != failed:
        kind = "fail" if failed else "complete"
        raise ProtocolError(f"expected 'fail' with {StopReason.env_error.value} only, got {kind!r} with {stop.value}")


def _check_outcome(outcome: Any) -> StopReason:
    """The stop reason of the outcome of an episode of an evaluation."""
    if not isinstance(outcome, Mapping):
        raise ProtocolError("expected the outcome of an episode of an evaluation, got an episode of a group")
    if outcome.keys() != _OUTCOME:
        odd = ", ".join(sorted(map(str, outcome.keys() ^ _OUTCOME)))
        raise ProtocolError(f"expected an outcome with {', '.join(sorted(_OUTCOME))}, these differ: {odd[:200]}")
    success, versions = outcome["success"], outcome["versions"]
    if type(success) is not bool:
        raise ProtocolError(f"expected true or false as success, got {str(success)[:80]!r}")
    if type(versions) is not list or len(versions) not in (0, 2) or any(type(each) is not int for each in versions):
        raise ProtocolError(f"expected no versions or the first and the last one, got {str(versions)[:80]!r}")
    try:
        stop = StopReason(outcome["stop"])
        failure = None if outcome["failure"] is None else FailureReason(outcome["failure"])
    except ValueError as error:
        raise ProtocolError(f"expected the outcome of an episode: {error}") from error
    _check_stop(stop, failure, success=success)
    return stop


def _check_episode(result: EpisodeResult, job: EpisodeJob) -> None:
    played = result.job
    if played != replace(job, prefix=None):  # which is not sent
        raise ProtocolError(
            f"expected the result of slot {job.slot} of group {job.group_id}, task {job.task.id}, with its seeds, got "
            f"one of slot {played.slot} of group {played.group_id}, task {played.task.id}"
        )
    _check_stop(result.stop, result.failure, success=result.success)
    prefix = 0 if job.prefix is None else job.prefix.steps
    if not 0 <= result.replayed <= prefix:
        raise ProtocolError(f"expected at most {prefix} replayed steps, got {result.replayed}")
    if result.verdict is not None and not math.isfinite(result.verdict.score):
        raise ProtocolError(f"expected a finite number as the verdict's score, got {result.verdict.score}")
    if result.rows is None:
        return
    rows = row_list(result.rows)
    if result.stop is StopReason.env_error or len(rows) <= result.replayed:
        raise ProtocolError(
            f"expected rows of an episode with a response, got {len(rows)} of one with {result.replayed} replayed "
            f"steps that ended with {result.stop.value}"
        )
    _check_rows(rows, result)


def _check_rows(rows: Sequence[TensorDictBase], result: EpisodeResult) -> None:
    job = result.job
    integers = {K.GROUP_ID: job.group_id, K.SLOT: job.slot, K.N_STEPS: len(rows)}
    texts = {K.TASK_ID: job.task.id, K.SOURCE: K.Source.on_policy.value, K.STOP_REASON: result.stop.value}
    for step, row in enumerate(rows):
        expected = integers | texts | {K.STEP: step, K.OFF_POLICY: False}
        given = {key: row[key] for key in texts}
        given |= {key: cast(Tensor, row.get(key)).item() for key in expected if key not in texts}
        if odd := [f"{key} {str(given[key])[:80]}" for key in expected if given[key] != expected[key]]:
            raise ProtocolError(f"expected row {step} to be one of its episode, got {', '.join(odd)}")
        _check_numbers(row, step, replayed=step < result.replayed)


def _check_numbers(row: TensorDictBase, step: int, *, replayed: bool) -> None:
    """Checks that a row's numbers are finite. Log-probs may be unknown: the old ones, and all of a replayed step."""
    unknown = {K.OLD_LOG_PROB, K.ROLLOUT_LOG_PROB} if replayed else {K.OLD_LOG_PROB}
    for key in (K.RETURN, K.ROLLOUT_LOG_PROB, K.OLD_LOG_PROB):
        values = cast(Tensor, row.get(key))
        odd = ~values.isfinite()
        if odd.any() and not (key in unknown and values.isnan().all()):
            name = key if isinstance(key, str) else ".".join(key)
            at = int(torch.nonzero(odd)[0])
            raise ProtocolError(f"expected finite numbers as {name} of row {step}, got {values[at].item()} at {at}")


def _check_stop(stop: StopReason, failure: FailureReason | None, *, success: bool) -> None:
    """Checks that a failure is stated if and only if the desktop failed, and that nothing failed has succeeded."""
    if (stop is StopReason.env_error and failure is None) or (failure is not None and stop not in _WITH_FAILURE):
        named = "none" if failure is None else failure.value
        raise ProtocolError(f"expected a failure of an episode whose desktop failed, got {named} with {stop.value}")
    if success and stop in _WITH_FAILURE:
        raise ProtocolError(f"expected no success of an episode that ended with {stop.value}")
