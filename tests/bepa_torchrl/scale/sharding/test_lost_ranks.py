"""A rank that exits or stops answering ends the others with a clear error; different rows are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from process_groups import errors_of, run_ranks
from safetensors.torch import load_file
from sharded_training import MAX_TOKENS, hold_different_rows, lose_a_rank, made_batches, made_policy, optimizer_of

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.failures import INFRASTRUCTURE, exit_code
from bepa_torchrl.rollout.old_log_prob import fill_old_log_probs
from bepa_torchrl.scale.sharding.checkpoints.sharded import load_sharded
from bepa_torchrl.training.rank_failures import RankLostError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["exits", "hangs"])
def test_a_lost_rank_ends_the_others_resumably(tmp_path: Path, how: str) -> None:
    assert run_ranks(lose_a_rank, 2, tmp_path, how) == [1, 9]
    assert "RankLostError: rank 0 lost another rank of the process group" in errors_of(tmp_path)
    policy = made_policy()
    load_sharded(policy, optimizer_of(policy), tmp_path / "saved")


def test_a_lost_rank_is_an_infrastructure_failure() -> None:
    assert exit_code(RankLostError("lost")) == INFRASTRUCTURE


def test_different_rows_are_refused_and_old_log_probs_are_those_of_one_process(tmp_path: Path) -> None:
    assert run_ranks(hold_different_rows, 2, tmp_path) == [0, 0], errors_of(tmp_path)
    policy = made_policy()
    (batch,) = made_batches(policy)[1:2]
    fill_old_log_probs(policy, row_list(batch), max_tokens=MAX_TOKENS)
    for rank in range(2):
        found = load_file(tmp_path / f"old-{rank}.safetensors")
        for i, row in enumerate(row_list(batch)):
            torch.testing.assert_close(found[str(i)], row[K.OLD_LOG_PROB], atol=1e-5, rtol=0)
