"""The start of a connection: both sides show their version and prove that they know the token, without sending it.

    both:     magic, schema (uint16), 32 random bytes
    both:     length (uint8) and text of the package's version
    rollouts: HMAC-SHA256(token, "rollouts" + both hellos, each with its version)
    trainer:  one byte, 1 if that is right, and HMAC-SHA256(token, "trainer" + both hellos, each with its version)

Every later frame is authenticated by a key that depends on the token and both sides' random bytes. The content is not
encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from bepa_torchrl.scale.rollouts.channel.errors import BrokenConnectionError, ProtocolError
from bepa_torchrl.scale.rollouts.channel.messages import SCHEMA
from osworld_gym import __version__

#: environment variables with the token, where no file is named: of the channel, and of ``bepa engine``
TOKEN_VARIABLE, ENGINE_TOKEN = "BEPA_CHANNEL_TOKEN", "BEPA_ENGINE_TOKEN"
MIN_TOKEN = 16  #: bytes
_MAGIC = b"BEPA-CHANNEL"
_HELLO = struct.Struct(f">{len(_MAGIC)}sH32s")  # its format must never change
_PROOF = 32
_SAME_VERSION = "install the same version of this package on both sides"
_MAKE = "make one by `openssl rand -hex 32 > FILE`, and use the same on both sides"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys, 32 bytes each, that authenticate what one side of a connection sends and receives."""

    send: bytes
    receive: bytes


def read_token(
    path: Path | None, environment: Mapping[str, str] = os.environ, *, variable: str = TOKEN_VARIABLE
) -> bytes:
    """The token in a file, or in an environment variable if ``path`` is None; white space is stripped.

    Raises:
        ValueError: there is none, or it is too short. OSError: the file cannot be read.
    """
    if path is not None:
        token, source = path.expanduser().read_bytes().strip(), str(path)
    else:
        token, source = environment.get(variable, "").encode().strip(), variable
    if not token:
        raise ValueError(f"expected a token in a file, or in {variable}; {source} has none; {_MAKE}")
    if len(token) < MIN_TOKEN:
        raise ValueError(f"{source}: expected a token of at least {MIN_TOKEN} bytes, got {len(token)}; {_MAKE}")
    return token


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT`` or ``[IPv6]:PORT``. Raises ValueError if it is not one."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"expected HOST:PORT, such as 10.0.0.1:7300, got {text!r}")
    return host, int(port)


def greet_as_trainer(
    sock: socket.socket, token: bytes, *, timeout: float, schema: int = SCHEMA, version: str = __version__
) -> Keys:
    """The handshake of the side that listens.

    Args:
        sock: a connected socket.
        token: the shared secret.
        timeout: seconds for the whole handshake.
        schema: of this side.
        version: of this side's package, at most 255 bytes.

    Raises:
        ProtocolError: another schema or version, another token, or not a rollout cluster.
        BrokenConnectionError: the connection ended, or no answer in time.
    """
    end = monotonic() + timeout
    hellos = _exchange(sock, schema, version, end, first=True)
    proof = _read(sock, _PROOF, end)
    if not hmac.compare_digest(proof, _sign(token, b"rollouts", hellos)):
        _send(sock, bytes(1 + _PROOF))
        raise ProtocolError("a wrong token")
    _send(sock, b"\1" + _sign(token, b"trainer", hellos))
    return Keys(_sign(token, b"trainer's frames", hellos), _sign(token, b"rollouts' frames", hellos))


def greet_as_rollouts(
    sock: socket.socket, token: bytes, *, timeout: float, schema: int = SCHEMA, version: str = __version__
) -> Keys:
    """The handshake of the side that connects; arguments and errors as of :func:`greet_as_trainer`."""
    end = monotonic() + timeout
    hellos = _exchange(sock, schema, version, end, first=False)
    _send(sock, _sign(token, b"rollouts", hellos))
    answer = _read(sock, 1 + _PROOF, end)
    if answer[:1] != b"\1":
        raise ProtocolError("the trainer refuses the token; use the same one on both sides")
    if not hmac.compare_digest(answer[1:], _sign(token, b"trainer", hellos)):
        raise ProtocolError("the other side does not know the token: it is not the trainer; correct the address")
    return Keys(_sign(token, b"rollouts' frames", hellos), _sign(token, b"trainer's frames", hellos))


def _exchange(sock: socket.socket, schema: int, version: str, end: float, *, first: bool) -> bytes:
    """Sends this side's hello and version and reads the other's; returns all of it, the trainer's first."""
    own = _HELLO.pack(_MAGIC, schema, secrets.token_bytes(32))
    _send(sock, own)
    other = _read(sock, _HELLO.size, end)
    magic, theirs, _ = _HELLO.unpack(other)
    if magic != _MAGIC:
        raise ProtocolError(f"the other side is no bepa program: it began with {magic!r}; correct the address")
    if theirs != schema:
        raise ProtocolError(
            f"expected version {schema} of the channel's schema, the other side has {theirs}; {_SAME_VERSION}"
        )
    text = version.encode()
    own += bytes([len(text)]) + text
    _send(sock, own[_HELLO.size :])
    length = _read(sock, 1, end)
    text = _read(sock, length[0], end)
    if text != version.encode():
        raise ProtocolError(
            f"expected version {version} of this package, the other side has {_shown(text)}; {_SAME_VERSION}"
        )
    other += length + text
    return own + other if first else other + own


def _shown(text: bytes) -> str:
    """What another side calls its version, harmless in a log."""
    return ascii(text.decode(errors="replace"))[1:-1]


def _sign(token: bytes, purpose: bytes, hellos: bytes) -> bytes:
    return hmac.new(token, purpose + b"\0" + hellos, hashlib.sha256).digest()


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError as error:
        raise BrokenConnectionError(f"the connection ended in the handshake: {error}") from error


def _read(sock: socket.socket, count: int, end: float) -> bytes:
    """Exactly ``count`` bytes, until the monotonic time ``end``."""
    data = b""
    try:
        while len(data) < count:
            sock.settimeout(max(0.001, end - monotonic()))
            part = sock.recv(count - len(data))
            if not part:
                raise BrokenConnectionError(
                    f"the connection ended in the handshake, after {len(data)} of {count} bytes"
                )
            data += part
    except BrokenConnectionError:
        raise
    except OSError as error:
        raise BrokenConnectionError(f"no answer in the handshake: {error}") from error
    return data
