"""The micro-batches of a step on several ranks: the gradient is that of one process with all rows.

Every rank holds the same rows (tokens and PNGs, on the CPU) and computes its part of them, so that denominators, which
are over all groups, and metrics are known everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torchrl.objectives.common import LossModule

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.policies.out_of_memory import token_budget_advice
from bepa_torchrl.scale.sharding.split import Split, split_rows
from bepa_torchrl.training.rank_failures import rank_failures

#: after which gradients are summed over ranks
GradientSync: TypeAlias = Literal["pass", "step"]


class ShardedPasses:
    """The ``passes`` of ``gradient_step`` and ``GroupStepper``: micro-batches on the ranks of a mesh.

    See :mod:`bepa_torchrl.training.optimization_step`.

    Args:
        mesh: the mesh of :func:`bepa_torchrl.scale.sharding.policy.shard_policy`, one dimension.
        gradient_sync: when gradients are summed over the ranks and divided among them: after each ``pass``; or once per
            ``step``, which sends as many bytes as one pass does, and keeps a whole gradient on every rank meanwhile.
    """

    def __init__(self, mesh: DeviceMesh, *, gradient_sync: GradientSync = "pass") -> None:
        self.mesh, self.gradient_sync = mesh, gradient_sync

    def __call__(
        self, loss: LossModule, rows: Sequence[TensorDictBase], max_tokens: int
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """Adds the gradient of all rows to the sharded parameters; the same results on every rank.

        What the loss writes for the tokens of a row (LOG_PROB, CLIPPED) is in the rows of every rank afterwards.

        Returns:
            The scalars of each micro-batch of all ranks, and the counts of ``gradient_step``: ``micro_batches`` and
            ``tokens_computed`` of all ranks, without fillers, and ``passes_per_rank``.

        Raises:
            ValueError: the ranks hold different rows, or a micro-batch has no image.
            TokenBudgetError: a row is longer than ``max_tokens``, or this rank's device is out of memory.
            RankLostError: another rank has exited or is late; no step is taken.
        """
        split = self._agree(rows, max_tokens)
        outputs = []
        passes = split.padded(self.mesh.get_local_rank())
        for number, (pack, weight) in enumerate(passes, start=1):
            _sync_gradients(loss, self.gradient_sync == "pass" or number == len(passes))
            with token_budget_advice(pack, loss), rank_failures():
                output = loss(stack_rows(rows[i] for i in pack.rows)).to_tensordict()
                terms = [value for key, value in output.items() if key.startswith("loss_")]
                (torch.stack(terms).sum() * weight).backward()
                outputs.append({key: value.item() for key, value in output.items()})
        self._share_tokens(rows, split)
        packs = [pack for packs in split.ranks for pack in packs]
        counts = {
            "micro_batches": float(len(packs)),
            "tokens_computed": float(sum(sum(pack.hosts) for pack in packs)),
            "passes_per_rank": float(split.passes),
        }
        return self._gather(outputs, split), counts

    @torch.no_grad()
    def fill_old_log_probs(
        self, policy: Any, rows: Sequence[TensorDictBase], *, max_tokens: int, key: NestedKey = K.OLD_LOG_PROB
    ) -> None:
        """:func:`bepa_torchrl.rollout.old_log_prob.fill_old_log_probs` for a sharded policy; raises as ``__call__``."""
        if not rows:
            return
        split = self._agree(rows, max_tokens)
        lengths = [len(row[K.RESPONSE_TOKENS]) for row in rows]
        log_probs = [torch.zeros(length) for length in lengths]
        for pack, weight in split.padded(self.mesh.get_local_rank()):
            part = stack_rows(rows[i] for i in pack.rows)
            tokens = part.get(K.RESPONSE_TOKENS, as_padded_tensor=True, padding_side="left", padding_value=0)
            with token_budget_advice(pack), rank_failures():
                scored = policy.get_dist(part)
            if weight:
                for i, values, mask in zip(pack.rows, scored.log_prob(tokens).float(), scored.mask, strict=True):
                    log_probs[i] = values[mask].cpu()
        for row, values in zip(rows, self._sum(torch.cat(log_probs)).split(lengths), strict=True):
            row.set(key, values)

    def _agree(self, rows: Sequence[TensorDictBase], max_tokens: int) -> Split:
        split = split_rows(rows, self.mesh.size(), max_tokens)
        packs = [*(pack for packs in split.ranks for pack in packs), split.filler]
        imageless = sum(not any(rows[i][K.IMAGES] for i in pack.rows) for pack in packs)
        own = torch.zeros(self.mesh.size(), dtype=torch.int64)
        own[self.mesh.get_local_rank()] = _digest(rows)
        if len(set(self._sum(own).tolist())) > 1:
            raise ValueError(
                "the ranks hold different rows; every rank must have the same batch in the same order, with the same "
                "advantages and old log-probs (broadcast it from one rank)"
            )
        if imageless:
            raise ValueError(
                f"{imageless} micro-batches have no image; sharded passes require one in each, since ranks would skip "
                "the vision tower's collective operations; put rows with a screenshot in these episodes"
            )
        return split

    def _share_tokens(self, rows: Sequence[TensorDictBase], split: Split) -> None:
        """Sets LOG_PROB and CLIPPED of the rows that other ranks have computed; nothing if the loss writes none."""
        rank = self.mesh.get_local_rank()
        (first, _), *_ = split.padded(rank)
        if K.LOG_PROB not in rows[first.rows[0]]:
            return
        own = {i for pack in split.ranks[rank] for i in pack.rows}
        lengths = [len(row[K.RESPONSE_TOKENS]) for row in rows]
        values = torch.zeros(2, sum(lengths))
        for i, part in enumerate(values.split(lengths, dim=1)):
            if i in own:
                part[0], part[1] = rows[i][K.LOG_PROB], rows[i][K.CLIPPED]
        for i, (log_prob, clipped) in enumerate(self._sum(values).split(lengths, dim=1)):
            if i not in own:
                rows[i].set(K.LOG_PROB, log_prob.clone())
                rows[i].set(K.CLIPPED, clipped > 0)

    def _gather(self, outputs: Sequence[dict[str, float]], split: Split) -> list[dict[str, float]]:
        """The scalars of all ranks' micro-batches, without fillers'."""
        names = list(outputs[0])
        table = torch.zeros(self.mesh.size(), split.passes, len(names), dtype=torch.float64)
        table[self.mesh.get_local_rank()] = torch.tensor([[out[name] for name in names] for out in outputs])
        every = self._sum(table).tolist()
        return [
            dict(zip(names, values, strict=True))
            for packs, scalars in zip(split.ranks, every, strict=True)
            for values in scalars[: len(packs)]
        ]

    def _sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, on the CPU."""
        on_device = values.to(self.mesh.device_type)
        with rank_failures():
            dist.all_reduce(on_device, group=self.mesh.get_group())
        return on_device.cpu()


def _sync_gradients(loss: LossModule, on: bool) -> None:
    """Whether the next backward pass sums the gradients over the ranks, with those of the passes before it."""
    for module in loss.modules():
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(on, recurse=False)


#: what a step reads of a row, besides its images
_READ = (
    K.PROMPT_TOKENS,
    K.RESPONSE_TOKENS,
    K.ADVANTAGE,
    K.OLD_LOG_PROB,
    K.DENOMINATOR,
    K.OFF_POLICY,
    K.ANCHOR,
    K.BASE_LOG_PROB,
    K.PLAN_LOG_PROB,
    K.DISTILL,
)


def _digest(rows: Sequence[TensorDictBase]) -> int:
    """62 bits of what a step reads of the rows."""
    digest = hashlib.sha256()
    for row in row_list(stack_rows(rows)):
        for key in _READ:
            value = row.get(key, None)
            digest.update(repr(key).encode() + (b"" if value is None else value.cpu().numpy().tobytes()))
        for image in row[K.IMAGES]:
            digest.update(len(image).to_bytes(8, "big") + image)
    return int.from_bytes(digest.digest()[:8], "big") >> 2
