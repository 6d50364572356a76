"""Weights as one safetensors file per tensor, named by its hash, so that a tensor that did not change crosses once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from bepa_torchrl.scale.wire.content import content_hash
from bepa_torchrl.scale.wire.errors import ProtocolError

_HASHING = 4  #: threads


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
        names: the hash of each weight's tensor.
        tensors: safetensors of one tensor each, by hash; those that the receiver has may be left out.
    """

    tag: WeightsTag
    names: Mapping[str, bytes]
    tensors: Mapping[bytes, bytes]


def encode_weights(tag: WeightsTag, weights: Iterable[tuple[str, Tensor]]) -> Weights:
    """Copies of the weights, dtypes unchanged; tied weights are one tensor."""
    files = {name: safetensors.torch.save({"": tensor.detach().cpu().contiguous()}) for name, tensor in weights}
    with ThreadPoolExecutor(_HASHING) as threads:
        hashes = dict(zip(files, threads.map(content_hash, files.values()), strict=True))
    return Weights(tag, hashes, {hashes[name]: file for name, file in files.items()})


def decode_weights(weights: Weights, held: Mapping[bytes, Tensor]) -> dict[bytes, Tensor]:
    """The tensors by their hash.

    Args:
        weights: the weights of :func:`encode_weights`.
        held: tensors of weights before, by hash.

    Raises:
        ProtocolError: a tensor is not safetensors, or missing.
    """
    tensors: dict[bytes, Tensor] = {}
    for name, key in weights.names.items():
        file = weights.tensors.get(key)
        if key in held:
            tensors[key] = held[key]
        elif file is None:
            raise ProtocolError(f"expected the tensor of {name!r}, which is neither sent nor held")
        elif key not in tensors:
            try:
                tensors[key] = safetensors.torch.load(file)[""]
            except (SafetensorError, KeyError) as error:
                raise ProtocolError(f"expected {name!r} as safetensors: {error}") from error
    return tensors


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
        newest = encode_weights(WeightsTag(self.run, version), weights)
        with self._changed:
            self._newest = newest
            self._changed.notify_all()

    def newest(self) -> Weights | None:
        """The newest weights; None before the first."""
        with self._changed:
            return self._newest

    def other_than(self, tag: WeightsTag | None, timeout: float) -> Weights | None:
        """The newest weights as soon as they are not those of ``tag``; None after ``timeout`` seconds."""

        def other() -> bool:
            return self._newest is not None and self._newest.tag != tag

        with self._changed:
            self._changed.wait_for(lambda: self._closed or other(), timeout)
            return self._newest if other() else None

    def close(self) -> None:
        """Wakes those who wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
