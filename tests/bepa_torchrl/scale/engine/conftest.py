"""One engine per test session. Without vLLM these files are not collected (make test-vllm has its own environment)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def running_engine() -> Iterator[VLLMSampler]:
    """The session's engine, started; tests use ``engine``."""
    from vllm_engine import make_trainer

    from bepa_torchrl.scale.engine.sampler import VLLMSampler

    policy = VLLMSampler(make_trainer(), kv_cache_gb=0.25, max_rows=32)
    policy.sync()
    yield policy
    policy.close()


@pytest.fixture
def engine(running_engine: VLLMSampler) -> Iterator[VLLMSampler]:
    """The session's engine with its first weights, also afterwards."""
    trainer, version = running_engine.trainer, running_engine.version
    first = {name: weight.clone() for name, weight in trainer.named_weights()}
    yield running_engine
    running_engine.trainer = trainer
    if not version == trainer.version == running_engine.version:
        trainer.load_weights(first.items(), version=max(trainer.version, running_engine.version) + 1)
        running_engine.sync()
    running_engine.drain_metrics()
