"""Micro-batches under a token budget: whole episodes, shared prefixes counted once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_tests import examples
from tensordict import NonTensorData, TensorDict, TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data import packing
from bepa_torchrl.data.packing import Pack, TokenBudgetError, find_hosts, pack_rows


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked up by their first token, since those of these tests are shorter than HEAD."""
    monkeypatch.setattr(packing, "HEAD", 1)


def rows_of(*rows: Sequence[int]) -> list[NDArray[np.int64]]:
    return [np.array(row, dtype=np.int64) for row in rows]


def test_hosts_by_hand() -> None:
    a, b = b"a", b"b"
    sequences = rows_of([1, 2], [1, 2, 3, 4], [1, 2, 3], [1, 9], [1, 2, 3, 4], [1, 2, 3])
    images = [(a,), (a, b), (a,), (a,), (a, b), (b,)]
    # row 3 differs, row 5 has another picture; row 4 is row 1 again
    assert find_hosts(sequences, images) == [1, 1, 1, 3, 1, 5]
    assert find_hosts(rows_of([1, 2], [1, 2, 3]), [(), ()]) == [1, 1]
    assert find_hosts(rows_of([1, 2], [1, 2, 3]), [(a, b), (a,)]) == [0, 1]
    assert find_hosts([], []) == []


def episode(number: int, lengths: Sequence[int], *, block: int = 1000) -> list[TensorDictBase]:
    """Rows of ``lengths`` tokens, the last one the response; each extends the one before, but every ``block``-th."""
    rows = []
    for step, length in enumerate(lengths):
        tokens = torch.full((length,), 1 + step // block)
        tokens[0] = 1000 + number
        row = {
            K.TASK_ID: NonTensorData("task"),
            K.GROUP_ID: torch.tensor(number),
            K.SLOT: torch.tensor(0),
            K.STEP: torch.tensor(step),
            K.PROMPT_TOKENS: tokens[:-1],
            K.RESPONSE_TOKENS: tokens[-1:],
            K.IMAGES: NonTensorData(()),
        }
        rows.append(TensorDict(row))
    return rows


def test_episodes_that_share_prefixes_by_hand() -> None:
    rows = [*episode(0, [3, 6, 9]), *episode(1, [4, 5]), *episode(2, [2, 4])]
    # hosts of 9, 5 and 4 tokens: 9 x 2 = 18 tokens fit into 18, 9 x 3 into 27; into 17 only 5 x 2
    assert pack_rows(rows, 27) == [Pack((0, 1, 2, 3, 4, 5, 6), (9, 5, 4))]
    assert pack_rows(rows, 18) == [Pack((0, 1, 2, 3, 4), (9, 5)), Pack((5, 6), (4,))]
    assert pack_rows(rows, 17) == [Pack((0, 1, 2), (9,)), Pack((3, 4, 5, 6), (5, 4))]
    assert pack_rows(rows, 9)[1:] == [Pack((3, 4), (5,)), Pack((5, 6), (4,))]
    assert [pack.tokens for pack in pack_rows(rows, 18)] == [18, 4]
    assert pack_rows([], 5) == []


def test_rows_of_an_episode_may_be_anywhere_in_the_batch() -> None:
    first, second = episode(0, [3, 6]), episode(1, [4, 5])
    mixed = [second[1], first[0], second[0], first[1]]
    assert pack_rows(mixed, 6) == [Pack((1, 3), (6,)), Pack((0, 2), (5,))]


def test_a_long_episode_is_split_between_runs_of_steps_that_share_a_prefix() -> None:
    """Blocks of two steps: hosts of 6, 7 and 5 tokens. 14 hold the first two blocks, 21 all of them."""
    rows = episode(0, [4, 6, 5, 7, 5], block=2)
    assert pack_rows(rows, 21) == [Pack((0, 1, 2, 3, 4), (6, 7, 5))]
    assert pack_rows(rows, 20) == [Pack((0, 1, 2, 3), (6, 7)), Pack((4,), (5,))]
    assert sorted(pack_rows(rows, 7), key=lambda pack: pack.rows) == [
        Pack((0, 1), (6,)),
        Pack((2, 3), (7,)),
        Pack((4,), (5,)),
    ]


def test_a_row_longer_than_the_budget_is_named() -> None:
    with pytest.raises(TokenBudgetError, match=r"a row has 9 tokens .*train\.max_tokens=8; set train\.max_tokens=9"):
        pack_rows(episode(0, [3, 9]), 8)


@examples(50)
@given(
    lengths=st.lists(st.lists(st.integers(2, 30), min_size=1, max_size=6), min_size=1, max_size=8),
    block=st.integers(1, 4),
    slack=st.integers(0, 60),
)
def test_any_rows_are_packed_once_within_the_budget_and_whole_episodes_stay_whole(
    lengths: list[list[int]], block: int, slack: int
) -> None:
    rows = [row for number, each in enumerate(lengths) for row in episode(number, sorted(each), block=block)]
    budget = max(map(max, lengths)) + slack
    packs = pack_rows(rows, budget)
    assert sorted(i for pack in packs for i in pack.rows) == list(range(len(rows)))
    assert all(pack.tokens <= budget for pack in packs)
    where = {i: number for number, pack in enumerate(packs) for i in pack.rows}
    start = 0
    for each in lengths:
        members, start = range(start, start + len(each)), start + len(each)
        (alone,) = pack_rows([rows[i] for i in members], 10**6)
        if alone.tokens <= budget:
            assert len({where[i] for i in members}) == 1
