"""RowStorageCheckpointer saves an environment's rows, text and images included, from every stock storage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import NonTensorData
from torchrl.data import LazyMemmapStorage, LazyStackStorage, LazyTensorStorage, ListStorage, ReplayBuffer

from bepa_torchrl.storage import RowStorageCheckpointer
from osworld_gym.torchrl_env import OSWorldEnv


@pytest.mark.parametrize("storage", [LazyStackStorage, ListStorage, LazyTensorStorage, LazyMemmapStorage])
def test_rows_with_text_survive_saving(storage: type, tmp_path: Path) -> None:
    env = OSWorldEnv("sim", 2, observation="png")
    rows = env.rollout(2, lambda td: td.set("action", NonTensorData("Action: wait()", batch_size=[2]))).reshape(-1)
    env.close()
    assert len({*rows["instruction"]}) == 2
    saved, loaded = (
        ReplayBuffer(storage=storage(8), batch_size=4, checkpointer=RowStorageCheckpointer(), collate_fn=torch.stack)
        for _ in range(2)
    )
    saved.extend(rows)
    saved.dumps(tmp_path / "buffer")
    loaded.loads(tmp_path / "buffer")
    found = loaded[:]
    found = torch.stack(found) if isinstance(found, list) else found
    for key in ("instruction", "screenshot_png", "action", ("next", "task_id")):
        assert list(found[key]) == list(rows[key])
    assert found["step_count"].equal(rows["step_count"])
