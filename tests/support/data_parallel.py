"""Gradients of the losses under DistributedDataParallel, on rows that are divided as docs/torchrl.md says."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict, TensorDictBase, lazy_stack
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torchrl.modules.llm.policies.common import LogProbDistribution

from bepa_torchrl.data import keys as K
from bepa_torchrl.losses import BEPALoss, LUFFYLoss, RLSFTLoss, SFTLoss

LOSSES: dict[str, Callable[[TensorDictModuleBase], Any]] = {
    "group": BEPALoss,
    "token": lambda actor: BEPALoss(actor, aggregation="token"),
    "step": lambda actor: BEPALoss(actor, unit="step"),
    "sequence": lambda actor: BEPALoss(actor, ratio="sequence", aggregation="sequence"),
    "anchor": lambda actor: BEPALoss(actor, anchor_weight=0.3),
    "luffy": LUFFYLoss,
    "rl_sft": RLSFTLoss,
    "sft": SFTLoss,
}
#: group, slot, response tokens, advantage, off-policy; group 2 has no response token at all
ROWS = ((0, 0, 3, 1.0, False), (0, 1, 0, -1.0, False), (1, 0, 5, 1.0, True), (1, 1, 4, -0.5, False))
ROWS += ((2, 0, 0, 1.0, False), (2, 1, 0, -1.0, False))
#: the rows of each of two ranks
SPLITS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "halves": ((0, 1, 2), (3, 4, 5)),
    "a rank without a response token": ((0, 1, 2, 3), (4, 5)),
    "a rank without rows": ((0, 1, 2, 3, 4, 5), ()),
}
MICRO_BATCHES = ((0, 1), (2,), (3,), (4, 5))


class Unigram(TensorDictModuleBase):
    """log pi(token) from one logit per token, whatever came before."""

    def __init__(self) -> None:
        super().__init__()
        self.in_keys, self.out_keys = [K.PROMPT_TOKENS, K.RESPONSE_TOKENS], [K.OLD_LOG_PROB]
        self.logits = torch.nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.float64))

    def get_dist(self, rows: TensorDictBase, logits_key: str = "logits") -> LogProbDistribution:
        del logits_key
        found = [self.logits.log_softmax(-1)[row[K.RESPONSE_TOKENS]] for row in rows.unbind(0)]
        width = max(map(len, found))
        padded = [torch.cat([each.new_full((width - len(each),), math.nan), each]) for each in found]
        mask = torch.stack([torch.arange(width) >= width - len(each) for each in found])
        return LogProbDistribution(torch.stack(padded), mask)


def made_rows(loss: Any) -> list[TensorDictBase]:
    """The rows with the denominators of them all."""
    rows = []
    for group, slot, length, advantage, off in ROWS:
        tokens = torch.tensor([(3 * i + slot) % 7 for i in range(length)], dtype=torch.int64)
        row = TensorDict({K.PROMPT_TOKENS: torch.tensor([5]), K.RESPONSE_TOKENS: tokens})
        row.update({K.GROUP_ID: torch.tensor(group), K.SLOT: torch.tensor(slot), K.OFF_POLICY: torch.tensor([off])})
        row.update({K.OLD_LOG_PROB: torch.full((length,), -2.0), K.ADVANTAGE: torch.tensor([[advantage]])})
        rows.append(row.update({K.RETURN: torch.tensor([float(advantage > 0)])}))
    stack = lazy_stack(rows)
    stack.set(K.DENOMINATOR, loss.denominators(stack))
    if getattr(loss, "anchor_weight", 0):
        stack.set(K.ANCHOR, loss.anchor_weights(stack))
    return list(stack.unbind(0))


def total(output: Any) -> Tensor:
    """The sum of a loss's losses."""
    losses = [value for key, value in output.to_tensordict().items() if key.startswith("loss_")]
    return torch.stack(losses).sum()


def gradient(name: str, parts: Sequence[Sequence[int]]) -> Tensor:
    """The gradient of one process, of all rows in these micro-batches."""
    actor = Unigram()
    loss = LOSSES[name](actor)
    rows = made_rows(loss)
    for part in parts:
        total(loss(lazy_stack([rows[i] for i in part]))).backward()
    assert actor.logits.grad is not None
    return actor.logits.grad


def compare_gradients(folder: Path) -> None:
    """A rank of two: its gradients are those of one process with all rows."""
    del folder
    dist.init_process_group("gloo")
    rank, ranks = int(os.environ["RANK"]), dist.get_world_size()
    for name, make in LOSSES.items():
        expected = gradient(name, [range(len(ROWS))])
        assert expected.abs().max() > 0.01, name
        for split, parts in SPLITS.items():
            actor = Unigram()
            loss = make(actor)
            rows, own, model = made_rows(loss), parts[rank], DistributedDataParallel(loss)
            output = model(lazy_stack([rows[i] for i in own or (0,)]))
            (total(output) * (ranks if own else 0.0)).backward()
            torch.testing.assert_close(actor.logits.grad, expected, msg=lambda text, at=(name, split): f"{at}: {text}")
