"""Provider ``remote``: guest servers that are already running, ours or official ones, from a list of URLs.

A desktop leases one of them from its first reset until it is closed or a reset fails; if a call is under way then, in a
thread that was given up, until the end of that call. A server whose reset failed is leased again only if no other is
free. The kind of server is detected: only ours has ``/health``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import Any
from urllib.parse import parse_qs, urlsplit

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.guest_server.official_desktop import POLL, OfficialDesktop, speaks_ours
from osworld_gym.desktops.remote.lease import Lease, acquire
from osworld_gym.desktops.remote.reset_hook import Hook, leave_mark, mark_what_answers, require_no_mark
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import CHROME, SERVER, VLC
from osworld_gym.types import Action, CommandResult, Screenshot

LOG = logging.getLogger(__name__)
URLS = "OSWORLD_SERVER_URL"  # environment variable: URLs, separated by spaces or commas
PORTS = {CHROME: "chrome", VLC: "vlc"}
ASK = 10.0  # seconds for the server's first reply
_FAILED: dict[str, float] = {}  # URL of a server whose last reset by this process failed → monotonic time of that, in s


@dataclass(frozen=True, slots=True)
class Server:
    """One guest server. ``str()`` is its URL without the token.

    Args:
        host: address of the server.
        port: the TCP port of the guest server.
        token: its bearer token; empty: none.
        ports: port inside (9222 and 8080) → port of the host.
    """

    host: str
    port: int
    token: str
    ports: Mapping[int, int]

    def __str__(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Server:
        """Parses ``http://[TOKEN@]HOST[:PORT][?chrome=PORT&vlc=PORT]``; the default ports are 5000, 9222 and 8080.

        The token is all that precedes the last ``@``, as it is.

        Raises:
            ValueError: the URL has another form. The message does not have the token.
        """
        before, at, address = str(url).rpartition("@")
        scheme, _, token = before.partition("://")
        expected = f"a server: expected http://[TOKEN@]HOST[:PORT][?chrome=PORT&vlc=PORT], got {address!r}"
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError(
                f"a server: expected a token of ASCII characters without spaces, got another for {address!r}"
            )
        try:
            parts = urlsplit(f"{scheme}://{address}" if at else address)
            query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            ports = {port: int(query.get(name, port)) for port, name in PORTS.items()}
            number = SERVER if parts.port is None else parts.port
            host = parts.hostname or ""
            host.encode("idna")  # as a connection does
        except ValueError as error:  # a port that is no number, brackets that are open, a host with an empty part
            raise ValueError(f"{expected} ({error})") from error
        wrong = bool(set(query) - set(PORTS.values())) or not all(
            0 < one <= 65_535 for one in (number, *ports.values())
        )
        if parts.scheme != "http" or not host or " " in host or parts.path not in ("", "/") or parts.fragment or wrong:
            raise ValueError(expected)
        return cls(host, number, token, ports)


class RemoteDesktop(Desktop):
    """A desktop on one of the servers.

    Args:
        urls: the servers (:meth:`Server.parse`); None: those in ``OSWORLD_SERVER_URL``.
        reset_by: a command or URL that replaces a server's desktop by a new one
            (:class:`~osworld_gym.desktops.remote.reset_hook.Hook`).
        allow_dirty: without ``reset_by``: use the desktop as the last episode left it; it is never reset.
        width: screen width in pixels.
        height: screen height in pixels; another size is an error.
        ready: seconds for a server to answer after its reset.
        reset_deadline: seconds that ``reset_by`` may take.
        wait: seconds to wait for a server that is not in use.
        client_password: password of the account inside; setup steps give it to ``sudo`` as ``{CLIENT_PASSWORD}``.

    Raises:
        DesktopError: ``never_ready``: no servers are given.
        ValueError: a URL, a number or ``reset_by`` is wrong, or neither or both of ``reset_by`` and ``allow_dirty`` are
            given.
    """

    def __init__(
        self,
        urls: Sequence[str] | None = None,
        reset_by: str | None = None,
        allow_dirty: bool = False,
        width: int = 1920,
        height: int = 1080,
        ready: float = 300.0,
        reset_deadline: float = 300.0,
        wait: float = 60.0,
        client_password: str = Desktop.client_password,
    ) -> None:
        servers = listed(urls)
        if (reset_by is not None) == allow_dirty:
            wish = "got both" if allow_dirty else "without it no desktop would be pristine"
            raise ValueError(f"remote: expected reset_by='command or URL' or allow_dirty=True; {wish}")
        self._servers = {str(server): server for server in servers}
        _check_numbers(width, height, ready=ready, reset_deadline=reset_deadline, wait=wait)
        self._hook = Hook(reset_by, reset_deadline) if reset_by is not None else None
        self._size, self._ready, self._wait = (width, height), ready, wait
        self.reset_limit = wait + ready + (0.0 if self._hook is None else reset_deadline)
        self.client_password = client_password
        self._prepared = False
        self._lease: Lease | None = None
        self._inner: _Ours | _Official | None = None
        self._lock = threading.Lock()
        self._calls, self._closings = 0, 0  # calls under way, and how often this was closed
        self._left: list[Lease] = []  # leases that end with the calls under way

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._size

    def reset(self, seed: int) -> None:
        """See :meth:`Desktop.reset`.

        Raises:
            DesktopError: ``never_ready``, or ``setup_failed``: the hook did not create a new desktop.
        """
        prepared, self._prepared = self._prepared, False
        with self._call():
            if not (prepared and self._desktop.reseed(seed)):
                self._renew(seed)

    def prepare(self) -> None:
        """Leases a server and replaces its desktop, with the seed 0: the hook is called before the seed is known.

        An official server's desktop keeps it; ours gets the seed at the reset.
        """
        self._prepared = False
        with self._call():
            self._renew(0)
        self._prepared = True

    def _renew(self, seed: int) -> None:
        closings = self._closings
        lease = self._leased(closings)
        try:
            self._renew_on(self._servers[lease.url], seed, closings)
        except DesktopError as error:
            if not isinstance(error, _Closed):
                _FAILED[lease.url] = time.monotonic()
            self._give_back(lease)
            raise
        _FAILED.pop(lease.url, None)

    def _renew_on(self, server: Server, seed: int, closings: int) -> None:
        self._let_go()
        if self._hook is None:
            LOG.warning("%s is used as the last episode left it (allow_dirty)", server)
        else:
            old = GuestClient(server.host, server.port, server.token)
            mark_what_answers(old, ASK)
            old.close()
            self._require_open(closings)
            self._hook.call(str(server), seed)
            self._require_open(closings)
        desktop = connect(server, self._size, self._ready)
        desktop.client_password = self.client_password
        try:
            self._require_open(closings)
            if self._hook is not None:
                require_no_mark(desktop, self._hook.name)
                leave_mark(desktop)
            with self._lock:
                self._require_open(closings)
                self._inner = desktop
        except BaseException:
            desktop.close()
            raise

    def _leased(self, closings: int) -> Lease:
        """The lease, acquired if there is none. Raises DesktopError as :func:`acquire`, or ``died``: closed."""
        if (lease := self._lease) is None:
            lease = acquire(sorted(self._servers, key=lambda url: _FAILED.get(url, -inf)), self._wait)
            with self._lock:
                if self._closings == closings:
                    self._lease = lease
                else:
                    lease.release()
        self._require_open(closings)
        return lease

    def _require_open(self, closings: int) -> None:
        """Raises DesktopError (``died``) if this was closed since, by whoever gave the call up."""
        if self._closings != closings:
            raise _Closed(FailureReason.died, "closed while it was reset")

    def _give_back(self, lease: Lease) -> None:
        """Releases the lease after a reset that failed, unless :meth:`close` has it."""
        with self._lock:
            held = self._lease is lease
            if held:
                self._lease = None
        if held:
            lease.release()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A call that may reach the server: until its end, nobody else leases the server."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                ended = [] if self._calls else self._left
                self._left = self._left if self._calls else []
            for lease in ended:
                lease.release()

    @property
    def _desktop(self) -> _Ours | _Official:
        if self._inner is None:
            raise DesktopError(FailureReason.died, "no desktop is held; reset it first")
        return self._inner

    def screenshot(self) -> Screenshot:
        with self._call():
            return self._desktop.screenshot()

    def perform(self, actions: Sequence[Action]) -> None:
        with self._call():
            desktop = self._desktop
            before = desktop.cut_actions
            desktop.perform(actions)
            self.cut_actions += desktop.cut_actions - before

    def wait_still(self, deadline: float) -> None:
        with self._call():
            self._desktop.wait_still(deadline)

    def setup(self, step: Mapping[str, Any]) -> None:
        with self._call():
            self._desktop.setup(step)

    def read_file(self, path: str) -> bytes:
        with self._call():
            return self._desktop.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        with self._call():
            self._desktop.write_file(path, data)

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        with self._call():
            return self._desktop.run(command, shell=shell, timeout=timeout)

    def windows(self) -> list[dict[str, Any]]:
        """See :meth:`GuestDesktop.windows`. Privileged, for oracles."""
        with self._call():
            return self._desktop.windows()

    def popups(self) -> list[dict[str, Any]]:
        """See :meth:`GuestDesktop.popups`. Raises DesktopError on an official server, which does not list its menus."""
        with self._call():
            return self._desktop.popups()

    @property
    def server(self) -> tuple[str, str] | None:
        if self._lease is None:
            return None
        server = self._servers[self._lease.url]
        return str(server), server.token

    def forwarded(self, port: int) -> tuple[str, int] | None:
        if self._lease is None or port not in PORTS:
            return None
        server = self._servers[self._lease.url]
        return server.host, server.ports[port]

    def close(self) -> None:
        """See :meth:`Desktop.close`. A call under way in another thread keeps the lease until its end."""
        self._prepared = False
        with self._lock:
            self._closings += 1
            lease, self._lease = self._lease, None
            if lease is not None and self._calls:
                self._left.append(lease)
                lease = None
        self._let_go()
        if lease is not None:
            lease.release()

    def _let_go(self) -> None:
        with self._lock:
            inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()


class _Held:
    """Start and end of a desktop that another process owns: only connects and disconnects."""

    _client: GuestClient | None
    _unsettled: bool

    def hold(self, client: GuestClient) -> None:
        self._client, self._unsettled = client, True

    def reset(self, seed: int) -> None:
        """Does not reset the desktop; :meth:`RemoteDesktop.reset` does."""
        del seed
        self._unsettled = True

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class _Ours(_Held, GuestDesktop):
    """A desktop behind our guest server."""

    def reseed(self, seed: int) -> bool:
        """Applies a seed to a prepared desktop; False if it does not answer any more."""
        return self._reseed(seed)


class _Official(_Held, OfficialDesktop):
    """A desktop behind an official server."""

    def reseed(self, seed: int) -> bool:
        """Whether a prepared desktop still answers; its screen does not depend on the seed."""
        del seed
        return self._answers()


class _Closed(DesktopError):
    """The desktop was closed meanwhile."""


class _Refused(DesktopError):
    """An error that a retry cannot fix."""


def listed(urls: Sequence[str] | None) -> list[Server]:
    """The servers ``urls``; None: those in ``OSWORLD_SERVER_URL``.

    Raises:
        DesktopError: ``never_ready``: none is given.
        ValueError: a URL is wrong, or ``urls`` is one text.
    """
    named = os.environ.get(URLS, "").replace(",", " ").split() if urls is None else list(urls)
    if isinstance(urls, str):
        raise ValueError("urls: expected a list of URLs, got one text; fix: urls=['http://…']")
    if not named:
        message = f"no servers are named; fix: urls=[...], or export {URLS}=http://host:5000"
        raise DesktopError(FailureReason.never_ready, message)
    return [Server.parse(url) for url in named]


def _check_numbers(width: int, height: int, **seconds: float) -> None:
    """Raises ValueError unless the sides are positive integers, and the seconds numbers of at least 0 and finite."""
    if not all(isinstance(side, Integral) and side > 0 for side in (width, height)):
        raise ValueError(f"remote: width and height: expected integers > 0 (pixels), got {width!r}×{height!r}")
    for name, value in seconds.items():
        if not isinstance(value, Real) or not 0 <= value < inf:
            raise ValueError(f"remote: {name}: expected seconds, a finite number >= 0, got {value!r}")


def connect(server: Server, size: tuple[int, int], deadline: float) -> _Ours | _Official:
    """Waits until the server answers, and connects by its kind, ours or official.

    Args:
        server: the server to connect to.
        size: the expected screen size (width, height) in pixels.
        deadline: seconds to wait for an answer.

    Raises:
        DesktopError: ``never_ready``: no answer within ``deadline`` seconds, or a screen of another size.
    """
    client, end = GuestClient(server.host, server.port, server.token), time.monotonic() + deadline
    try:
        while True:
            try:
                ours, screen = _ask(server, client)
                break
            except _Refused:
                raise
            except DesktopError as error:
                if time.monotonic() >= end:
                    message = f"{server} did not answer within {deadline:g} s; last: {error}"
                    raise DesktopError(FailureReason.never_ready, message) from error
                time.sleep(POLL)  # a server that is not running yet has no event to wait for
        if screen != size:
            message = f"{server} has a screen of {screen[0]}×{screen[1]}; fix: width={screen[0]}, height={screen[1]}"
            raise DesktopError(FailureReason.never_ready, message)
    except DesktopError:
        client.close()
        raise
    desktop = _Ours(*size) if ours else _Official(*size)
    desktop.hold(client)
    return desktop


def _ask(server: Server, client: GuestClient) -> tuple[bool, tuple[int, int]]:
    """(whether the server is ours, its screen size (width, height) in pixels)."""
    ours = speaks_ours(client, ASK)
    reply = client.post("/screen_size", {}, timeout=ASK, again=True)
    if reply.status == 401:
        message = f"{server} requires another token; fix: {str(server).replace('//', '//TOKEN@')}"
        raise _Refused(FailureReason.never_ready, message)
    if not reply.ok:
        raise DesktopError(FailureReason.never_ready, f"/screen_size: status {reply.status}, {reply.message}")
    answer = reply.json()
    width, height = answer.get("width"), answer.get("height")
    if type(width) is not int or type(height) is not int:
        raise DesktopError(FailureReason.never_ready, f"/screen_size: expected two numbers, got {reply.body[:100]!r}")
    return ours, (width, height)


def screen_of(server: Server) -> tuple[int, int]:
    """Screen size (width, height) of a running server. Raises DesktopError (``never_ready``) if it does not answer."""
    client = GuestClient(server.host, server.port, server.token)
    try:
        return _ask(server, client)[1]
    except _Refused:
        raise
    except DesktopError as error:
        fix = f"start a server there (osworld-gym serve, or OSWorld's), or export {URLS}=http://HOST:PORT"
        raise DesktopError(FailureReason.never_ready, f"{server} does not answer ({error}); fix: {fix}") from error
    finally:
        client.close()


def describe(server: Server) -> tuple[str, bool]:
    """A one-line description of the server, and whether it can be used."""
    client, start = GuestClient(server.host, server.port, server.token), time.monotonic()
    try:
        ours, (width, height) = _ask(server, client)
    except DesktopError as error:
        return f"{server}: {error}", False
    finally:
        client.close()
    kind = "ours" if ours else "official"
    return f"{server}: {kind}, {width}×{height}, answered in {time.monotonic() - start:.2f} s", True
