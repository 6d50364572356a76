"""A message as bytes: the length of a JSON header, the header, and binary parts.

    uint32 n | n bytes of JSON: {"kind", "number", "fields", "blobs": [length, ...]} | the blobs

Integers are big-endian. Nothing is evaluated: unknown keys, other types and lengths that do not add up are refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bepa_torchrl.scale.rollouts.channel.errors import ProtocolError

#: version of everything that crosses; the two sides must have the same one
SCHEMA = 4
_LENGTH = struct.Struct(">I")
_TYPES: Mapping[str, type] = {"kind": str, "number": int, "fields": dict, "blobs": list}


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or the reply to it.

    Args:
        kind: name of the request; ``ok`` or ``error`` for a reply.
        number: of the request, unique in its connection; a reply has that of its request.
        fields: JSON-compatible values.
        blobs: binary parts.
    """

    kind: str
    number: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    blobs: Sequence[bytes] = ()


def pack(message: Message) -> list[bytes]:
    """The message's bytes, in parts, so that large blobs are not copied.

    Raises:
        ValueError, TypeError: a field is not JSON-compatible, or not finite.
    """
    content = {
        "kind": message.kind,
        "number": message.number,
        "fields": message.fields,
        "blobs": [len(blob) for blob in message.blobs],
    }
    header = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return [_LENGTH.pack(len(header)), header, *message.blobs]


def unpack(body: bytes | bytearray) -> Message:
    """The inverse of :func:`pack`. Raises ProtocolError: not such bytes."""
    view = memoryview(body)
    if len(view) < _LENGTH.size:
        raise ProtocolError(f"expected a message, got {len(view)} bytes")
    start = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    if start > len(view):
        raise ProtocolError(f"expected a header of {start - _LENGTH.size} bytes, got {len(view) - _LENGTH.size}")
    header = _header(bytes(view[_LENGTH.size : start]))
    lengths = header["blobs"]
    if not all(type(length) is int and length >= 0 for length in lengths) or start + sum(lengths) != len(view):
        raise ProtocolError(f"expected blobs of {len(view) - start} bytes in all, got the lengths {lengths[:10]}")
    blobs = []
    for length in lengths:
        blobs.append(bytes(view[start : start + length]))
        start += length
    return Message(header["kind"], header["number"], header["fields"], tuple(blobs))


def _header(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"expected a message's header in JSON: {error}") from error
    if not isinstance(header, dict) or header.keys() != _TYPES.keys():
        raise ProtocolError(f"expected a header with the keys {', '.join(_TYPES)}, got {str(header)[:200]}")
    for key, kind in _TYPES.items():
        if type(header[key]) is not kind:
            raise ProtocolError(f"expected {key} as {kind.__name__}, got {str(header[key])[:200]}")
    return header
