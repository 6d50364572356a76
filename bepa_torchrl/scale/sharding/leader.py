"""Rank 0's side of a run on several ranks: each method has the other ranks do the same (``rank.py``)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torchrl.objectives.common import LossModule

from bepa_torchrl.data import keys as K
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.sharding.broadcast import broadcast_rows
from bepa_torchrl.scale.sharding.checkpoints.sharded import SHARDS_FOLDER, load_sharded, save_sharded
from bepa_torchrl.scale.sharding.checkpoints.whole import load_whole_optimizer, load_whole_weights
from bepa_torchrl.scale.sharding.export import export_policy, gathered_merged_weights, gathered_weights
from bepa_torchrl.scale.sharding.followers import HINT
from bepa_torchrl.scale.sharding.gradient import GradientSync, ShardedPasses
from bepa_torchrl.training.checkpoint import LoadWith
from bepa_torchrl.training.rank_failures import RankLostError

#: seconds in which the exit of another rank is noticed after a collective operation failed
_NOTICE = 5.0


class OtherRanks(Protocol):
    """The connection to the other ranks: of processes that rank 0 or that torchrun has started."""

    def send(self, command: Mapping[str, Any]) -> None: ...

    def exited(self, seconds: float) -> str | None: ...

    def ending(self) -> None: ...


class Leader:
    """Computes on all ranks, for a policy that is sharded over them.

    Every method raises RankLostError if another rank has exited or is late; the run cannot go on then. From now on the
    policy scores by these methods only: alone, this rank would wait for the others. All of them are called by the
    thread that has made the leader, one after the other, since the ranks must take part in the same operations in the
    same order; threads that play episodes or send weights to services call none of them.

    Args:
        policy: this rank's, sharded over ``mesh``.
        mesh: the mesh of all ranks, one dimension; this process is rank 0.
        followers: the other ranks.
        gradient_sync: as of :class:`~bepa_torchrl.scale.sharding.gradient.ShardedPasses`; the other ranks' must be the
            same.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        mesh: DeviceMesh,
        followers: OtherRanks,
        *,
        gradient_sync: GradientSync = "pass",
    ) -> None:
        self.policy, self._followers = policy, followers
        self._thread, self._gathering = threading.get_ident(), False
        self._passes = ShardedPasses(mesh, gradient_sync=gradient_sync)
        self._forward, self._together = policy.scorer._forward, False
        policy.scorer._forward = self._forward_together  # type: ignore[assignment, method-assign]

    def _send(self, command: Mapping[str, Any]) -> None:
        """Sends a command to the other ranks. Raises RuntimeError: another thread, or within another operation."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(f"{command['do']}: the ranks are led by one thread, got another one; call it there")
        if self._gathering:
            raise RuntimeError(f"{command['do']}: weights are being gathered; iterate over them to the end before")
        self._followers.send(command)

    def begin(self, phase: str) -> None:
        """The other ranks make the loss and a new optimiser of a phase; the caller makes this rank's."""
        self._send({"do": "begin", "phase": phase})

    def passes(
        self, loss: LossModule, rows: Sequence[TensorDictBase], max_tokens: int
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """The ``passes`` of ``gradient_step``, which must clip and step afterwards, as the other ranks do.

        See :class:`~bepa_torchrl.scale.sharding.gradient.ShardedPasses`.
        """
        self._send({"do": "step", "max_tokens": max_tokens})
        with self._scoring():
            return self._passes(loss, broadcast_rows(rows), max_tokens)

    def fill_old_log_probs(
        self, policy: Any, rows: Sequence[TensorDictBase], *, max_tokens: int, key: NestedKey = K.OLD_LOG_PROB
    ) -> None:
        """:func:`bepa_torchrl.rollout.old_log_prob.fill_old_log_probs` on all ranks.

        Raises:
            ValueError: another policy than the sharded one.
        """
        if policy is not self.policy:
            raise ValueError("fill_old_log_probs: expected the policy that is sharded over the ranks, got another one")
        if rows:
            self._send({"do": "fill", "max_tokens": max_tokens, "key": key})
            with self._scoring():
                self._passes.fill_old_log_probs(policy, broadcast_rows(rows), max_tokens=max_tokens, key=key)

    def fill_base_log_probs(self, rows: Sequence[TensorDictBase], *, max_tokens: int) -> None:
        """BASE_LOG_PROB of the rows, on all ranks, by the policy without its adapters.

        Raises:
            ValueError: the policy has no adapters.
        """
        if rows:
            with self.policy.as_base(), self._scoring():
                self._send({"do": "fill_base", "max_tokens": max_tokens})
                together = broadcast_rows(rows)
                self._passes.fill_old_log_probs(self.policy, together, max_tokens=max_tokens, key=K.BASE_LOG_PROB)

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """Marks that the other ranks score, too."""
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def _forward_together(self, *arguments: Any) -> Any:
        if not self._together:
            raise RuntimeError("a sharded policy is scored by all ranks; score with its whole copy (SamplingCopy.copy)")
        return self._forward(*arguments)

    def weights(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of every weight, a few at a time; to be iterated to the end.

        Of a policy with adapters, of the adapters' weights alone. As
        :func:`~bepa_torchrl.scale.sharding.export.gathered_weights`.
        """
        with self._gathered(merged=False, dtype=dtype):
            yield from gathered_weights(self.policy, dtype)

    def merged_weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor on the CPU) of every weight, adapters merged; to be iterated to the end.

        What rollout services get, in other processes or on other machines: under the names of a checkpoint, gathered
        one at a time, so that this rank's device has one whole tensor at a time. The caller calls it between steps.

        Args:
            dtype: in which the services sample.
        """
        with self._gathered(merged=True, dtype=None):
            for name, weight in gathered_merged_weights(self.policy):
                yield name, weight.to(dtype).cpu()

    @contextmanager
    def _gathered(self, *, merged: bool, dtype: torch.dtype | None) -> Iterator[None]:
        """The other ranks take part in gathering during the block, in which nothing else is sent to them."""
        self._send({"do": "gather", "merged": merged, "dtype": dtype and str(dtype).removeprefix("torch.")})
        self._gathering = True
        yield
        self._gathering = False  # not after an error, or less than the whole: the ranks would be in other operations

    def export(self, path: Path, *, dtype: torch.dtype) -> None:
        """Writes the policy as a checkpoint folder (:func:`bepa_torchrl.scale.sharding.export.export_policy`)."""
        self._send({"do": "export", "path": str(path.absolute())})
        export_policy(self.policy, path, dtype=dtype, wait=False)

    def save(self, optimizer: Optimizer, path: Path) -> None:
        """Writes the shards of the policy and the optimiser (``save_sharded``)."""
        self._send({"do": "save", "path": str(path.absolute())})
        save_sharded(self.policy, optimizer, path)

    def load(self, optimizer: Optimizer, path: Path) -> None:
        """Loads what :meth:`save` wrote, on any number of ranks."""
        self._send({"do": "load", "path": str(path.absolute())})
        load_sharded(self.policy, optimizer, path)

    def load_whole_weights(self, path: Path) -> None:
        """Loads the weights of one process's checkpoint; ``path`` is the folder of that component."""
        self._send({"do": "load_whole_weights", "path": str(path.absolute())})
        load_whole_weights(self.policy, path)

    def load_whole_optimizer(self, optimizer: Optimizer, path: Path) -> None:
        """Loads the optimiser's state of one process's checkpoint; ``path`` is the folder of that component."""
        self._send({"do": "load_whole_optimizer", "path": str(path.absolute())})
        load_whole_optimizer(optimizer, path)

    def state(self, optimizer: Optimizer) -> ShardedState:
        """Policy and optimiser as a checkpoint component."""
        return ShardedState(self, optimizer)

    def check(self) -> None:
        """Raises RankLostError if another rank has exited: for a caller that waits for something else.

        From then on this process is not ended because of the rank, and can end by itself, in order.
        """
        cause = self._followers.exited(0.0)
        if cause is not None:
            self._followers.ending()
            raise RankLostError(f"{cause}; {HINT}")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Names the rank whose exit made an operation of this block fail, and its error.

        Raises:
            RankLostError: instead of the failed operation's error.
        """
        try:
            yield
        except OSError as error:
            lost = isinstance(error, RankLostError) or isinstance(error.__cause__, RankLostError)
            cause = self._followers.exited(_NOTICE if lost else 0.0)
            self._followers.ending()
            if cause is None and not lost:
                raise
            what = cause or "another rank has exited, or did not answer within train.rank_timeout"
            raise RankLostError(f"{what}; {HINT}") from error


class ShardedState:
    """The policy and its optimiser on all ranks, as a checkpoint component."""

    def __init__(self, leader: Leader, optimizer: Optimizer) -> None:
        self.leader, self.optimizer = leader, optimizer

    def dump(self, path: Path) -> None:
        """Writes the shards into the folder ``path``. Raises OSError if writing fails, RankLostError."""
        self.leader.save(self.optimizer, path / SHARDS_FOLDER)

    def load(self, path: Path) -> None:
        """Loads the shards. Raises CheckpointError if they are of another model, RankLostError."""
        self.leader.load(self.optimizer, path / SHARDS_FOLDER)

    def of_one_process(self) -> dict[str, LoadWith]:
        """The components, by name, that load a checkpoint of one process; each raises as :meth:`load`."""
        return {
            "weights": LoadWith(self.leader.load_whole_weights),
            "stepper": LoadWith(partial(self.leader.load_whole_optimizer, self.optimizer)),
        }
