"""Prompts and images as they cross: token ids as compressed bytes, the SHA-256 of an image in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.scale.wire.content import Blobs, content_hash, pack_array, unpack_array

_TOKENS = "<i8"


class ImageNames(dict[bytes, bytes]):
    """Images to their hashes; each image that is asked for is hashed once."""

    def __missing__(self, image: bytes) -> bytes:
        name = self[image] = content_hash(image)
        return name

    def blobs(self) -> dict[bytes, bytes]:
        """The images that were asked for, by hash."""
        return {name: image for image, name in self.items()}


def pack_tokens(tokens: Tensor) -> bytes:
    """Int64 ``[L]``, on the CPU, as compressed bytes."""
    return pack_array(tokens.numpy(), _TOKENS)


def unpack_tokens(data: Any) -> Tensor:
    """The inverse of :func:`pack_tokens`. Raises ProtocolError: not such bytes."""
    return torch.from_numpy(unpack_array(data, _TOKENS))


def encode_prompt(prompt: Prompt, names: ImageNames) -> dict[str, Any]:
    """The prompt as plain values."""
    return {"tokens": pack_tokens(prompt.tokens), "images": [names[image] for image in prompt.images]}


def decode_prompt(fields: Mapping[str, Any], images: Blobs) -> Prompt:
    """The inverse of :func:`encode_prompt`; ``images`` by hash. Raises ProtocolError, KeyError or TypeError."""
    return Prompt(unpack_tokens(fields["tokens"]), tuple(images[name] for name in fields["images"]))
