"""A policy of one weight whose sign decides its episodes, to see which weights sampled them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import int_entry, row_list
from bepa_torchrl.testing import ScriptedPolicy

GROUPS, SIZE = 2, 2  # groups of a batch, episodes of a group


class OneWeight(ScriptedPolicy):
    """Its episodes succeed if its only weight is positive."""

    def __init__(self, weight: float) -> None:
        super().__init__(lambda _: bool(self.weight > 0))
        self.weight = torch.tensor(weight)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        self.weight = dict(weights)["weight"].clone()
        self.version = version


def returns_and_versions(batch: Any) -> tuple[set[float], set[int]]:
    """The returns of a batch, and the versions of the weights that sampled it."""
    rows = row_list(batch)
    return {float(row[K.RETURN]) for row in rows}, {int_entry(row, K.POLICY_VERSION) for row in rows}
