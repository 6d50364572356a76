"""The weights of a sync one after the other, so that no second copy of all of them is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bepa_torchrl.scale.engine.weight_sync.folder import Fingerprint


class Described(NamedTuple):
    """One weight as the engine expects it: its name in a checkpoint, dtype and shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightStream:
    """Weights under the names, and of the dtypes and shapes, that were described.

    Args:
        weights: gives all weights in the order of ``expected``; called by each iteration.
        expected: dtype and shape per name. Floating-point weights are cast to the dtype.
    """

    def __init__(
        self,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        expected: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    ) -> None:
        self._weights = weights
        self.described = [Described(name, dtype, shape) for name, (dtype, shape) in expected.items()]
        self.fingerprint = ""  #: of the weights of the last whole iteration (:func:`.folder.fingerprint`)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """(name, contiguous tensor) where it is, one at a time.

        Raises:
            ValueError: the weights are not those that were described.
        """
        bits = Fingerprint()
        given = iter(self._weights())
        for wanted in self.described:
            name, weight = next(given, ("", torch.empty(0)))
            if name != wanted.name or tuple(weight.shape) != wanted.shape:
                raise ValueError(
                    f"expected the weight {wanted.name} of shape {wanted.shape}, got {name or 'none'} of shape "
                    f"{tuple(weight.shape)}; give those of named_weights() of the policy that was described"
                )
            cast = weight.detach().to(wanted.dtype).contiguous()
            bits.add(name, cast)
            yield name, cast
        extra = next(given, None)
        if extra is not None:
            raise ValueError(f"expected {len(self.described)} weights, got others, too, such as {extra[0]}")
        self.fingerprint = bits.name()
