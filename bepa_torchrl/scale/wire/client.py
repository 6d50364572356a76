"""WireClient: requests to a :class:`.server.WireServer` by httpx2, each with a deadline, from many threads."""

from __future__ import annotations

import secrets
import socket
import ssl
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import IO, Any

import httpx2

from bepa_torchrl.scale.wire.access import VERSION, VERSION_HEADER, Access, check_version, client_context
from bepa_torchrl.scale.wire.content import MAX_BODY, Blobs, KnownBlobs, content_hash, pack, unpack
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, ProtocolError, RunEndedError

SILENCE = 30.0  #: seconds without a byte, in addition to what a request itself waits for, until the server is gone
ANSWER_SECONDS = 120.0  #: for a whole answer that is not streamed, in addition to the same
_CONNECT_SECONDS = 10.0
_CHUNK = 1 << 20
#: reasons of OpenSSL when the other side answers a TLS hello with something else
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}


class WireClient:
    """Sends requests.

    Args:
        access: to the server.
        errors: exceptions by the kind of error that the server states; others are a ProtocolError.
        ca_option: the setting or option with the file of certificates, for errors.
        max_body: maximum bytes of a request and of an answer that are not streamed.
    """

    def __init__(
        self,
        access: Access,
        *,
        errors: Mapping[str, type[Exception]],
        ca_option: str,
        max_body: int = MAX_BODY,
    ) -> None:
        self.url, self._ca_option, self._max_body = access.url, ca_option, max_body
        self._errors: dict[str, type[Exception]] = {
            "ended": RunEndedError,
            "failed": BrokenConnectionError,
            "gone": LookupError,
            **errors,
        }
        self.instance: str | None = None  #: of the server's process that has answered last
        self._content = ""  #: what the server served at first; if it serves another, it refuses requests
        self._known = KnownBlobs()
        secure = access.url.startswith("https://")
        self._http = httpx2.Client(
            verify=client_context(access.ca) if secure else False,
            trust_env=False,  # no proxy, no other certificates
            headers={
                "authorization": f"Bearer {access.token.decode('latin-1')}",
                VERSION_HEADER: VERSION,
                "bepa-peer": secrets.token_hex(8),
                "accept-encoding": "identity",
            },
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0),
        )
        self.close = weakref.finalize(self, self._http.close)  #: ends the connections

    def ask(self, kind: str, fields: Mapping[str, Any], blobs: Blobs | None = None) -> dict[str, Any]:
        """The answer to one request; content that the server has is not sent again.

        Args:
            kind: the kind of the request.
            fields: of the request; its ``timeout``, if there is one, is how many seconds the server may wait.
            blobs: the content that it needs, by hash.

        Raises:
            ValueError, TypeError: the request is too long, or has a value that cannot be sent.
            BrokenConnectionError: no answer in time, or one that was cut off.
            ProtocolError: the server refuses the request, or cannot be understood or trusted.
            Exception: of ``errors``.
        """
        blobs, waits = blobs or {}, float(fields.get("timeout", 0.0))
        return self._known.ask(blobs, lambda new: self._ask(kind, fields, blobs, new, waits), self.url)

    def download(self, name: bytes, size: int, into: bytearray) -> None:
        """Appends content to ``into``, from where it ends, until it has ``size`` bytes and the hash ``name``.

        Raises:
            LookupError: the server does not have it any more.
            BrokenConnectionError: it was cut off; ``into`` has what came. Otherwise as :meth:`ask`.
        """
        with self._answer("GET", f"/blob/{name.hex()}?offset={len(into)}") as answer:
            for part in answer.iter_raw(_CHUNK):
                into += part
                if len(into) > size:
                    break
        if len(into) < size:
            raise BrokenConnectionError(f"{self.url} sent {len(into)} of {size} bytes")
        if len(into) > size or content_hash(into) != name:
            into.clear()
            raise BrokenConnectionError(f"content from {self.url} was changed on its way")

    def upload(self, name: bytes, size: int, data: IO[bytes]) -> None:
        """Sends ``size`` bytes, whose hash is ``name``, from where ``data`` is. Raises as :meth:`ask`."""

        def parts(left: int) -> Iterator[bytes]:
            while left:
                part = data.read(min(left, _CHUNK))
                if not part:
                    raise ValueError(f"a file became shorter while it was sent: {left} bytes are missing")
                left -= len(part)
                yield part

        with self._answer(
            "PUT", f"/blob/{name.hex()}", content=parts(size), headers={"content-length": str(size)}
        ) as answer:
            self._read(answer, monotonic() + ANSWER_SECONDS)

    def leave(self) -> None:
        """Tells a server that is watched that this client goes."""
        self._ask("watch", {"leaves": True}, {}, [], 0.0, raw=True)

    def watch(self, timeout: float) -> None:
        """Returns after ``timeout`` seconds. Raises RunEndedError at once when the server ends, else as :meth:`ask`."""
        self._ask("watch", {"timeout": timeout}, {}, [], timeout, raw=True)

    # ------------------------------------------------------------------------------------------------------------

    def _ask(
        self, kind: str, fields: Mapping[str, Any], blobs: Blobs, new: list[bytes], waits: float, *, raw: bool = False
    ) -> dict[str, Any]:
        body = pack(fields if raw else {"fields": fields, "needs": list(blobs), "blobs": new})
        if len(body) > self._max_body:
            raise ValueError(f"expected at most {self._max_body} bytes in a request, got {len(body)}")
        end = monotonic() + waits + ANSWER_SECONDS
        with self._answer("POST", f"/{kind}", content=body, waits=waits) as answer:
            return unpack(self._read(answer, end))

    @contextmanager
    def _answer(
        self, method: str, path: str, *, waits: float = 0.0, headers: dict[str, str] | None = None, content: Any = None
    ) -> Iterator[httpx2.Response]:
        """The answer, whose body is not read yet, unless it is an error."""
        timeout = httpx2.Timeout(SILENCE, connect=_CONNECT_SECONDS, read=SILENCE + waits)
        headers = (headers or {}) | {"bepa-content": self._content}
        try:
            with self._http.stream(
                method, self.url + path, content=content, headers=headers, timeout=timeout
            ) as answer:
                self._check(answer)
                yield answer
        except httpx2.TransportError as error:
            raise self._explained(error) from error
        except RuntimeError as error:  # closed by another thread
            if not self._http.is_closed:
                raise
            raise BrokenConnectionError("the connection was closed here") from error

    def _read(self, answer: httpx2.Response, end: float) -> bytes:
        body = bytearray()
        for part in answer.iter_raw(_CHUNK):
            body += part
            if len(body) > self._max_body:
                raise ProtocolError(f"expected at most {self._max_body} bytes in an answer of {self.url}, got more")
            if monotonic() > end:
                raise BrokenConnectionError(f"an answer of {self.url} took longer than {ANSWER_SECONDS:g} s")
        return bytes(body)

    def _check(self, answer: httpx2.Response) -> None:
        """Raises the error that an answer states."""
        version = answer.headers.get(VERSION_HEADER)
        if version is None and answer.status_code >= 500:  # a proxy, or a server that is overloaded
            raise BrokenConnectionError(f"no answer from {self.url}: status {answer.status_code}")
        check_version(version, self.url)
        self.instance = answer.headers.get("bepa-instance", "")
        if answer.status_code == 200:
            self._content = self._content or answer.headers.get("bepa-content", "")
            return
        try:
            stated = httpx2.Response(200, content=self._read(answer, monotonic() + ANSWER_SECONDS)).json()
            kind, message = str(stated["error"]), str(stated["message"])
        except (ValueError, KeyError, TypeError):
            kind, message = "refused", f"status {answer.status_code}"
        error = self._errors.get(kind, self._errors.get("refused", ProtocolError))
        raise error(message if error is RunEndedError else f"{self.url}: {message}")

    def _explained(self, error: httpx2.TransportError) -> Exception:
        """A ProtocolError if another attempt would fail, too; else a BrokenConnectionError."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ProtocolError(self._refused_certificate(cause.verify_message))
        if cause is not None and cause.reason in _NO_TLS:
            return ProtocolError(
                f"{self.url} does not speak TLS; use http:// there, or give its program a certificate and key"
            )
        if isinstance(error, httpx2.RemoteProtocolError) and self._speaks_tls():
            return ProtocolError(f"{self.url} speaks TLS; use https:// and {self._ca_option}")
        reason = " ".join(str(error).split()) or type(error).__name__
        return BrokenConnectionError(f"no answer from {self.url}: {reason}")

    def _refused_certificate(self, problem: str) -> str:
        fix = f"set {self._ca_option} to the certificate of the authority that has signed it"
        if "mismatch" in problem:
            fix = "connect to a name or address that it has, or make one for this"
        elif "expired" in problem or "not yet valid" in problem:
            fix = "make a new one, or correct this machine's clock"
        return f"the certificate of {self.url} is refused: {problem.rstrip('.')}; {fix}"

    def _speaks_tls(self) -> bool:
        url = httpx2.URL(self.url)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if url.scheme == "https":
            return False
        try:
            with (
                socket.create_connection((url.host, url.port or 80), _CONNECT_SECONDS) as plain,
                context.wrap_socket(plain),
            ):
                return True
        except OSError:
            return False
