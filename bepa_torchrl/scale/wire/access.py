"""Where a server is, and what a client must have to be let in: URL, token, certificate, version. Imports no HTTP."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bepa_torchrl.scale.wire.errors import ProtocolError
from osworld_gym import __version__

SCHEMA = 6  #: of everything that crosses; raised with every change that an older side cannot read
VERSION_HEADER = "bepa-version"  #: of each request and answer; this name must never change
VERSION = f"{SCHEMA}/{__version__}"
#: environment variables with the token, where no file is named: of ``cluster.listen``, and of ``bepa engine``
TOKEN_VARIABLE, ENGINE_TOKEN = "BEPA_CHANNEL_TOKEN", "BEPA_ENGINE_TOKEN"
MIN_TOKEN = 16  #: bytes
_MAKE = "make one by `openssl rand -hex 32 > FILE`, and use the same on both sides"


@dataclass(frozen=True, slots=True)
class Access:
    """How a client reaches a server; can be sent to another process.

    Args:
        url: ``http://HOST:PORT`` or ``https://HOST:PORT``.
        token: the shared secret.
        ca: certificates, in PEM, of which one must have signed the server's; None: those of this machine.
    """

    url: str
    token: bytes = field(repr=False)
    ca: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server's certificate, with its chain, and of its key, both PEM.

    Args:
        certificate: the file of the certificate.
        key: the file of its key.
        options: the settings or options with the files, for errors.
    """

    certificate: Path
    key: Path
    options: tuple[str, str] = field(default=("certificate", "key"), compare=False)


def read_token(
    path: Path | None, environment: Mapping[str, str] = os.environ, *, variable: str = TOKEN_VARIABLE
) -> bytes:
    """The token in a file, or in an environment variable if ``path`` is None; white space is stripped.

    Raises:
        ValueError: there is none, it is too short, or not ASCII, or the file cannot be read.
    """
    if path is not None:
        token, source = _read(path, f"{path}: expected a file with a token", _MAKE).strip(), str(path)
    else:
        token, source = environment.get(variable, "").encode().strip(), variable
    if not token:
        raise ValueError(f"expected a token in a file, or in {variable}; {source} has none; {_MAKE}")
    if len(token) < MIN_TOKEN:
        raise ValueError(f"{source}: expected a token of at least {MIN_TOKEN} bytes, got {len(token)}; {_MAKE}")
    if not all(32 <= byte < 127 for byte in token):
        raise ValueError(f"{source}: expected a token of printable ASCII characters in one line; {_MAKE}")
    return token


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT`` or ``[IPv6]:PORT``. Raises ValueError if it is not one."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"expected HOST:PORT, such as 10.0.0.1:7300, got {text!r}")
    return host, int(port)


def address_text(address: tuple[str, int]) -> str:
    """HOST:PORT, or [IPv6]:PORT."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_socket(address: tuple[str, int], option: str, *, backlog: int | None = None) -> socket.socket:
    """A socket that listens at the address. Raises OSError, which names the option, if it cannot be used here."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=backlog)
    except OSError as error:
        where = address_text(address)
        raise OSError(error.errno, f"cannot listen on {where} ({error.strerror}); set {option}") from error


def check_url(url: str, option: str) -> str:
    """The URL without a slash at its end. Raises ValueError, which names the option, for no ``http[s]://HOST:PORT``."""
    try:
        parts = urlsplit(url)
        named = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        named = None
    if not named or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(f"{option}: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    return url.rstrip("/")


def read_ca(path: Path | None, option: str) -> str | None:
    """The certificates in a file, in PEM; None without one.

    Raises:
        ValueError: there is no certificate in it, or it cannot be read.
    """
    if path is None:
        return None
    text = _read(path, f"{option}={path}: expected certificates in PEM").decode("ascii", errors="replace")
    try:
        client_context(text)
    except (ssl.SSLError, TypeError, ValueError) as error:
        raise ValueError(f"{option}={path}: expected certificates in PEM: {_reason(error)}") from error
    return text


def client_context(ca: str | None) -> ssl.SSLContext:
    """What a client requires of a server's certificate: signed by one of ``ca``, in time, and for its host."""
    return ssl.create_default_context(cadata=ca)


def read_tls(certificate: str | None, key: str | None, options: tuple[str, str]) -> Tls | None:
    """A server's certificate and key, of these settings; None without them.

    Raises:
        ValueError: one of both is missing, cannot be read, or they do not belong together.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing, other = options if certificate is None else reversed(options)
        raise ValueError(f"{other} requires {missing}, too: the files of the certificate and of its key")
    tls = Tls(Path(certificate).expanduser(), Path(key).expanduser(), options)
    check_tls(tls)
    return tls


def check_tls(tls: Tls) -> None:
    """Raises ValueError, which names the settings: the files cannot be read, or do not belong together."""
    for option, path in zip(tls.options, (tls.certificate, tls.key), strict=True):
        _read(path, f"{option}={path}: expected a file in PEM")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"{tls.options[0]}={tls.certificate}, {tls.options[1]}={tls.key}: expected a certificate and its key "
            f"without a password, in PEM: {_reason(error)}"
        ) from error


def _read(path: Path, expected: str, fix: str = "correct the path") -> bytes:
    """The content of a file that the user has named. Raises ValueError if it cannot be read."""
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"{expected}, it cannot be read ({error.strerror}); {fix}") from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).replace("_", " ").lower()


def plain_warning(address: tuple[str, int], tls: Tls | None, fix: str) -> str | None:
    """A line about a server without TLS that other machines reach; None if there is no reason for one."""
    host = address[0]
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if tls is not None or local:
        return None
    return (
        f"warning: {address_text(address)} is reached by other machines without TLS: who is between can read the "
        f"token and all content; {fix}, or use an address of this machine behind a tunnel"
    )


def check_version(theirs: str | None, where: str) -> None:
    """Raises ProtocolError, with both versions, unless the other side has this version of schema and package."""
    if theirs == VERSION:
        return
    if theirs is None:
        raise ProtocolError(f"{where} is no bepa program; correct the address")
    shown = ascii(theirs[:40])[1:-1].partition("/")
    raise ProtocolError(
        f"expected schema {SCHEMA} and version {__version__}, {where} has schema {shown[0]} and version "
        f"{shown[2] or 'unknown'}; install the same version of this package on both sides"
    )
