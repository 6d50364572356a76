"""EngineWeightSync: the collector updates an engine's weights before each iteration, through TorchRL's interface."""

from __future__ import annotations

import pytest

from bepa_torchrl.policies.base import EngineSampler
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.weight_sync import EngineWeightSync
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, lamp_task, lamp_vector


class EnginePolicy(ScriptedPolicy):
    """A scripted policy that counts its syncs; the third one fails."""

    def __init__(self) -> None:
        super().__init__(lambda _: True)
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        self.version = self.syncs
        if self.syncs == 3:
            raise RuntimeError("the engine has other weights")

    def drain_metrics(self) -> dict[str, float]:
        return {"engine/restarts": 0.0}

    def close(self) -> None:
        pass

    @property
    def concurrent(self) -> bool:
        return False


def collector_of(policy: EnginePolicy) -> GroupRolloutCollector:
    return GroupRolloutCollector(
        LampEnv(lamp_vector(2)),
        policy,
        [lamp_task(i) for i in range(4)],
        groups=2,
        group_size=2,
        weight_sync_schemes={"policy": EngineWeightSync(policy)},
    )


def test_weights_are_updated_before_each_iteration_and_a_failure_ends_the_run() -> None:
    policy = EnginePolicy()
    iterator = iter(collector_of(policy))
    versions = [next(iterator)[0]["policy_version"].item() for _ in range(2)]
    assert versions == [1, 2]
    with pytest.raises(RuntimeError, match="the engine has other weights"):
        next(iterator)


def test_the_engine_sends_the_weights_in_training_only() -> None:
    policy = EnginePolicy()
    collector = collector_of(policy)
    collector.update_policy_weights_()
    assert policy.syncs == 1
    with pytest.raises(ValueError, match="takes no weights here"):
        collector.update_policy_weights_({"weight": None})
    collector.shutdown()


def test_the_protocol_of_synced_policies() -> None:
    assert not isinstance(ScriptedPolicy(lambda _: True), EngineSampler)
