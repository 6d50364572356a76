"""Splits the rows of a step over ranks: whole episodes, balanced by tokens, equally many passes on every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.packing import Pack, pack_rows


@dataclass(frozen=True, slots=True)
class Split:
    """The passes of all ranks.

    Args:
        ranks: the micro-batches of each rank, as indices of the step's rows; together they contain each row once.
        filler: the micro-batch of weight 0 that a rank computes while others have more passes.
    """

    ranks: tuple[tuple[Pack, ...], ...]
    filler: Pack

    @property
    def passes(self) -> int:
        """Forward and backward passes of every rank, fillers included."""
        return max(len(packs) for packs in self.ranks)

    def padded(self, rank: int) -> list[tuple[Pack, float]]:
        """The ``passes`` micro-batches of one rank with their weight, 1 or (fillers) 0."""
        own = self.ranks[rank]
        return [(pack, 1.0) for pack in own] + [(self.filler, 0.0)] * (self.passes - len(own))


def split_rows(rows: Sequence[TensorDictBase], ranks: int, max_tokens: int) -> Split:
    """Assigns each episode to the rank with the fewest tokens so far, longest episodes first.

    The result depends on the arguments only, so that ranks which hold the same rows agree without communication.

    Args:
        rows: at least one; keys as in :func:`bepa_torchrl.data.packing.pack_rows`.
        ranks: number of ranks, at least 1.
        max_tokens: tokens of a micro-batch.

    Raises:
        TokenBudgetError: a row is longer than ``max_tokens``.
    """
    episodes: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        episodes[row[K.TASK_ID], int(row[K.GROUP_ID]), int(row[K.SLOT])].append(i)
    costs = [(_tokens(rows, members, max_tokens), members) for members in episodes.values()]
    loads, assigned = [0] * ranks, [list[int]() for _ in range(ranks)]
    for cost, members in sorted(costs, key=lambda item: item[0], reverse=True):
        rank = loads.index(min(loads))
        loads[rank] += cost
        assigned[rank] += members
    packs = tuple(tuple(_pack(rows, sorted(members), max_tokens)) for members in assigned)
    return Split(packs, _filler(rows))


def _tokens(rows: Sequence[TensorDictBase], members: Sequence[int], max_tokens: int) -> int:
    return sum(sum(pack.hosts) for pack in pack_rows([rows[i] for i in members], max_tokens))


def _pack(rows: Sequence[TensorDictBase], members: Sequence[int], max_tokens: int) -> list[Pack]:
    packs = pack_rows([rows[i] for i in members], max_tokens) if members else []
    return [Pack(tuple(members[i] for i in pack.rows), pack.hosts) for pack in packs]


def _filler(rows: Sequence[TensorDictBase]) -> Pack:
    """The shortest row with an image, so that a filler takes part in the vision tower's collectives, too."""
    lengths = [len(row[K.PROMPT_TOKENS]) + len(row[K.RESPONSE_TOKENS]) for row in rows]
    shortest = min(range(len(rows)), key=lambda i: (not rows[i][K.IMAGES], lengths[i]))
    return Pack((shortest,), (lengths[shortest],))
