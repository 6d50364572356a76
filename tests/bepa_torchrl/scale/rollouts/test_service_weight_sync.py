"""ServiceWeightSync: a stock way to construct the collector; turns are sampled by the weights that were sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from one_weight import GROUPS, SIZE, OneWeight, returns_and_versions
from tensordict import TensorDict
from torch import Tensor
from torchrl.weight_update import WeightSyncScheme

from bepa_torchrl.rollout.weight_sync import ServiceWeightSync, on_cpu
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.testing import LampEnv, lamp_task, lamp_vector


@contextmanager
def collecting(
    sampler: Any, schemes: dict[str, WeightSyncScheme] | None = None
) -> Iterator[tuple[AsyncGroupCollector, OneWeight]]:
    """A collector as a user of TorchRL constructs one, with two desktops, and its policy, whose weight is negative."""
    queue, service = QueueService(batch_groups=GROUPS, max_staleness=0), RolloutService(sampler, require_weights=True)
    policy: Any = OneWeight(-1.0)
    collector = AsyncGroupCollector(
        LampEnv(lamp_vector(1)),
        policy,
        [lamp_task(n) for n in range(4)],
        groups=GROUPS,
        group_size=SIZE,
        queue=queue,
        weight_sync_schemes={"policy": ServiceWeightSync(service.load_weights)} if schemes is None else schemes,
    )
    worker = EnvWorker("node", queue, service, collector.plan, lambda: lamp_vector(1), desktops=2, poll=0.1)
    try:
        yield collector, policy
    finally:
        worker.stop(10.0)
        service.close()
        collector.shutdown()


def test_turns_are_sampled_by_the_weights_in_training_and_have_their_version() -> None:
    """The sampler begins with a weight that wins; no turn is sampled with it."""
    with collecting(OneWeight(1.0)) as (collector, policy):
        found = []
        for batch in islice(collector, 3):
            found.append(returns_and_versions(batch))
            policy.weight, policy.version = -policy.weight, policy.version + 1
        assert found == [({0.0}, {0}), ({1.0}, {1}), ({0.0}, {2})]


def test_the_weights_are_sent_when_torchrl_asks_and_before_a_batch_only_if_they_have_changed() -> None:
    sent: list[tuple[list[float], int]] = []

    def publish(weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        sent.append(([float(weight) for _, weight in weights], version))

    scheme = ServiceWeightSync(publish)
    with collecting(OneWeight(1.0), {"policy": scheme}) as (collector, policy):
        assert scheme.initialized_on_sender
        assert scheme.synchronized_on_sender
        assert not sent  # a resumed run loads its weights first
        collector.update_policy_weights_()
        policy.weight, policy.version = torch.tensor(3.0), 1
        collector.update_policy_weights_(policy)
        collector._publish_changes()
        assert sent == [([-1.0], 0), ([3.0], 1)]
        policy.version = 2
        collector._publish_changes()
        assert sent[2:] == [([3.0], 2)]
        with pytest.raises(ValueError, match="takes no weights here"):
            collector.update_policy_weights_(TensorDict({"weight": torch.zeros(())}))
        with pytest.raises(ValueError, match="updates all that sample, got worker_ids=0"):
            collector.update_policy_weights_(worker_ids=0)
        with pytest.raises(KeyError, match="critic"):
            collector.update_policy_weights_(model_id="critic")
        assert len(sent) == 3


def test_a_service_that_does_not_use_the_weights_ends_the_batch() -> None:
    class Ignores(OneWeight):
        def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
            del weights, version  # an engine that says yes and does nothing

    start = time.monotonic()
    with collecting(Ignores(1.0)) as (collector, policy):
        policy.version = 5
        with pytest.raises(RuntimeError, match="version 5 was loaded, the policy has 0"):
            next(iter(collector))
    assert time.monotonic() - start < 60.0  # it does not wait for episodes that nobody samples


def test_a_collector_without_a_scheme_for_the_policy_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"expected a scheme for the model 'policy' in weight_sync_schemes, got \[\]"),
        collecting(OneWeight(1.0), {}),
    ):
        pass
    with pytest.raises(RuntimeError, match="belongs to no collector"):
        ServiceWeightSync(lambda _weights, _version: None).send()


def test_weights_for_another_process_are_copied_to_the_cpu() -> None:
    """Without an accelerator here, a tensor without data shows that it is asked for: it cannot be copied."""
    weight = torch.ones(2, requires_grad=True)
    ((name, sent),) = on_cpu([("weight", weight)])
    assert (name, sent.device.type, sent.requires_grad) == ("weight", "cpu", False)
    with pytest.raises(NotImplementedError, match="no data"):
        on_cpu([("weight", torch.ones(2, device="meta"))])


def test_weights_from_elsewhere_are_sent_with_the_policys_version() -> None:
    """As of a policy that is divided over several ranks, whose own tensors are parts."""
    sent: list[tuple[dict[str, float], int]] = []

    def publish(weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        sent.append(({name: float(weight) for name, weight in weights}, version))

    scheme = ServiceWeightSync(publish, lambda: iter([("whole", torch.tensor(3.0))]))
    with collecting(OneWeight(1.0), {"policy": scheme}) as (collector, policy):
        policy.version = 7
        collector.update_policy_weights_()
    assert sent == [({"whole": 3.0}, 7)]
