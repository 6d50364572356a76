"""What ranks 1, 2, … do: the commands of rank 0, each the counterpart of a method of ``Leader``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torchrl.objectives.common import LossModule

from bepa_torchrl.data import keys as K
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.sharding.broadcast import broadcast_rows
from bepa_torchrl.scale.sharding.checkpoints.sharded import load_sharded, save_sharded
from bepa_torchrl.scale.sharding.checkpoints.whole import load_whole_optimizer, load_whole_weights
from bepa_torchrl.scale.sharding.export import export_policy, gathered_merged_weights, gathered_weights
from bepa_torchrl.scale.sharding.gradient import GradientSync, ShardedPasses
from bepa_torchrl.training.optimization_step import take_step

#: (phase) → the loss and the optimiser of its steps
MakePhase = Callable[[str], tuple[LossModule, Optimizer]]


class FollowingRank:
    """One rank's shards of a policy and its optimiser, and the commands on them.

    Args:
        policy: sharded over ``mesh``.
        mesh: the mesh of all ranks, one dimension.
        make_phase: makes what rank 0 makes for the same phase.
        clip_norm: maximum gradient norm.
        gradient_sync: as of :class:`~bepa_torchrl.scale.sharding.gradient.ShardedPasses`.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        mesh: DeviceMesh,
        make_phase: MakePhase,
        *,
        clip_norm: float,
        gradient_sync: GradientSync = "pass",
    ) -> None:
        self.policy, self.passes = policy, ShardedPasses(mesh, gradient_sync=gradient_sync)
        self.make_phase, self.clip_norm = make_phase, clip_norm
        self.loss: LossModule | None = None
        self.optimizer: Optimizer | None = None
        self.commands: dict[str, Callable[..., None]] = {
            "begin": self.begin,
            "fill": self.fill,
            "fill_base": self.fill_base,
            "step": self.step,
            "save": self.save,
            "load": self.load,
            "load_whole_weights": self.load_whole_weights,
            "load_whole_optimizer": self.load_whole_optimizer,
            "gather": self.gather,
            "export": self.export,
        }

    def follow(self, lines: Iterable[str]) -> None:
        """Executes commands, one per line, until there are no more. Raises as the command does."""
        for line in lines:
            command = json.loads(line)
            self.commands[command.pop("do")](**command)

    def begin(self, phase: str) -> None:
        """Makes the loss and a new optimiser."""
        self.loss, self.optimizer = self.make_phase(phase)

    def fill(self, max_tokens: int, key: Sequence[str]) -> None:
        """Computes this rank's part of the log-probs of rank 0's rows, which are stored under ``key``."""
        rows = broadcast_rows(None)
        self.passes.fill_old_log_probs(self.policy, rows, max_tokens=max_tokens, key=tuple(key))

    def fill_base(self, max_tokens: int) -> None:
        """Computes this rank's part of the base policy's log-probs of rank 0's rows."""
        rows = broadcast_rows(None)
        with self.policy.as_base():
            self.passes.fill_old_log_probs(self.policy, rows, max_tokens=max_tokens, key=K.BASE_LOG_PROB)

    def step(self, max_tokens: int) -> None:
        """Takes an optimiser step on rank 0's rows."""
        assert self.loss is not None
        assert self.optimizer is not None
        rows = broadcast_rows(None)
        take_step(self.loss, self.optimizer, rows, max_tokens=max_tokens, clip_norm=self.clip_norm, passes=self.passes)

    def save(self, path: str) -> None:
        """Writes this rank's shards."""
        assert self.optimizer is not None
        save_sharded(self.policy, self.optimizer, Path(path))

    def load(self, path: str) -> None:
        """Reads this rank's shards."""
        assert self.optimizer is not None
        load_sharded(self.policy, self.optimizer, Path(path))

    def load_whole_weights(self, path: str) -> None:
        """Reads this rank's rows of the weights that one process saved."""
        load_whole_weights(self.policy, Path(path))

    def load_whole_optimizer(self, path: str) -> None:
        """Reads this rank's rows of the optimiser's state that one process saved."""
        assert self.optimizer is not None
        load_whole_optimizer(self.optimizer, Path(path))

    def gather(self, merged: bool, dtype: str | None) -> None:
        """Takes part in gathering the weights, in a dtype by its name; None: in their own."""
        given = None if dtype is None else getattr(torch, dtype)
        for _ in gathered_merged_weights(self.policy) if merged else gathered_weights(self.policy, given):
            pass

    def export(self, path: str) -> None:
        """Takes part in writing the whole policy: gives its part; the next command is awaited without a time limit."""
        export_policy(self.policy, Path(path), wait=False)
