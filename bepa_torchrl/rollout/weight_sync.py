"""TorchRL's weight synchronisation, for policies in training whose rollouts are sampled with separate weights."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torchrl.weight_update import TransportBackend, WeightSyncScheme

from bepa_torchrl.policies.base import EngineSampler, Learner

#: Loads weights, as (name, tensor), and their version; returns when they are used for whatever is sampled next.
Publish = Callable[[Iterable[tuple[str, Tensor]], int], None]
#: Returns the whole weights in training, as (name, tensor); they are iterated over once, to the end, by the caller.
Weights = Callable[[], Iterable[tuple[str, Tensor]]]


def on_cpu(weights: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Weights for another process, which may have no accelerator, or not the one of this process."""
    return [(name, weight.detach().cpu()) for name, weight in weights]


class _TrainedWeightSync(WeightSyncScheme):
    """Sends the weights in training whenever the collector asks, all of them, to all that sample."""

    def _init_on_sender_impl(self, *, model_id: str, context: Any = None, **_: Any) -> None:
        self.model_id = model_id
        if context is not None:
            self.context = context

    def connect(self, *, worker_idx: int | None = None, weights: Any | None = None) -> None:
        """Sends nothing: the collector does before its first rollout, and a resumed one gets other weights first."""
        del worker_idx, weights
        self.synchronized_on_sender = True

    def create_transport(self, **_: Any) -> TransportBackend:
        raise NotImplementedError("the weights are sent by the scheme itself, not through a transport")

    def send(self, weights: Any = None, worker_ids: int | list[int] | None = None) -> None:
        """Updates what samples to the weights in training.

        Raises:
            ValueError: weights or receivers are given; the scheme knows both.
            RuntimeError: as the one that samples, which does not use the weights.
        """
        if weights is not None:
            raise ValueError(
                "update_policy_weights_() takes no weights here, since it sends those in training with their version; "
                "load others into the policy in training"
            )
        if worker_ids is not None:
            raise ValueError(f"update_policy_weights_() updates all that sample, got worker_ids={worker_ids}")
        self._send()

    @abc.abstractmethod
    def _send(self) -> None: ...


class EngineWeightSync(_TrainedWeightSync):
    """Lets a collector's ``update_policy_weights_()`` update an inference engine or a whole copy of a sharded policy.

    There is one receiver, and the policy itself writes, loads and verifies the weights. Nothing is sent if the engine
    has their version.

    Args:
        policy: the collector's policy; its ``sync`` knows the weights in training.
    """

    def __init__(self, policy: EngineSampler) -> None:
        super().__init__()
        self.policy = policy

    def _send(self) -> None:
        self.policy.sync()


class ServiceWeightSync(_TrainedWeightSync):
    """Lets a collector's ``update_policy_weights_()`` update rollout services, in this process or in others.

    The weights and their version are those of the collector's policy. The receiver is
    :meth:`bepa_torchrl.scale.rollouts.rollout_service.RolloutService.load_weights`: the service loads them between two
    turns, verifies them, and each turn has the version of those that sampled it.

    Args:
        publish: ``load_weights`` of one service, ``publish`` of a
            :class:`~bepa_torchrl.scale.rollouts.ray_services.ServicePool`, or of the
            :class:`~bepa_torchrl.scale.rollouts.remote.weights.PublishedWeights` that other clusters ask for.
        weights: the weights of a policy that is divided over several ranks
            (:meth:`bepa_torchrl.scale.sharding.leader.Leader.merged_weights`); None: the policy's ``named_weights``.
    """

    def __init__(self, publish: Publish, weights: Weights | None = None) -> None:
        super().__init__()
        self._publish, self._weights = publish, weights

    def _send(self) -> None:
        context = self.context
        if context is None:
            raise RuntimeError("the scheme belongs to no collector: pass it to one as weight_sync_schemes")
        policy: Learner = context.get_model(self.model_id)
        weights = policy.named_weights() if self._weights is None else self._weights()
        self._publish(weights, policy.version)
