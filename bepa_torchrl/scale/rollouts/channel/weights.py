"""Weights as safetensors, in parts of limited size, and the trainer's newest ones, which rollout clusters fetch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from bepa_torchrl.scale.rollouts.channel.errors import ProtocolError

PART_BYTES = 256 << 20  #: of a part, unless one tensor is larger


class WeightsTag(NamedTuple):
    """Identifies weights.

    Args:
        run: of the trainer's process that published them: after a resume the same version may have other weights.
        version: optimiser steps.
    """

    run: str
    version: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as bytes.

    Args:
        tag: identifies them.
        parts: safetensors each.
    """

    tag: WeightsTag
    parts: Sequence[bytes]


def encode_weights(weights: Iterable[tuple[str, Tensor]], *, part_bytes: int = PART_BYTES) -> list[bytes]:
    """Copies of the weights as safetensors, dtypes unchanged; no part if there are none."""
    return [safetensors.torch.save(part) for part in _split(weights, part_bytes)]


def _split(weights: Iterable[tuple[str, Tensor]], part_bytes: int) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if part and size + tensor.nbytes > part_bytes:
            yield part
            part, size = {}, 0
        part[name] = tensor.detach().cpu().contiguous().clone()  # tied weights share memory, which safetensors refuses
        size += tensor.nbytes
    if part:
        yield part


def decode_weights(parts: Iterable[bytes]) -> dict[str, Tensor]:
    """The inverse of :func:`encode_weights`. Raises ProtocolError: not safetensors, or a name comes twice."""
    weights: dict[str, Tensor] = {}
    for part in parts:
        try:
            tensors = safetensors.torch.load(part)
        except SafetensorError as error:
            raise ProtocolError(f"expected weights as safetensors: {error}") from error
        twice = tensors.keys() & weights.keys()
        if twice:
            raise ProtocolError(f"the weight {min(twice)!r} comes twice")
        weights |= tensors
    return weights


class PublishedWeights:
    """The newest weights, for many threads.

    Args:
        run: identifies the trainer's process.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._changed = threading.Condition()
        self._newest: Weights | None = None
        self._closed = False

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replaces the weights. Does not wait for rollout clusters: leases state which version they require."""
        newest = Weights(WeightsTag(self.run, version), encode_weights(weights))
        with self._changed:
            self._newest = newest
            self._changed.notify_all()

    def newest(self) -> Weights | None:
        """The newest weights; None before the first."""
        with self._changed:
            return self._newest

    def other_than(self, tag: WeightsTag | None, timeout: float) -> Weights | None:
        """The newest weights as soon as they are not those of ``tag``; None after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._newest is not None and self._newest.tag != tag), timeout
            )
            newest = self._newest
            return newest if newest is not None and newest.tag != tag else None

    def close(self) -> None:
        """Wakes those who wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
