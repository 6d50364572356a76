"""Rows and outputs as plain values; images are named by their hash, and tokens cross as compressed bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bepa_torchrl.scale.engine.engine_interface import EngineOutput, EngineRow
from bepa_torchrl.scale.wire.content import Blobs, pack_array, unpack_array
from bepa_torchrl.scale.wire.errors import ProtocolError
from bepa_torchrl.scale.wire.prompts import ImageNames, decode_prompt, encode_prompt, pack_tokens, unpack_tokens

_LOG_PROBS = "<f4"


def encode_rows(rows: Sequence[EngineRow]) -> tuple[list[dict[str, Any]], dict[bytes, bytes]]:
    """The rows, and their images by hash."""
    names = ImageNames()
    encoded = [
        encode_prompt(row.prompt, names)
        | {"key": list(row.key), "temperature": row.temperature, "max_tokens": row.max_tokens}
        for row in rows
    ]
    return encoded, names.blobs()


def decode_rows(encoded: Sequence[Mapping[str, Any]], images: Blobs) -> list[EngineRow]:
    """The inverse of :func:`encode_rows`. Raises ProtocolError: not such rows."""
    try:
        return [
            EngineRow(
                decode_prompt(row, images),
                tuple(int(part) for part in row["key"]),
                float(row["temperature"]),
                int(row["max_tokens"]),
            )
            for row in encoded
        ]
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"expected rows to sample: {type(error).__name__}: {error}") from error


def encode_outputs(outputs: Mapping[int, EngineOutput]) -> list[dict[str, Any]]:
    """Outputs by row."""
    return [
        {
            "row": row,
            "tokens": pack_tokens(output.tokens),
            "log_probs": pack_array(output.log_probs.numpy(), _LOG_PROBS),
            "prompt_tokens": output.prompt_tokens,
            "cached_tokens": output.cached_tokens,
        }
        for row, output in outputs.items()
    ]


def decode_outputs(encoded: Sequence[Mapping[str, Any]]) -> dict[int, EngineOutput]:
    """The inverse of :func:`encode_outputs`. Raises ProtocolError, KeyError or TypeError for something else."""
    return {
        int(output["row"]): EngineOutput(
            unpack_tokens(output["tokens"]),
            torch.from_numpy(unpack_array(output["log_probs"], _LOG_PROBS)),
            int(output["prompt_tokens"]),
            int(output["cached_tokens"]),
        )
        for output in encoded
    }
