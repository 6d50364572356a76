"""A warm pool: resets desktops in advance, on separate threads, so that the next episode starts at once.

Works with any provider: an episode uses a :class:`PooledDesktop`, whose ``reset(seed)`` returns the used desktop to the
pool, takes a prepared one and applies the seed to it. For a provider without :meth:`Desktop.prepare` the pool only
saves the creation of the object.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Action, CommandResult, Screenshot

logger = logging.getLogger(__name__)

BACK_OFF = (0.5, 8.0)  # seconds to wait after a failed start: the first wait, doubled each time, and the longest
CLOSING = 10.0  # seconds that close() waits for running starts


class WarmPool:
    """Keeps ``ahead`` desktops ready in addition to those in use.

    Args:
        make: creates one desktop. Called once here, then on the pool's threads.
        ahead: number of desktops kept ready.
        threads: largest number of simultaneous starts; the provider's admission control may allow fewer.
        deadline: seconds that a reset waits for a ready desktop, besides :attr:`Desktop.reset_limit`.

    Raises:
        DesktopError: the first desktop cannot be created.
        ValueError: an argument is out of range, or the desktops are not ``blocking``, so that a pool would be useless.
    """

    def __init__(self, make: Callable[[], Desktop], ahead: int, *, threads: int = 4, deadline: float = 300.0) -> None:
        if ahead < 1 or threads < 1 or deadline <= 0:
            raise ValueError(
                f"WarmPool: expected ahead, threads >= 1 and deadline > 0 s, got {ahead}, {threads}, {deadline}"
            )
        self._make, self._ahead = make, ahead
        first = make()
        if not first.blocking:
            first.close()
            raise ValueError("a desktop within this process (the simulated one) needs no warm pool; fix: warm=0")
        self.screen_size, self.has_shell = first.screen_size, first.has_shell
        self.client_password, self.unused_keys = first.client_password, first.unused_keys
        self.reset_limit, self._deadline = first.reset_limit, deadline + first.reset_limit
        self.failures: Counter[FailureReason] = Counter()  #: failed starts, by reason
        self._last: DesktopError | None = None
        self._streak = 0  # failed starts in a row
        self._changed = threading.Condition()
        self._ready: deque[Desktop] = deque()
        self._used: deque[Desktop] = deque([first])  # to be prepared again
        self._preparing: list[Desktop] = []
        self._starting, self._waiting, self._closed = 0, 0, False
        self._threads = [threading.Thread(target=self._warm, name=f"warm-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def desktop(self) -> PooledDesktop:
        """Creates a desktop of this pool, which takes a prepared desktop at its first reset."""
        return PooledDesktop(self)

    @property
    def ready(self) -> int:
        """Number of desktops that are ready now."""
        return len(self._ready)

    def exchange(self, used: Desktop | None, given_up: threading.Event) -> Desktop:
        """Returns a used desktop (or None) to the pool and waits for a ready one, until ``given_up`` is set.

        Raises:
            DesktopError: ``never_ready`` at the deadline, or if the pool is closed or ``given_up`` is set.
        """
        until = monotonic() + self._deadline
        spare: Desktop | None = None
        try:
            with self._changed:
                self._waiting += 1
                spare = self._keep(used)
                try:
                    self._changed.notify_all()
                    while not self._ready and not self._closed and not given_up.is_set() and monotonic() < until:
                        self._changed.wait(until - monotonic())
                    if not self._ready or self._closed or given_up.is_set():
                        raise self._none(given_up)
                    return self._ready.popleft()
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()
        finally:
            if spare is not None:
                spare.close()  # after the lock: it may take seconds, in which the others need the pool

    def discard(self, used: Desktop) -> None:
        """Closes a desktop that must not be used again; the pool starts another one."""
        used.close()
        self.wake()

    def wake(self) -> None:
        """Wakes all waiting threads to check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Closes every desktop that is not in use, and those that are still being started."""
        with self._changed:
            self._closed = True
            idle = [*self._ready, *self._used, *self._preparing]
            self._ready.clear()
            self._used.clear()
            self._changed.notify_all()
        for desktop in idle:
            desktop.close()
        until = monotonic() + CLOSING
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    def _keep(self, used: Desktop | None) -> Desktop | None:
        """Keeps a used desktop if another start is needed; otherwise returns it, to be closed."""
        if used is None or self._closed or self._to_start() <= len(self._used):
            return used
        self._used.append(used)
        return None

    def _to_start(self) -> int:
        """Number of starts that are needed but not yet running."""
        return self._ahead + self._waiting - len(self._ready) - self._starting

    def _none(self, given_up: threading.Event) -> DesktopError:
        if self._closed or given_up.is_set():
            return DesktopError(FailureReason.never_ready, "closed while waiting for a warm desktop")
        last = f"; the last failure: {self._last}" if self._last is not None else ""
        message = f"no warm desktop within {self._deadline:g} s, {self._starting} are starting{last}"
        return DesktopError(FailureReason.never_ready, message)

    def _warm(self) -> None:
        """The loop of one thread: waits until a desktop is needed, prepares it, adds it to the ready ones."""
        while (desktop := self._next()) is not None:
            started = self._prepare(desktop)
            with self._changed:
                self._starting -= 1
                if started is not None and not self._closed:
                    self._ready.append(started)
                    started = None
                self._changed.notify_all()
            if started is not None:
                started.close()

    def _next(self) -> Desktop | Callable[[], Desktop] | None:
        """The next desktop to start, a used one or a function that creates one; None if the pool is closed."""
        with self._changed:
            while not self._closed:
                if self._to_start() > 0:
                    pause = min(BACK_OFF[0] * 2 ** (self._streak - 1), BACK_OFF[1]) if self._streak else 0.0
                    self._starting += 1
                    chosen = self._used.popleft() if self._used else self._make
                    until = monotonic() + pause
                    while not self._closed and (left := until - monotonic()) > 0:
                        self._changed.wait(left)
                    return chosen
                self._changed.wait()
        return None

    def _prepare(self, chosen: Desktop | Callable[[], Desktop]) -> Desktop | None:
        """Prepares a desktop and returns it; closes it and returns None on failure."""
        desktop = chosen if isinstance(chosen, Desktop) else None
        try:
            if desktop is None:
                assert not isinstance(chosen, Desktop)
                desktop = chosen()
            with self._changed:
                self._preparing.append(desktop)  # from here on close() ends it
                if self._closed:
                    raise DesktopError(FailureReason.never_ready, "the pool was closed")
            desktop.prepare()
        except DesktopError as error:
            self._failed(error)
        except Exception as error:  # a provider violated its contract: this thread must go on
            logger.exception("a desktop raised an exception other than DesktopError while it was prepared")
            self._failed(DesktopError(FailureReason.died, f"{type(error).__name__}: {error}"))
        else:
            with self._changed:
                self._streak = 0
            return desktop
        finally:
            with self._changed:
                if desktop is not None and desktop in self._preparing:
                    self._preparing.remove(desktop)
        if desktop is not None:
            desktop.close()
        return None

    def _failed(self, error: DesktopError) -> None:
        if self._closed:
            return  # close() has ended it
        logger.warning("a warm desktop could not be started: %s", error)
        with self._changed:
            self.failures[error.reason] += 1
            self._last, self._streak = error, self._streak + 1


class PooledDesktop(Desktop):
    """A desktop of a :class:`WarmPool`: every reset exchanges the underlying desktop."""

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool
        self._inner: Desktop | None = None
        self._given_up = threading.Event()
        self.has_shell, self.client_password, self.unused_keys = pool.has_shell, pool.client_password, pool.unused_keys
        self.reset_limit = pool.reset_limit
        self.cut_actions = 0

    @property
    def inner(self) -> Desktop:
        """The provider's desktop that is in use until the next reset.

        Raises:
            DesktopError: ``died``: there is none.
        """
        if self._inner is None:
            raise DesktopError(FailureReason.died, "no desktop is running; reset it first")
        return self._inner

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._pool.screen_size

    def reset(self, seed: int) -> None:
        self._given_up.clear()
        used, self._inner = self._inner, None
        fresh = self._inner = self._pool.exchange(used, self._given_up)
        try:
            fresh.reset(seed)
            if self._given_up.is_set():  # close() was called during the reset and may have missed processes it started
                raise DesktopError(FailureReason.never_ready, "closed while it was being reset")
        except BaseException:
            self._inner = None
            self._pool.discard(fresh)
            raise

    def screenshot(self) -> Screenshot:
        return self.inner.screenshot()

    def perform(self, actions: Sequence[Action]) -> None:
        before = self.inner.cut_actions
        self.inner.perform(actions)
        self.cut_actions += self.inner.cut_actions - before

    def wait_still(self, deadline: float) -> None:
        self.inner.wait_still(deadline)

    def setup(self, step: Mapping[str, Any]) -> None:
        self.inner.setup(step)

    def read_file(self, path: str) -> bytes:
        return self.inner.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        self.inner.write_file(path, data)

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        return self.inner.run(command, shell=shell, timeout=timeout)

    @property
    def server(self) -> tuple[str, str] | None:
        return None if self._inner is None else self._inner.server

    def forwarded(self, port: int) -> tuple[str, int] | None:
        return None if self._inner is None else self._inner.forwarded(port)

    def close(self) -> None:
        self._given_up.set()
        self._pool.wake()
        inner, self._inner = self._inner, None
        if inner is not None:
            self._pool.discard(inner)
