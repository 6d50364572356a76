"""AsyncGroupCollector: a TorchRL collector that takes finished groups from the queue while workers play the next."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.weight_update import WeightSyncScheme

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.seeding import EpisodeKey
from bepa_torchrl.data.step_rows import int_entry, stack_rows
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.rollout.desktop_use import failure_metrics
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.group_collector import CollectedIteration, DynamicSampling, GroupRolloutCollector
from bepa_torchrl.scale.engine.metrics import merged
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan, FinishedEvaluation
from bepa_torchrl.scale.rollouts.task_queue import FinishedGroup
from bepa_torchrl.scale.rollouts.thread_dump import waiting_threads
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

_log = logging.getLogger(__name__)
_MIN_DROPPED = 3  #: tasks whose groups are dropped in a row, until a run of small batches ends
_CHECK_EVERY = 5.0  #: seconds between two checks of the workers while the trainer waits


class GroupSource(Protocol):
    """How the trainer reaches the queue (:class:`bepa_torchrl.scale.rollouts.queue_service.QueueService`)."""

    def capacity_left(self) -> int: ...
    def admit(self, task: Any, size: int) -> int: ...
    def next_group(self, timeout: float) -> FinishedGroup | None: ...
    def finished_groups(self) -> int: ...
    def admit_evaluation(self, task: Any, size: int) -> int: ...
    def next_evaluation(self, timeout: float) -> FinishedGroup | None: ...
    def end_rollouts(self) -> None: ...
    def take(self, group: int) -> None: ...
    def drop(self, group: int) -> None: ...
    def trained(self) -> None: ...
    def describe(self) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class AsyncIteration(CollectedIteration):
    """One batch of groups, with their ages.

    Args:
        ages: per group, batches trained between its admission and its own training.
        version_lags: per row, optimiser steps between the weights that sampled it and the trainer's.
        queue: the queue's metrics at the end of the iteration.
    """

    ages: tuple[int, ...] = ()
    version_lags: tuple[int, ...] = ()
    queue: Mapping[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The metrics of :class:`CollectedIteration`, and those of asynchronous rollouts.

        - mean and maximum of ``staleness`` and ``version_lag``, and the groups of each staleness, ``staleness_<n>``;
        - of the queue: ``queue_waiting_slots``, ``queue_open_groups``, ``queue_finished_groups``;
        - of the desktops: ``desktops_known``, those of the workers that the queue has heard of; since the iteration
          before ``desktop_seconds``, that they were there, ``busy_seconds``, that they played, and ``desktops_busy``,
          the mean number that did;
        - ``failed_<reason>``: failed attempts at the batch's episodes, those of dropped groups included.
        """
        failures = Counter(reason for result in self.results for reason in result.failures)
        metrics = CollectedIteration.metrics(self) | failure_metrics(failures)
        for name, values in (("staleness", self.ages), ("version_lag", self.version_lags)):
            if values:
                metrics |= {f"{name}_mean": sum(values) / len(values), f"{name}_max": float(max(values))}
        ages = Counter(self.ages)
        return metrics | {f"staleness_{age}": float(count) for age, count in sorted(ages.items())} | dict(self.queue)


class AsyncGroupCollector(GroupRolloutCollector):
    """Yields batches of whole groups from the queue; the postproc and everything after it are as for lock-step.

    Each ``rollout`` first counts the previous batch as trained, publishes the weights and admits as many groups as the
    queue takes, then waits for a batch. A group with fewer than two valid episodes is dropped, its task is
    requeued, and another group is admitted in its stead. So is one without a signal, at most ``further`` times per
    batch; its rows are in the batch, for the cache, until the postproc leaves them out.

    Args:
        env: as of :class:`GroupRolloutCollector`; its desktops are not used for rollouts.
        policy: the trainer's.
        tasks: the training tasks.
        queue: the queue; its ``batch_groups`` must be ``groups``.
        weight_sync_schemes: ``{"policy": scheme}``, as of a stock collector: sends the trainer's weights and version to
            the rollout services (:class:`~bepa_torchrl.rollout.weight_sync.ServiceWeightSync`), each time that they
            have changed before a batch or an evaluation.
        evaluation: the episodes of :meth:`evaluate`; None: there are none.
        stall_seconds: without a finished group, whichever it is, after which waiting ends with an error.
        on_shutdown: ends what plays the groups; called once.
        on_restart: restarts the workers one after the other, without waiting; None: they cannot be restarted.
        on_metrics: metrics of the rollout services' engines since its last call, one mapping per service.
        on_routing: how turns were spread over the rollout services since its last call.
        on_stall: describes what every worker and rollout service waits for, as JSON-compatible values.
        check: raises DesktopError if nobody is left who could play; called while the trainer waits.
        check_trainer: raises RankLostError if another rank of the trainer has exited; called as ``check``.
        options: further arguments of :class:`GroupRolloutCollector`.

    Raises:
        ValueError: no scheme of the model ``policy``, or as of :class:`GroupRolloutCollector`.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: Policy,
        tasks: Sequence[Task],
        *,
        queue: GroupSource,
        weight_sync_schemes: dict[str, WeightSyncScheme],
        evaluation: EvaluationPlan | None = None,
        stall_seconds: float = 1800.0,
        on_shutdown: Callable[[], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        on_metrics: Callable[[], Sequence[Mapping[str, float]]] = tuple,
        on_routing: Callable[[], Mapping[str, float]] = dict,
        on_stall: Callable[[], Mapping[str, Any]] = dict,
        check: Callable[[], None] = lambda: None,
        check_trainer: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        if "policy" not in weight_sync_schemes:
            raise ValueError(
                f"expected a scheme for the model 'policy' in weight_sync_schemes, got {sorted(weight_sync_schemes)}; "
                "pass {'policy': ServiceWeightSync(service.load_weights)}"
            )
        super().__init__(env, policy, tasks, weight_sync_schemes=weight_sync_schemes, **options)
        self._checks = (check_trainer, check)
        self._on_shutdown, self._on_restart, self._on_stall = on_shutdown, on_restart, on_stall
        self._on_metrics, self._on_routing = on_metrics, on_routing
        self.queue, self._stall_seconds = queue, stall_seconds
        self._evaluation = evaluation
        self._trainable = policy
        self._published: int | None = None
        self._restored: dict[str, Any] | None = None  #: the queue's state of a checkpoint, until the first weights
        self._taken_batch = False
        self._admissions = 0
        self._dropped: set[str] = set()  #: tasks whose groups were dropped since one was trained
        self._used = (0.0, 0.0, time.monotonic())  #: the queue's busy and desktop seconds, and when they were read

    @property
    def plan(self) -> RolloutPlan:
        """What workers must know."""
        return RolloutPlan(self.tasks, self.rollout_seeds, self.temperature, self.retries, self._evaluation)

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """The rows ``[R]`` of the next batch of groups.

        Raises:
            DesktopError: no group was finished for ``stall_seconds``; the message says what every lease waits for. Or
                nobody is left who could play. Or the groups of as many tasks were dropped in a row as a batch has, at
                least three, or of all tasks.
            RuntimeError: the queue returned a group that is not whole.
        """
        self.iteration += 1
        self._settle()
        self._publish_changes()
        self._admit()
        results: list[EpisodeResult] = []
        rows: list[TensorDictBase] = []
        ages: list[int] = []
        dropped: list[str] = []
        without_signal = further = episodes = 0
        while len(ages) < self.groups:
            group = self._next_group()
            members = self._results(group)
            if self.prefixes is not None:
                self.prefixes.note(members)
            complete, requeued = self._complete_groups(members)
            results += members
            if requeued:
                self._drop(group, members)
                without_signal += 1
                dropped.append(self.tasks[requeued[0]].id)
                self._requeue(requeued[0])
                self._admit()
                continue
            self._dropped.clear()
            self._collected([EpisodeKey(*members[0].job.key).task])
            self._report_given_up(group)
            rows += complete
            if not self._signal(members):
                without_signal += 1
                if further < self.further:
                    further, episodes = further + 1, episodes + len(members)
                    self.queue.drop(group.group)
                    self._admit()
                    continue
            self.queue.take(group.group)
            ages.append(group.age)
        self._taken_batch = True
        lags = tuple(self._trainable.version - int_entry(row, K.POLICY_VERSION) for row in rows)
        sampling = DynamicSampling(without_signal, further, episodes) if self.further else None
        queue = self._queue_metrics()
        self.last = AsyncIteration(
            self.iteration, tuple(results), tuple(dropped), tuple(ages), lags, queue, sampling=sampling
        )
        return stack_rows(sorted(rows, key=lambda row: int_entry(row, K.GROUP_ID)))

    def update_policy_weights_(self, policy_or_weights: Any = None, **options: Any) -> None:
        """Sends the trainer's weights by the scheme; is called before a batch if they changed, and by TorchRL's hooks.

        Args:
            policy_or_weights: None, or the collector's policy.
            options: the options of TorchRL's method, which the scheme understands.

        Raises:
            ValueError: other weights. DesktopError, TimeoutError or RuntimeError: the services do not use them.
        """
        version = self._trainable.version
        given = None if policy_or_weights is self._trainable else policy_or_weights
        super().update_policy_weights_(given, **options)
        self._published = version

    def engine_metrics(self) -> dict[str, float]:
        """The metrics of the base class, over the engines of all rollout services, and how turns were spread."""
        return merged(self._on_metrics()) | dict(self._on_routing())

    def _publish_changes(self) -> None:
        """Sends the weights if they changed; the slots of a checkpoint wait for the first: a lease would expire."""
        if self._published != self._trainable.version:
            self.update_policy_weights_()
        if self._restored is not None:
            self.queue.load_state_dict(self._restored)
            self._restored = None

    def restart_workers(self) -> bool:
        """Restarts the workers one after the other, each after its episodes; False if there are none to restart."""
        if self._on_restart is None:
            return False
        self._on_restart()
        return True

    # --- evaluations --------------------------------------------------------------------------------------------

    def evaluate(self, iteration: int) -> None:
        """Requests an evaluation of the current weights, which the workers play while the training goes on.

        Episodes that start after the next update are played with newer weights; each states their version.

        Raises:
            ValueError: the collector has no ``evaluation``.
        """
        if self._evaluation is None:
            raise ValueError("evaluate requires evaluation=, the episodes to play")
        self._publish_changes()
        self.queue.admit_evaluation([iteration, self._trainable.version], self._evaluation.size)

    def finished_evaluations(self) -> list[FinishedEvaluation]:
        """The complete evaluations that were not returned before; does not wait."""
        evaluations = []
        while self._evaluation is not None and (group := self.queue.next_evaluation(0.0)) is not None:
            evaluations.append(FinishedEvaluation.of(self._evaluation, group))
        return evaluations

    def remaining_evaluations(self) -> list[FinishedEvaluation]:
        """Waits for all evaluations; no rollout is started any more.

        Raises:
            DesktopError: no episode was finished for ``stall_seconds``.
        """
        if self._evaluation is None:
            return []
        if self._restored is not None:
            self._publish_changes()
        self.queue.end_rollouts()
        evaluations = self.finished_evaluations()
        while self.queue.describe()["evaluations"]:
            group = self._wait_for(self.queue.next_evaluation, self._ended_slots, "no episode of an evaluation")
            evaluations.append(FinishedEvaluation.of(self._evaluation, group))
        return evaluations

    def _ended_slots(self) -> int:
        state = self.queue.describe()
        return int(state.get("completed", 0)) + int(state.get("given_up", 0))

    # --- groups -------------------------------------------------------------------------------------------------

    def _queue_metrics(self) -> dict[str, float]:
        state, now = self.queue.describe(), time.monotonic()
        used = (float(state["busy_seconds"]), float(state["desktop_seconds"]), now)
        busy, there, seconds = (max(0.0, new - old) for new, old in zip(used, self._used, strict=True))
        self._used = used
        metrics = {f"queue_{name}": float(state[name]) for name in ("waiting_slots", "open_groups", "finished_groups")}
        metrics |= {"desktops_known": float(state["desktops"]), "desktops_busy": busy / max(seconds, 1e-9)}
        return metrics | {"busy_seconds": busy, "desktop_seconds": there}

    def _settle(self) -> None:
        """Counts the last batch as trained."""
        if self._taken_batch:
            self.queue.trained()
            self._taken_batch = False

    def _admit(self) -> None:
        """Admits as many groups as the queue takes, at most ``groups`` at a time, which have different tasks."""
        while (left := self.queue.capacity_left()) > 0:
            for task_number in self.schedule.next_batch(min(left, self.groups)):
                task = self.tasks[task_number]
                prefix = None if self.prefixes is None else self.prefixes.prefix(task.id)
                replayed = [] if prefix is None else [prefix.to_json()]
                self.queue.admit([task_number, self._admissions, *replayed], self.size_of(task))
                self.next_group += 1
            self._admissions += 1  # in the place of the iteration in seed keys: the same without dropped groups

    def _next_group(self) -> FinishedGroup:
        """The next finished group of the queue, which gives up leases of workers that are gone meanwhile."""
        return self._wait_for(self.queue.next_group, self.queue.finished_groups, "no group")

    def _wait_for(
        self, ask: Callable[[float], FinishedGroup | None], progress: Callable[[], int], what: str
    ) -> FinishedGroup:
        """What ``ask`` returns in the end.

        Args:
            ask: waits so many seconds.
            progress: changes while others are finished than the one that is waited for.
            what: is not finished in a stall.

        Raises:
            DesktopError: no progress for ``stall_seconds``, or nobody is left who could play.
        """
        seen, since = progress(), time.monotonic()
        while (group := ask(min(_CHECK_EVERY, self._stall_seconds))) is None:
            for check in self._checks:
                check()
            now, current = time.monotonic(), progress()
            if current != seen:
                seen, since = current, now
            elif now - since >= self._stall_seconds:
                raise self._stalled(what, now - since)
        return group

    def _stalled(self, what: str, seconds: float) -> DesktopError:
        waits = {**self._on_stall(), "trainer": {"threads": waiting_threads()}}
        _log.error(
            "%s was finished for %.0f s; what each part waits for:\n%s", what, seconds, json.dumps(waits, indent=1)
        )
        return DesktopError(
            FailureReason.hung,
            f"{what} was finished for {seconds:.0f} s; check the workers (what each waits for is in the log), then go "
            f"on with resume=true; the queue: {json.dumps(self.queue.describe())}",
        )

    def _drop(self, group: FinishedGroup, members: Sequence[EpisodeResult]) -> None:
        """Raises DesktopError if no group succeeds any more, as lock-step collection does after one batch."""
        self.queue.drop(group.group)
        reasons = {**{r.job.slot: r.failure.value for r in members if r.failure is not None}, **group.reasons}
        why = "; ".join(f"slot {slot}: {reason}" for slot, reason in sorted(reasons.items()))
        task = self.tasks[EpisodeKey(*members[0].job.key).task].id
        self._dropped.add(task)
        if len(self._dropped) >= min(max(_MIN_DROPPED, self.groups), len(self.tasks)):
            problem = f"no group of {len(self._dropped)} tasks in a row had two valid episodes"
            raise DesktopError(FailureReason.died, f"{problem}; the last one, of task {task}: {why}")
        _log.warning(
            "group %d (task %s) is dropped, another one is admitted: it has fewer than two valid episodes; %s",
            group.group,
            task,
            why,
        )

    def _report_given_up(self, group: FinishedGroup) -> None:
        """Logs which episodes a group is trained without."""
        for slot, reason in sorted(group.reasons.items()):
            _log.warning("group %d is trained without slot %d, which is given up: %s", group.group, slot, reason)

    def _results(self, group: FinishedGroup) -> list[EpisodeResult]:
        """The results in the order of slots; a slot that was given up is an infrastructure failure.

        Raises:
            RuntimeError: the group is not whole: a slot is missing, or has the result of another one.
        """
        if len(group.results) != group.size:
            raise RuntimeError(f"group {group.group}: expected {group.size} slots, got {len(group.results)}")
        return [self._result(group, slot, result) for slot, result in enumerate(group.results)]

    def _result(self, group: FinishedGroup, slot: int, result: EpisodeResult | None) -> EpisodeResult:
        """The result of a slot, which states all failed attempts, also those on other workers."""
        job = self.plan.job(group.group, slot, group.task)
        before = tuple(reason for failed in group.failures.get(slot, ()) for reason in failed.failures)
        if result is None:
            return EpisodeResult(job, None, StopReason.env_error, None, FailureReason.died, before)
        played = (result.job.group_id, result.job.slot, result.job.task.id, result.job.key)
        if played != (job.group_id, job.slot, job.task.id, job.key):
            raise RuntimeError(
                f"group {group.group}: expected the result of slot {slot} of task {job.task.id}, got one of group "
                f"{played[0]}, slot {played[1]}, task {played[2]}"
            )
        return replace(result, job=job, retried=before + result.retried)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Shuts down as the base class does; then ends what plays the groups."""
        super().shutdown(timeout, close_env=close_env, raise_on_error=raise_on_error)
        stop, self._on_shutdown = self._on_shutdown, None
        if stop is not None:
            stop()

    def state_dict(self) -> OrderedDict[str, Any]:
        """The state of the base class and of the queue; the last batch counts as trained."""
        self._settle()
        queue = self.queue.state_dict() if self._restored is None else self._restored
        return OrderedDict(super().state_dict(), queue=queue, admissions=self._admissions)

    def load_state_dict(self, state_dict: OrderedDict[str, Any]) -> None:
        """Continues from a ``state_dict``; groups that were not trained are played again, after the first weights."""
        super().load_state_dict(state_dict)
        self._restored = state_dict["queue"]
        self._admissions = int(state_dict["admissions"])
        self._taken_batch = False
