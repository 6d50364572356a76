"""The losses under DistributedDataParallel, and in micro-batches, have the gradients of one process with all rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data_parallel import LOSSES, MICRO_BATCHES, ROWS, compare_gradients, gradient
from process_groups import errors_of, run_ranks


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_add_up_also_without_a_response_token(name: str) -> None:
    torch.testing.assert_close(gradient(name, MICRO_BATCHES), gradient(name, [range(len(ROWS))]))


@pytest.mark.slow
def test_two_ranks_have_the_gradient_of_one_process(tmp_path: Path) -> None:
    """A rank may have no response token, or no row: it runs another one, times 0."""
    assert run_ranks(compare_gradients, 2, tmp_path) == [0, 0], errors_of(tmp_path)
