"""The bodies of the requests and answers between a trainer and a ``bepa engine``.

    rows      length of a JSON head (8 bytes); the head; each row's token ids (int32, little endian); new images
    answers   JSON, after any number of spaces, which are sent while the engine works

Images are named by their SHA-256; one that the server has is not sent again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.scale.engine.engine_interface import EngineOutput, EngineRow
from bepa_torchrl.scale.engine.http_engine.client import SCHEMA

_TOKENS = np.dtype("<i4")


def image_name(png: bytes) -> str:
    """The SHA-256 of an image's bytes, hexadecimal."""
    return hashlib.sha256(png).hexdigest()


def encode_rows(weights: str, rows: Sequence[EngineRow], known: set[str]) -> bytes:
    """The body of a request for responses.

    Args:
        weights: name of the weights that must be used.
        rows: what to sample.
        known: names of images that the server has.
    """
    new: dict[str, bytes] = {}
    listed, tokens = [], []
    for row in rows:
        names = [image_name(png) for png in row.prompt.images]
        new |= {name: png for name, png in zip(names, row.prompt.images, strict=True) if name not in known}
        tokens.append(row.prompt.tokens.numpy().astype(_TOKENS).tobytes())
        listed.append(
            {
                "tokens": len(row.prompt.tokens),
                "images": names,
                "key": list(row.key),
                "temperature": row.temperature,
                "max_tokens": row.max_tokens,
            }
        )
    sizes = [[name, len(png)] for name, png in new.items()]
    head = json.dumps({"weights": weights, "rows": listed, "images": sizes}).encode()
    return b"".join([len(head).to_bytes(8, "big"), head, *tokens, *new.values()])


def decode_rows(body: bytes) -> tuple[str, list[dict[str, Any]], list[torch.Tensor], dict[str, bytes]]:
    """Name of the weights, the rows of the head, each row's token ids (int64), and the new images by name.

    Raises:
        ValueError: not what :func:`encode_rows` makes.
    """
    try:
        first = 8 + int.from_bytes(body[:8], "big")
        head = json.loads(body[8:first])
        tokens = []
        for row in head["rows"]:
            end = first + _TOKENS.itemsize * int(row["tokens"])
            ids = np.frombuffer(body[first:end], dtype=_TOKENS).astype(np.int64)
            if len(ids) != row["tokens"]:
                raise ValueError("it ends too early")
            tokens.append(torch.from_numpy(ids))
            first = end
        images = {}
        for name, size in head["images"]:
            images[name] = body[first : first + size]
            if image_name(images[name]) != name:
                raise ValueError("an image does not have its checksum")
            first += size
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no rows of schema {SCHEMA}: {error}") from error
    return str(head["weights"]), head["rows"], tokens, images


def build_rows(
    listed: Sequence[Mapping[str, Any]], tokens: Sequence[torch.Tensor], images: Mapping[str, bytes]
) -> list[EngineRow]:
    """The rows of a request, whose images are all there. Raises ValueError, KeyError or TypeError for a faulty one."""
    return [
        EngineRow(
            Prompt(ids, tuple(images[name] for name in row["images"])),
            tuple(int(part) for part in row["key"]),
            float(row["temperature"]),
            int(row["max_tokens"]),
        )
        for row, ids in zip(listed, tokens, strict=True)
    ]


def encode_outputs(outputs: Mapping[int, EngineOutput]) -> list[dict[str, Any]]:
    """Outputs by row, in JSON's types; a float32 is exact as a JSON number."""
    return [
        {
            "row": row,
            "tokens": output.tokens.tolist(),
            "log_probs": output.log_probs.tolist(),
            "prompt_tokens": output.prompt_tokens,
            "cached_tokens": output.cached_tokens,
        }
        for row, output in outputs.items()
    ]


def decode_outputs(encoded: Sequence[Mapping[str, Any]]) -> dict[int, EngineOutput]:
    """The outputs of :func:`encode_outputs`. Raises ValueError, KeyError or TypeError for something else."""
    return {
        int(output["row"]): EngineOutput(
            torch.tensor(output["tokens"], dtype=torch.int64),
            torch.tensor(output["log_probs"], dtype=torch.float32),
            int(output["prompt_tokens"]),
            int(output["cached_tokens"]),
        )
        for output in encoded
    }
