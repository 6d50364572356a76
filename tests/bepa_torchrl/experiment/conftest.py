"""A prepared run of the tiny policy, which several modules go on from."""

from __future__ import annotations

from pathlib import Path

import pytest
from async_runs import QUICK
from rich.console import Console

from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.tasks import make_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, which ``overrides`` fills."""
    return tmp_path_factory.mktemp("runs") / "all"


@pytest.fixture(scope="module")
def overrides(folder: Path) -> tuple[str, ...]:
    """Settings of a run with the tiny policy, prepared.

    Not a random policy: requests are batched by the order in which they come, logits of other batch sizes differ in
    the last digits, and where 100 tokens are equally likely that changes a token in one run of twenty.
    """
    settings = (*QUICK, f"runs={folder.parent}", "name=all", "compare=[]")
    config = load_config(settings)
    folder.mkdir()
    policy = make_policy(config, seed=0)
    prepared_run(config, folder, policy, make_tasks(config), Console(quiet=True))
    return settings
