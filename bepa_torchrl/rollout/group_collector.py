"""GroupRolloutCollector: a TorchRL collector that yields complete groups of episodes of one policy version.

In TorchRL's collector ``postproc`` gets parts of episodes. Here ``rollout`` returns complete groups, so that
:class:`~bepa_torchrl.rollout.trace_replacement.TraceReplacement` can be the postproc.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.weight_update import WeightSyncScheme

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.seeding import EpisodeKey, Stream, desktop_seed, episode_key
from bepa_torchrl.data.step_rows import mark_untrained, row_list, stack_rows
from bepa_torchrl.policies.base import EngineSampler, RestingSampler, Sampler
from bepa_torchrl.rollout.desktop_use import DesktopUse
from bepa_torchrl.rollout.dynamic_sampling import HasSignal
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.rollout.prefix import PrefixLengths, prefix_metrics
from bepa_torchrl.rollout.replay import Prefix
from bepa_torchrl.rollout.task_schedule import TaskSchedule
from bepa_torchrl.torchrl_private import WholeEpisodeCollector
from osworld_gym.counts import check_count
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

_log = logging.getLogger(__name__)
_MAX_REQUEUES = 3


@dataclass(frozen=True, slots=True)
class CollectedIteration:
    """One iteration as collected, before any replacement."""

    iteration: int
    results: tuple[EpisodeResult, ...]
    requeued: tuple[str, ...]  #: ids of the tasks whose group had fewer than two valid rollouts
    desktops: DesktopUse | None = field(default=None, kw_only=True)  #: None: played by others, which report it
    sampling: DynamicSampling | None = field(default=None, kw_only=True)  #: None: groups without a signal are kept

    def metrics(self) -> dict[str, float]:
        """Metrics: episodes, success rate of the valid ones, steps, failures, stop reasons, log-probs as sampled.

        ``exhausted`` counts the episodes whose result exceeded the limits of the evaluators, which scores 0.

        ``entropy`` is minus the mean log-probability of the sampled tokens, at temperature 1 an unbiased estimate in
        nats per token; ``log_prob_success`` is the mean log-probability of the tokens of successful episodes.
        """
        valid = [r for r in self.results if r.stop is not StopReason.env_error]
        stops = Counter(r.stop.value for r in self.results)
        metrics = {
            "episodes": float(len(self.results)),
            "success": sum(r.success for r in valid) / max(1, len(valid)),
            "steps": float(sum(0 if r.rows is None else r.rows.shape[0] for r in valid)),
            "retries": float(sum(r.retries for r in self.results)),
            "groups_requeued": float(len(self.requeued)),
            "exhausted": float(sum(r.verdict is not None and r.verdict.exhausted for r in self.results)),
        }
        every, won = mean_log_prob(valid), mean_log_prob([r for r in valid if r.success])
        if every is not None:
            metrics["entropy"] = -every
        if won is not None:
            metrics["log_prob_success"] = won
        if self.desktops is not None:
            metrics |= self.desktops.metrics()
        if self.sampling is not None:
            metrics |= self.sampling.metrics()
        metrics |= prefix_metrics(self.results)
        return metrics | {f"stop_{reason.value}": float(stops[reason.value]) for reason in StopReason}


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """The groups of an iteration that were collected in the place of others (``collect.dynamic``).

    Args:
        without_signal: groups whose advantages are all 0, or that had fewer than two valid rollouts.
        further: groups in the place of such.
        episodes: the episodes of the further groups.
    """

    without_signal: int
    further: int
    episodes: int

    def metrics(self) -> dict[str, float]:
        """Metrics, with the names of the fields."""
        return {
            "groups_without_signal": float(self.without_signal),
            "groups_further": float(self.further),
            "episodes_further": float(self.episodes),
        }


@dataclass(frozen=True, slots=True)
class RolloutSeeds:
    """The seeds of a run's rollouts.

    Args:
        seed: the seed of the run.
        env_seed: ``group``: all rollouts of a group start on the same screen; ``slot``: each on a different one.
    """

    seed: int
    env_seed: str

    def job(
        self, task: Task, number: int, iteration: int, group: int, slot: int, prefix: Prefix | None = None
    ) -> EpisodeJob:
        """The job of one rollout; ``number`` is the task's index among the training tasks.

        With a ``prefix`` all rollouts of the group start on the desktop that it is from.
        """
        key = episode_key(self.seed, Stream.ROLLOUT, iteration, number, slot)
        if prefix is not None:
            return EpisodeJob(task, key, prefix.env_seed, group, slot, prefix=prefix)
        desktop = desktop_seed(key[:-1] if self.env_seed == "group" else key)
        return EpisodeJob(task, key, desktop, group, slot)


def mean_log_prob(results: Iterable[EpisodeResult]) -> float | None:
    """Mean log-probability of all response tokens as sampled, in nats, without replayed ones; None without tokens."""
    rows = [row for result in results if result.rows is not None for row in row_list(result.rows)[result.replayed :]]
    return float(torch.cat([row.get(K.ROLLOUT_LOG_PROB) for row in rows]).mean()) if rows else None


class GroupRolloutCollector(WholeEpisodeCollector):
    """Yields lazy stacks of rows ``[R]``: complete groups of episodes, ordered by (group, slot, step).

    A group is ``group_size`` episodes of one task under one policy version. Episodes whose desktop failed after
    all retries are left out; a group with fewer than two valid ones is requeued and counted.

    Args:
        env: an ``OSWorldEnv`` (or any EnvBase that has a ``DesktopVector`` as ``vector``).
        policy: a :class:`Sampler`; an ``nn.Module`` is not copied.
        tasks: the training tasks; a task's number is its index here.
        groups: groups per batch (G).
        group_size: rollouts per group (N), at least 2.
        seed: seed of the task order, the desktops and the sampling.
        temperature: sampling temperature.
        env_seed: ``group``: all rollouts of a group start on the same screen; ``slot``: each on a different one.
        size_of: rollouts for the group of a task, by default ``group_size`` (LUFFY: one less if it adds a trace).
        retries: further attempts, on new desktops, for an episode whose desktop failed.
        further: groups per batch, at most, that are collected in the place of groups without a signal; 0: none. They
            are of tasks that the batch does not have.
        has_signal: which groups have one; None with ``further=0`` only.
        prefixes: what is replayed before the rollouts of a task; None: nothing.
        weight_sync_schemes: ``{"policy": scheme}``, TorchRL's, as of any collector: the scheme updates the policy's
            weights before each iteration (:class:`~bepa_torchrl.rollout.weight_sync.EngineWeightSync`); None: the
            policy is the one in training.
        close_env: whether ``shutdown`` also closes the desktops.
        postproc: applied to each batch before it is yielded.

    Raises:
        ValueError: a group size below 2, no task, no group, more groups than tasks, negative ``retries``, ``further``
            or ``seed``, a number that is no integer, an unknown ``env_seed``, or ``further`` without ``has_signal``.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: Sampler,
        tasks: Sequence[Task],
        *,
        groups: int,
        group_size: int,
        seed: int = 0,
        temperature: float = 1.0,
        env_seed: str = "group",
        size_of: Callable[[Task], int] | None = None,
        retries: int = 2,
        further: int = 0,
        has_signal: HasSignal | None = None,
        prefixes: PrefixLengths | None = None,
        weight_sync_schemes: dict[str, WeightSyncScheme] | None = None,
        close_env: bool = True,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        check_count("group_size", group_size, 2, "since one rollout has no group to compare with")
        if env_seed not in ("group", "slot"):
            raise ValueError(f"env_seed must be 'group' or 'slot', got {env_seed!r}")
        check_count("groups", groups)
        for name, given in (("retries", retries), ("further", further), ("seed", seed)):
            check_count(name, given, 0)
        if groups > len(tasks) > 0:
            raise ValueError(
                f"{groups} groups require {groups} different tasks, got {len(tasks)}; lower collect.groups"
            )
        if further and has_signal is None:
            raise ValueError(f"further={further} requires has_signal, which says in whose place groups are collected")
        self.further, self._has_signal, self.prefixes = further, has_signal, prefixes
        self.tasks, self.groups, self.group_size = tuple(tasks), groups, group_size
        self.schedule = TaskSchedule(len(self.tasks), seed)
        self.rollout_seeds = RolloutSeeds(seed, env_seed)
        self.temperature, self.retries = temperature, retries
        self.size_of = size_of or (lambda _: group_size)
        self.iteration = -1  #: batches begun so far, minus 1: the number of the newest, which its seeds contain
        self.next_group, self.close_env = 0, close_env
        self._syncs_weights = bool(weight_sync_schemes)
        self.requeues: Counter[int] = Counter()
        self.last: CollectedIteration | None = None
        super().__init__(
            env,
            policy,
            frames_per_batch=env.batch_size.numel(),
            total_frames=-1,
            use_buffers=False,
            trust_policy=True,
            return_same_td=True,
            no_cuda_sync=True,
            track_traj_ids=False,
            auto_register_policy_transforms=False,
            postproc=postproc,
            weight_sync_schemes=weight_sync_schemes,
        )
        self.rollout_policy = policy

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Collects the groups of one iteration and returns the rows ``[R]`` of the valid ones.

        Raises:
            DesktopError: no group had two valid rollouts.
            RuntimeError: the policy's weights could not be updated.
        """
        self.iteration += 1
        if self._syncs_weights:
            self.update_policy_weights_()
        task_numbers = self.schedule.next_batch(self.groups)
        version = self.rollout_policy.version
        before = DesktopUse.of(self.env.vector)
        results, signals = self._play(task_numbers)
        first = len(results)
        while missing := self._further_groups(signals, task_numbers):
            more = self.schedule.next_batch(missing, without=task_numbers)
            played, found = self._play(more)
            results, signals, task_numbers = results + played, signals + found, task_numbers + more
        assert self.rollout_policy.version == version, "the policy's weights changed while a group was collected"
        if isinstance(self.rollout_policy, RestingSampler):
            self.rollout_policy.rest()
        rows, requeued = self._complete_groups(results)
        used = DesktopUse.of(self.env.vector).since(before)
        ids = tuple(self.tasks[n].id for n in requeued)
        sampling = self._sampling(len(task_numbers), signals, len(results) - first)
        self.last = CollectedIteration(self.iteration, tuple(results), ids, desktops=used, sampling=sampling)
        self._collected(set(task_numbers) - set(requeued))
        for number in reversed(requeued):
            self._requeue(number)
        if not rows:
            failures = Counter(r.failure.value for r in results if r.failure is not None)
            reason = FailureReason(failures.most_common(1)[0][0]) if failures else FailureReason.died
            raise DesktopError(
                reason, f"no group of {len(task_numbers)} had two valid rollouts; failures: {dict(failures)}"
            )
        return stack_rows(rows)

    def engine_metrics(self) -> dict[str, float]:
        """Metrics of the inference engine since the last call; empty without one."""
        return self.rollout_policy.drain_metrics() if isinstance(self.rollout_policy, EngineSampler) else {}

    def _play(self, task_numbers: Sequence[int]) -> tuple[list[EpisodeResult], int]:
        """The results of the groups of these tasks, and how many groups have a signal; all without ``further``."""
        jobs = [job for number in task_numbers for job in self._jobs(number)]
        results = run_episodes(
            self.rollout_policy, self.env.vector, jobs, temperature=self.temperature, retries=self.retries
        )
        by_group: dict[int, list[EpisodeResult]] = {}
        for result in results:
            by_group.setdefault(result.job.group_id, []).append(result)
        if self.prefixes is not None:
            for members in by_group.values():
                self.prefixes.note(members)
        return results, sum(map(self._signal, by_group.values()))

    def _signal(self, members: Sequence[EpisodeResult]) -> bool:
        """Whether a group has a signal; True without ``further``."""
        if not self.further:
            return True
        assert self._has_signal is not None
        valid = [member.success for member in members if member.rows is not None]
        return len(valid) > 1 and self._has_signal(members[0].job.task.id, valid)

    def _further_groups(self, signals: int, task_numbers: Sequence[int]) -> int:
        """The groups to collect in the place of those without a signal, as far as the bound and the tasks allow."""
        left = min(self.groups + self.further, len(self.tasks)) - len(task_numbers)
        return max(0, min(self.groups - signals, left))

    def _sampling(self, groups: int, signals: int, episodes: int) -> DynamicSampling | None:
        if not self.further:
            return None
        return DynamicSampling(groups - signals, groups - self.groups, episodes)

    def _jobs(self, number: int) -> list[EpisodeJob]:
        task, group = self.tasks[number], self.next_group
        self.next_group += 1
        prefix = None if self.prefixes is None else self.prefixes.prefix(task.id)
        slots = range(self.size_of(task))
        return [self.rollout_seeds.job(task, number, self.iteration, group, slot, prefix) for slot in slots]

    def _complete_groups(self, results: Sequence[EpisodeResult]) -> tuple[list[TensorDictBase], list[int]]:
        """Rows of the groups that have at least two episodes with rows, and the task numbers of the others."""
        by_group: OrderedDict[int, list[EpisodeResult]] = OrderedDict()
        for result in results:
            by_group.setdefault(result.job.group_id, []).append(result)
        rows: list[TensorDictBase] = []
        requeued: list[int] = []
        for members in by_group.values():
            for member in members:
                if member.rows is not None and member.replayed:
                    mark_untrained(row_list(member.rows), member.replayed)
            episodes = [member.rows for member in members if member.rows is not None]
            if len(episodes) < 2:
                requeued.append(EpisodeKey(*members[0].job.key).task)
            else:
                rows.extend(row for episode in episodes for row in row_list(episode))
        return rows, requeued

    def _collected(self, numbers: Iterable[int]) -> None:
        """Gives tasks whose groups are complete all their attempts again."""
        for number in numbers:
            self.requeues.pop(number, None)

    def _requeue(self, number: int) -> None:
        self.requeues[number] += 1
        if self.requeues[number] % (_MAX_REQUEUES + 1) == 0:
            _log.warning(
                "task %s: no two valid rollouts in %d attempts; left out for this epoch",
                self.tasks[number].id,
                _MAX_REQUEUES + 1,
            )
        else:
            self.schedule.requeue(number)

    def set_seed(self, seed: int, static_seed: bool = False) -> NoReturn:
        """Raises NotImplementedError: tasks, desktops and samples depend on the constructor's ``seed``."""
        raise NotImplementedError(
            f"the rollouts depend on the constructor's seed, which is {self.rollout_seeds.seed}, got seed={seed} and "
            f"static_seed={static_seed}; pass {type(self).__name__} seed={seed}, and a Trainer none"
        )

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Shuts the collector down; also closes the desktops unless ``close_env=False`` in the constructor."""
        super().shutdown(timeout, close_env=close_env and self.close_env, raise_on_error=raise_on_error)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Task order, counters and the lengths of prefixes, without the policy's weights."""
        state = OrderedDict[str, Any](
            iter=self.iteration,
            next_group=self.next_group,
            requeues={str(number): count for number, count in self.requeues.items()},
            schedule=self.schedule.state_dict(),
        )
        if self.prefixes is not None:
            state["prefixes"] = self.prefixes.state_dict()
        return state

    def load_state_dict(self, state_dict: OrderedDict[str, Any]) -> None:
        """Continues from a ``state_dict``. Raises ValueError if it is of other tasks or another seed."""
        self.schedule.load_state_dict(state_dict["schedule"])
        if self.prefixes is not None:
            self.prefixes.load_state_dict(state_dict["prefixes"])
        self.iteration = int(state_dict["iter"])
        self.next_group = int(state_dict["next_group"])
        self.requeues = Counter({int(number): int(count) for number, count in state_dict["requeues"].items()})
