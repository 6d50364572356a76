"""EngineClient: requests to a ``bepa engine`` (:mod:`.server`). Imports neither vLLM nor torch."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import IO, Any
from urllib.parse import urlsplit

from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError

SCHEMA = 2  #: raised with every change that an older side cannot read
SILENCE = 30.0  #: seconds without a byte until the server counts as gone


class EngineUnreachableError(EngineError):
    """No server answers, or its answer was cut off."""


class EngineRefusedError(EngineError):
    """The server refuses a request; another attempt would be refused, too."""


_ERRORS: dict[str, type[Exception]] = {"sync": WeightSyncError, "start": EngineError, "row": ValueError}


class EngineClient:
    """Sends requests with a deadline.

    Args:
        url: ``http://HOST:PORT``, or ``https://`` of a proxy in front of it.
        token: the secret that the server requires.

    Raises:
        ValueError: no such URL.
    """

    def __init__(self, url: str, token: bytes) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"policy.engine.url: expected http://HOST:PORT, got {url!r}")
        secure = parts.scheme == "https"
        self.url, self._token = url, token
        self._connection = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port

    def state(self) -> dict[str, Any]:
        """The server's ``schema``, ``instance``, ``vllm`` (its version) and ``weights``.

        Raises:
            EngineUnreachableError: it does not answer.
            EngineRefusedError: another token or another schema.
        """
        state = self.ask("GET", "/state")
        if state.get("schema") != SCHEMA:
            raise EngineRefusedError(
                f"{self.url} has schema {state.get('schema')}, expected {SCHEMA}; install the same version of "
                "bepa_torchrl on both sides"
            )
        return state

    def ask(self, method: str, path: str, body: bytes | IO[bytes] | None = None, *, size: int = 0) -> dict[str, Any]:
        """The answer to one request.

        Args:
            method, path: of the request.
            body: its content; a file has ``size`` bytes.
            size: of a file.

        Raises:
            EngineUnreachableError: no answer, no byte for :data:`SILENCE`, or an answer that was cut off.
            EngineRefusedError, WeightSyncError, EngineError, ValueError: what the server reports.
        """
        headers = {"Authorization": f"Bearer {self._token.decode('latin-1')}"}
        if body is not None:
            headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else size)
        try:
            with closing(self._connection(self._host, self._port, timeout=SILENCE)) as connection:
                connection.request(method, path, body, headers)
                answer = dict(json.loads(connection.getresponse().read()))
        except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise EngineUnreachableError(f"no answer from {self.url}: {reason}") from error
        if "error" in answer:
            raise _ERRORS.get(answer["error"], EngineRefusedError)(f"{self.url}: {answer.get('message')}")
        return answer
