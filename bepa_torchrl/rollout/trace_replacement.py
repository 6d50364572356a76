"""Finalises groups: refreshes the cache or replaces a failure by the cached trace, then computes advantages.

Paper section LEVEL-2 (algorithm 2); docs/definitions.md, "Trace replacement and cache". Used as the
collector's postproc, before :class:`~bepa_torchrl.rollout.old_log_prob.OldLogProb`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torchrl.envs.transforms import Transform

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import EpisodeRows, int_entry, row_list, stack_rows
from bepa_torchrl.functional import ADVANTAGE_KINDS
from bepa_torchrl.functional.advantage import check_scale
from bepa_torchrl.rollout.advantages import set_advantages
from bepa_torchrl.rollout.injection import Injection
from bepa_torchrl.rollout.rewording import Rewording
from bepa_torchrl.rollout.whole_groups import check_whole_groups, whole_groups
from osworld_gym.counts import check_count

#: factors of an injected trace's advantage
WEIGHTS = ("one", "need")
#: whose advantages are kept in a group with an injected trace
KEPT = ("all", "trace", "failures")


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The record of one group's replacement.

    Args:
        valid: rollouts that did not end with an infrastructure failure.
        successes: how many of those succeeded.
        refreshed: whether the cache stored one of the successes, or with a :class:`Rewording` the trace that it wrote.
        reworded: share of that trace's steps with a new thought; None without a :class:`Rewording`, and where the task
            had no trace whose words could be replaced.
        injected: the source of the injected trace, or None.
        injected_version: policy version that sampled the injected trace.
        replaced_slot: slot of the rollout that it replaced, or None.
    """

    group_id: int
    task_id: str
    valid: int
    successes: int
    refreshed: bool = False
    reworded: float | None = None
    injected: str | None = None
    injected_version: int | None = None
    replaced_slot: int | None = None


class TraceReplacement(Transform):
    """Finalises groups: refresh or inject, then the advantage of every episode. Paper algorithm 2.

    Takes whole groups as rows ``[R]`` in any order and returns them sorted by (group, slot, step). Episodes whose
    desktop failed (``env_error``) are left out; a group of only those is dropped, and a batch of only those becomes
    empty, ``[0]``. Groups are finalised in order of group id, so later groups of the batch see an earlier refresh. With
    ``on_failure`` nothing is injected into a group with a success, nor into one with a single valid rollout: the trace
    would be alone in it, with advantage 0. Injected traces never refresh the cache. A batch is finalised once.

    Args:
        cache: the traces; None only with ``injection=never`` and ``refresh=False``.
        injection: see :class:`Injection`.
        refresh: whether the policy's successes enter the cache.
        rewording: refreshes one part of the cached trace only, words or actions; None: the success itself enters, as in
            the paper. For the words, a task without a trace before this batch gets the success itself.
        min_successes: successes that a group must have for that; 1 in the paper.
        weight: factor of the injected trace's advantage with ``on_failure``: ``one`` (the paper), or ``need``, the
            share of the task's groups so far, this one included, that had no success.
        kept: whose advantages are kept in a group in which the trace replaces a failure: ``all`` (the paper), those of
            the ``trace``, or those of the ``failures``; the others are 0. For controls: which part teaches what.
        advantage: kind of the advantages, see :func:`~bepa_torchrl.rollout.advantages.set_advantages`.
        std: rule for the standard deviation, see :func:`~bepa_torchrl.functional.group_advantage`; for ``grpo`` only.
        eps: added to the standard deviation; for ``grpo`` only.

    After each call ``reports`` contains one :class:`GroupReport` per group.

    Raises:
        ValueError: no cache although one is required, ``min_successes`` that is no integer of at least 1, an unknown
            ``advantage``, ``std``, ``weight`` or ``kept``, an ``eps`` that is negative or not finite, ``need`` with
            another ``min_successes`` than 1, with ``kept="failures"``, or for a method that does not both inject on
            failure and refresh, ``trace`` or ``failures`` for one that does not inject on failure; from ``forward``:
            rows that are not complete groups, or were finalised before
            (:func:`~bepa_torchrl.rollout.whole_groups.whole_groups`).
    """

    def __init__(
        self,
        cache: TaskTraceCache | None,
        *,
        injection: Injection | str = Injection.on_failure,
        refresh: bool = True,
        rewording: Rewording | None = None,
        min_successes: int = 1,
        weight: str = "one",
        kept: str = "all",
        advantage: str = "grpo",
        std: str = "population",
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.injection, self.refresh = Injection(injection), refresh
        if cache is None and (refresh or self.injection is not Injection.never):
            raise ValueError(f"injection={self.injection.value} with refresh={refresh} requires a cache, got None")
        if rewording is not None and (cache is None or not refresh or cache.rule == "all"):
            raise ValueError(
                f"cache.refresh={rewording.part} is for methods that refresh one trace per task, such as bepa; got "
                f"refresh={refresh} and {'no cache' if cache is None else f'rule={cache.rule}'}"
            )
        check_count("min_successes", min_successes)
        if advantage not in ADVANTAGE_KINDS:
            raise ValueError(f"advantage must be one of {', '.join(ADVANTAGE_KINDS)}; got {advantage!r}")
        check_scale(std, eps)
        if weight not in WEIGHTS:
            raise ValueError(f"weight must be one of {', '.join(WEIGHTS)}; got {weight!r}")
        if weight == "need" and self.injection not in (Injection.never, Injection.on_failure):
            raise ValueError(f"cache.injected_weight=need is for injection=on_failure, got {self.injection.value}")
        if weight == "need" and self.injection is Injection.on_failure and not refresh:
            raise ValueError("cache.injected_weight=need counts refreshes, which this method does not make; use bepa")
        if weight == "need" and min_successes > 1:
            raise ValueError(
                f"cache.injected_weight=need counts refreshes as groups with a success, which cache.min_successes="
                f"{min_successes} leaves out; set one of them to its default"
            )
        if kept not in KEPT:
            raise ValueError(f"kept must be one of {', '.join(KEPT)}; got {kept!r}")
        if kept != "all" and self.injection not in (Injection.never, Injection.on_failure):
            raise ValueError(f"cache.injected_kept={kept} is for injection=on_failure, got {self.injection.value}")
        if kept == "failures" and weight == "need":
            raise ValueError(
                "cache.injected_weight=need is a factor of the advantage that cache.injected_kept=failures sets to 0; "
                "set one of them to its default"
            )
        self.min_successes, self.weight, self.kept, self.rewording = min_successes, weight, kept, rewording
        self._reworded: dict[int, tuple[TensorDictBase, float]] = {}  # by group id, of the batch being finalised
        self.cache, self.advantage, self.std, self.eps = cache, advantage, std, eps
        self.reports: list[GroupReport] = []

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The finalised batch ``[R']``: every row has ADVANTAGE, injected rows are at their slot."""
        groups = whole_groups(tensordict)  # checks everything before the cache is changed
        self.reports = []
        self._reworded = self._reword(groups)
        rows: list[TensorDictBase] = []
        for group in groups:
            rows.extend(self._finalise(group))
        for row in rows:  # TorchRL's collectors require the same keys of all rows
            for key in (K.PROVENANCE, K.COPIED_FROM):
                if key not in row:
                    row.set_non_tensor(key, "")
            if K.TRAINED not in row:
                row.set(K.TRAINED, torch.tensor([True]))
        return stack_rows(rows)

    def check_whole_groups(self, rows: TensorDictBase) -> None:
        """Checks that rows of the last batch, as they enter an optimiser step, are groups as they were finalised.

        Raises:
            RuntimeError: as :func:`~bepa_torchrl.rollout.whole_groups.check_whole_groups`.
        """
        added = self.injection is Injection.always
        sizes = {report.group_id: report.valid + (added and report.injected is not None) for report in self.reports}
        supervised = self.injection is Injection.additional
        weighted = self.weight == "need" or self.kept != "all"
        check_whole_groups(rows, sizes, supervised=supervised, weighted=weighted)

    def _finalise(self, group: Sequence[EpisodeRows]) -> list[TensorDictBase]:
        members = [episode for episode in group if episode.valid]
        if not members:
            self.reports.append(GroupReport(group[0].group_id, group[0].task_id, valid=0, successes=0))
            return []
        successes = _successes(group)
        report: dict[str, Any] = {"valid": len(members), "successes": len(successes)}
        supervised: list[TensorDictBase] = []
        if self._refreshes(successes):
            report |= {"refreshed": True, "reworded": self._refresh(successes)}
        trace = self._trace(group, bool(successes))
        if trace is not None:
            report |= {
                "injected": trace.rows[0][K.SOURCE],
                "injected_version": int_entry(trace.rows[0], K.POLICY_VERSION),
            }
            if self.injection is Injection.on_failure:
                report["replaced_slot"] = trace.slot
                members[0] = trace
            elif self.injection is Injection.always:
                members.append(trace)
            else:
                supervised = trace.rows
        self.reports.append(GroupReport(group[0].group_id, group[0].task_id, **report))
        set_advantages(members, kind=self.advantage, std=self.std, eps=self.eps)
        if "replaced_slot" in report:
            self._weigh(*members)
        for row in supervised:
            row.set(K.ADVANTAGE, torch.zeros(1, 1))
        return [row for episode in members for row in episode.rows] + supervised

    def _weigh(self, trace: EpisodeRows, *failures: EpisodeRows) -> None:
        """Applies ``weight`` and ``kept`` to the advantages of a group with an injected trace."""
        assert self.cache is not None
        if self.weight == "need":
            injections, refreshes = self.cache.counts(trace.task_id)
            _multiply([trace], injections / (injections + refreshes))
        if self.kept == "trace":
            _multiply(failures, 0.0)
        elif self.kept == "failures":
            _multiply([trace], 0.0)

    def _refreshes(self, successes: Sequence[EpisodeRows]) -> bool:
        """Whether a group with these successes refreshes the cache."""
        return self.refresh and len(successes) >= self.min_successes

    def _refresh(self, successes: Sequence[EpisodeRows]) -> float | None:
        """Refreshes the task's trace; the share of its steps that were reworded, None if none was to be reworded."""
        assert self.cache is not None
        trace, share = self._reworded.get(successes[0].group_id, (None, None))
        traces = [stack_rows(episode.rows) for episode in successes] if trace is None else [trace]
        self.cache.refresh(successes[0].task_id, traces)
        return share

    def _reword(self, groups: Sequence[Sequence[EpisodeRows]]) -> dict[int, tuple[TensorDictBase, float]]:
        """Group id → the trace with which it will refresh the cache, and the share of its reworded steps."""
        if self.rewording is None:
            return {}
        assert self.cache is not None
        found: dict[int, TensorDictBase | None] = {}
        for group in groups:
            if self._refreshes(successes := _successes(group)):
                task_id, rows = group[0].task_id, [stack_rows(episode.rows) for episode in successes]
                words = self.rewording.part == "wording"
                found[group[0].group_id] = self.cache.get_trace(task_id) if words else self.cache.chosen(task_id, rows)
        return self.rewording({group_id: trace for group_id, trace in found.items() if trace is not None})

    def _trace(self, group: Sequence[EpisodeRows], succeeded: bool) -> EpisodeRows | None:
        """The cached trace as a member of this group; None if nothing is injected."""
        if self.cache is None or self.injection is Injection.never:
            return None
        valid = [episode for episode in group if episode.valid]
        if self.injection is Injection.on_failure and (succeeded or len(valid) == 1):
            return None
        trace = self.cache.get_trace(group[0].task_id)
        if trace is None:
            return None
        self.cache.note_injection(group[0].task_id)
        slot = valid[0].slot if self.injection is Injection.on_failure else group[-1].slot + 1
        rows = row_list(trace)
        copied = _origin_of(rows[0])
        for row in rows:
            row.set_non_tensor(K.COPIED_FROM, copied)
            row.set(K.GROUP_ID, torch.tensor(group[0].group_id))
            row.set(K.SLOT, torch.tensor(slot))
            row.set(K.OFF_POLICY, torch.tensor([True]))
            row.set(K.OLD_LOG_PROB, torch.full_like(cast(torch.Tensor, row.get(K.ROLLOUT_LOG_PROB)), torch.nan))
        return EpisodeRows(group[0].group_id, slot, rows)


def _successes(group: Sequence[EpisodeRows]) -> list[EpisodeRows]:
    return [episode for episode in group if episode.valid and episode.reward == 1.0]


def _multiply(episodes: Iterable[EpisodeRows], factor: float) -> None:
    """Multiplies the episodes' advantages by a factor."""
    for row in (row for episode in episodes for row in episode.rows):
        row.set(K.ADVANTAGE, cast(torch.Tensor, row.get(K.ADVANTAGE)) * factor)


def _origin_of(row: TensorDictBase) -> str:
    """The rollout of this run that a cached row is of; empty for a self-rolled or converted trace."""
    if row[K.SOURCE] != K.Source.on_policy.value:
        return ""
    return K.episode_id(int_entry(row, K.GROUP_ID), int_entry(row, K.SLOT))
