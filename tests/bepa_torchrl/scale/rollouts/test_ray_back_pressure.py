"""Back-pressure on Ray: desktops are closed while groups wait for the trainer, and made again when it comes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lamp_groups import SIZE, lock_step
from ray_runs import Run, wait_for

from bepa_torchrl.testing import LampDesktop, summary
from osworld_gym.vector import DesktopVector

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),
]


class FileLamp(LampDesktop):
    """A lamp desktop with a file while it is open; a reset waits while the folder has no file ``go_on``."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._file = folder, folder / f"open-{os.getpid()}-{id(self)}"
        self._file.touch()

    def reset(self, seed: int) -> None:
        end = time.monotonic() + 120.0
        while not (self._folder / "go_on").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        super().reset(seed)

    def close(self) -> None:
        super().close()
        self._file.unlink(missing_ok=True)


def test_desktops_are_closed_while_groups_wait_for_the_trainer_and_made_again_when_it_comes(tmp_path: Path) -> None:
    def vector() -> DesktopVector:
        return DesktopVector(lambda: FileLamp(tmp_path), 1)

    def is_open() -> int:
        return len(list(tmp_path.glob("open-*")))

    def known() -> int:
        return int(run.collector.queue.describe()["desktops"])

    go_on = tmp_path / "go_on"
    go_on.touch()
    run = Run(staleness=1, workers=2, make_vector=vector, shrink_after=3.0)  # with two desktops each
    rollouts: Iterator[Any] = iter(run.collector)
    try:
        batches = [summary(next(rollouts))]
        wait_for(lambda: is_open() == 2 and known() == 2)  # the trainer trains: both workers keep one
        assert run.pool.replaced == 0
        go_on.unlink()
        batch = threading.Thread(target=lambda: batches.extend(summary(next(rollouts)) for _ in range(2)), daemon=True)
        batch.start()  # admits groups, of which 2 · SIZE slots wait
        assert SIZE > 2
        wait_for(lambda: is_open() == 4)
        go_on.touch()
        batch.join(240.0)
        assert not batch.is_alive()
        assert batches == lock_step(3)
        wait_for(lambda: is_open() == 2 and known() == 2)
        assert run.pool.replaced == 0
        assert "requeued" not in run.collector.queue.describe()
    finally:
        go_on.touch()
        run.end()
