"""The anchor's rows and weights, by hand."""

import pytest
import torch

from bepa_torchrl import functional as F


def test_own_successes_of_groups_without_an_injected_trace() -> None:
    """Group 4 is solved; 7 has an injected trace, as LUFFY's may beside an own success; 9 failed; 0.5 is no success."""
    returns = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.5])
    off = torch.tensor([False, False, False, True, False, False, False])
    group = torch.tensor([4, 4, 4, 7, 7, 9, 9])
    assert F.anchor_rows(returns, off, group).tolist() == [True, False, True, False, False, False, False]


def test_weights_are_one_over_the_tokens_of_the_anchor() -> None:
    weights = F.term_weights(torch.tensor([3, 9, 5]), torch.tensor([True, False, True]))
    assert weights.tolist() == [0.125, 0.0, 0.125]
    assert weights.dtype == torch.float32
    assert F.term_weights(torch.tensor([3, 9]), torch.tensor([False, False])).tolist() == [0.0, 0.0]


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"three \[R\]"):
        F.anchor_rows(torch.ones(2, 1), torch.zeros(2, dtype=torch.bool), torch.zeros(2))
