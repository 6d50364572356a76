"""EngineWeightSync: TorchRL's weight synchronisation for a policy that samples with separate weights."""

from __future__ import annotations

from typing import Any

from torchrl.weight_update import TransportBackend, WeightSyncScheme

from bepa_torchrl.policies.base import SyncedPolicy


class EngineWeightSync(WeightSyncScheme):
    """Lets a collector's ``update_policy_weights_()`` update an inference engine or a whole copy of a sharded policy.

    There is one receiver, and the policy itself writes, loads and verifies the weights, so there is no transport.

    Args:
        policy: the collector's policy; its ``sync`` knows the weights in training.
    """

    def __init__(self, policy: SyncedPolicy) -> None:
        super().__init__(strategy="state_dict")
        self.policy = policy

    def _init_on_sender_impl(self, *, model_id: str, context: Any = None, **_: Any) -> None:
        self.model_id = model_id
        if context is not None:
            self.context = context

    def connect(self, *, worker_idx: int | None = None, weights: Any | None = None) -> None:
        del worker_idx, weights
        self.synchronized_on_sender = True

    def create_transport(self, **_: Any) -> TransportBackend:
        raise NotImplementedError("the engine gets its weights from its policy, not through a transport")

    def send(self, weights: Any = None, worker_ids: int | list[int] | None = None) -> None:
        """Updates the engine to the weights in training and verifies it; nothing if it has their version.

        Raises:
            ValueError: weights are given; the policy sends those in training.
            RuntimeError: the engine fails, or does not use the weights.
        """
        del worker_ids
        if weights is not None:
            raise ValueError("update_policy_weights_() takes no weights here: the engine gets those in training")
        self.policy.sync()
