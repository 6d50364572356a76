"""DAPO's dynamic sampling: groups whose advantages are all 0 are replaced by further groups.

Yu et al. 2025, arXiv:2503.14476, section 3.2: sample until the batch is full of groups with a success and a failure.
Here a group into which a trace will be injected has a signal, too, and the number of further groups is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensordict import TensorDictBase
from torchrl.envs.transforms import Transform

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import EpisodeRows, groups_of, stack_rows
from bepa_torchrl.rollout.injection import Injection

#: (task id, returns of the group's valid rollouts) → whether the group has a signal
HasSignal = Callable[[str, Sequence[bool]], bool]


def has_signal(successes: Sequence[bool], injection: Injection, *, has_trace: bool) -> bool:
    """Whether a group will have an advantage other than 0, or a cross-entropy (RL+SFT), after replacement.

    Args:
        successes: the successes of the group's valid rollouts.
        injection: when the method injects a trace.
        has_trace: whether the cache has a trace of the task.
    """
    if any(successes) and not all(successes):
        return True
    if not has_trace or injection is Injection.never:
        return False
    if injection is Injection.on_failure:
        return len(successes) > 1 and not any(successes)
    return injection is Injection.additional or not any(successes)


class GroupsWithSignal(Transform):
    """Leaves out the groups of a finalised batch whose advantages are all 0, so that no denominator counts them.

    Runs after :class:`~bepa_torchrl.rollout.trace_replacement.TraceReplacement`, which refreshes the cache by them.
    At most ``groups`` stay, the first ones: of asynchronous rollouts a group that had no signal when it came may have
    one now, by a trace that another group of its task has brought. If no group has a signal, the first ones stay.

    Args:
        groups: groups per batch.
        supervised: whether injected rows have a cross-entropy instead of an advantage (RL+SFT).
    """

    def __init__(self, groups: int, *, supervised: bool = False) -> None:
        super().__init__()
        self.groups, self.supervised = groups, supervised

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The rows ``[R']`` of the groups that stay, in their order."""
        every = list(groups_of(tensordict))
        kept = [group for group in every if any(map(self._counts, group))] or every
        return stack_rows(row for group in kept[: self.groups] for episode in group for row in episode.rows)

    def _counts(self, episode: EpisodeRows) -> bool:
        """Whether an episode has an advantage, or a cross-entropy."""
        row = episode.rows[0]
        return bool(row.get(K.ADVANTAGE) != 0) or (self.supervised and bool(row.get(K.OFF_POLICY)))
