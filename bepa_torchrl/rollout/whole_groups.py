"""Sorts rows into complete groups, and checks the assumptions of trace replacement and of every update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from typing import cast

from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import EpisodeRows, groups_of, int_entry, row_list

#: the sum of a group's advantages in float32, whose exact sum is 0, is at most this part of the largest of them
_BALANCE = 1e-4
_REQUIRED = (K.TASK_ID, K.GROUP_ID, K.SLOT, K.STEP, K.N_STEPS, K.RETURN, K.STOP_REASON)


def whole_groups(batch: TensorDictBase) -> list[list[EpisodeRows]]:
    """The groups of a batch ``[R]``, sorted by (group, slot, step); the rows may be in any order.

    Raises:
        KeyError: a row without one of the entries that identify it.
        ValueError: a batch of another shape, a group with several tasks, a return that is not finite, an
            episode whose steps are not 0..N_STEPS-1, rows of one episode with different returns or stop reasons, or
            rows with an advantage (the batch was finalised before).
    """
    for row in row_list(batch):
        missing = [key for key in _REQUIRED if key not in row]
        if missing:
            raise KeyError(f"training rows require {', '.join(_REQUIRED)}; missing: {', '.join(missing)}")
        if K.ADVANTAGE in row or (K.OFF_POLICY in row and bool(row.get(K.OFF_POLICY))):
            raise ValueError(
                f"expected rows as they were sampled, got group {int_entry(row, K.GROUP_ID)} with an advantage or an "
                "injected row: finalise every batch exactly once"
            )
    groups = list(groups_of(batch))
    for group in groups:
        _check_group(group)
    return groups


def _check_group(group: Sequence[EpisodeRows]) -> None:
    group_id = group[0].group_id
    for episode in group:
        _check_episode(episode)
    tasks = sorted({str(row[K.TASK_ID]) for episode in group for row in episode.rows})
    if len(tasks) > 1:
        raise ValueError(
            f"group {group_id} has rows of {len(tasks)} tasks, {tasks[0]!r} and {tasks[1]!r}; a group is the episodes "
            "of one task: give every (task, round) its own group id"
        )


def _check_episode(episode: EpisodeRows) -> None:
    where = f"group {episode.group_id}, slot {episode.slot}"
    steps = [int_entry(row, K.STEP) for row in episode.rows]
    counts = sorted({int_entry(row, K.N_STEPS) for row in episode.rows})
    if counts != [len(steps)] or steps != list(range(len(steps))):
        raise ValueError(
            f"{where}: expected the whole episode, steps 0 to n_steps - 1 once each; got steps {steps} with n_steps "
            f"{counts}; pass whole episodes with unique slots (GroupRows collects them)"
        )
    if not isfinite(episode.reward):
        raise ValueError(
            f"{where}: expected a finite return, got {episode.reward}; drop the episode, or score it again"
        )
    if len({(float(row.get(K.RETURN)), str(row[K.STOP_REASON])) for row in episode.rows}) > 1:
        raise ValueError(f"{where}: rows of one episode must have the same return and stop reason; got several")


def check_whole_groups(rows: TensorDictBase, sizes: Mapping[int, int], *, supervised: bool, weighted: bool) -> None:
    """Checks the rows of an optimiser step: every group is whole, and its advantages sum to 0 over its episodes.

    Args:
        rows: finalised groups ``[R]``; the rows may be in any order.
        sizes: group id → its episodes when it was finalised.
        supervised: off-policy rows are no members of their group (RL+SFT).
        weighted: advantages of groups with an injected trace have factors, so that they do not sum to 0.

    Raises:
        RuntimeError: a group is not whole, an episode has several advantages, or the sum is not 0.
    """
    for group in groups_of(rows):
        injected = [bool(episode.rows[0].get(K.OFF_POLICY)) for episode in group]
        members = [each for each, off in zip(group, injected, strict=True) if not (off and supervised)]
        where = f"group {group[0].group_id}"
        if len(members) != sizes.get(group[0].group_id):
            raise RuntimeError(
                f"{where}: expected its {sizes.get(group[0].group_id)} episodes in the update, got slots "
                f"{[episode.slot for episode in members]}; do not change batches between postproc and update"
            )
        advantages = [_advantage(episode) for episode in members]
        total, largest = sum(advantages), max(map(abs, advantages))
        if not (weighted and any(injected)) and not isclose(total, 0.0, abs_tol=_BALANCE * max(1.0, largest)):
            raise RuntimeError(
                f"{where}: expected advantages that add up to 0 over episodes, got {total:.3g} = sum of {advantages}; "
                "the group lost an episode, or its advantages were changed after set_advantages"
            )


def _advantage(episode: EpisodeRows) -> float:
    """The advantage of a whole episode. Raises RuntimeError: steps are missing, or have different ones."""
    steps = [int_entry(row, K.STEP) for row in episode.rows]
    advantages = {float(cast(Tensor, row.get(K.ADVANTAGE))) for row in episode.rows}
    if steps != list(range(int_entry(episode.rows[0], K.N_STEPS))) or len(advantages) != 1:
        raise RuntimeError(
            f"group {episode.group_id}, slot {episode.slot}: expected all {int_entry(episode.rows[0], K.N_STEPS)} "
            f"steps with one advantage in the update, got steps {steps} with {sorted(advantages)}"
        )
    return advantages.pop()
