"""Cache of the tasks' files on this machine, shared and read-only, in the layout of OSWorld's cache.

``{root}/{task id}/{uuid5 of the URL}_{name}`` is a file that a setup step downloads, ``{root}/{task id}/{dest}`` an
evaluator's gold file; where that was fetched from another URL, which the task had before, it is named as the former. A
cache that OSWorld filled can be read (``OSWORLD_ROOT/cache``, or as the root). A download is written to a temporary
file and moved into place when complete, so that no reader sees a partial file; its SHA-256 and URL are stored under
``{root}/.sums``, and the SHA-256 is checked when a process first reads the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from typing import IO, ClassVar

import requests

from osworld_gym.atomic import replaced_file, write_text
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.folders import cache_folder, osworld_root

TRIES = 3  # of one download
PATIENCE = (10.0, 60.0)  # seconds to connect, and between received bytes
WHOLE = 600.0  # seconds for one file, all tries together
LOCK = 900.0  # seconds that another process may take to fetch the same file
POLL = 0.05  # seconds between attempts to take a lock
CHUNK = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class TaskFile:
    """One file of a task: its URL, and its name in the cache (below the task's folder)."""

    task_id: str
    url: str
    name: str

    @property
    def relative_path(self) -> PurePosixPath:
        """Path relative to a cache's root."""
        return PurePosixPath(self.task_id) / self.name


def setup_file(task_id: str, url: str, path: str) -> TaskFile:
    """The file that a step ``download`` writes to ``path`` inside the desktop, with OSWorld's name in the cache."""
    return TaskFile(task_id, url, _name_by_url(url, path))


def _name_by_url(url: str, path: str) -> str:
    return f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(path).name}"


def gold_file(task_id: str, url: str, dest: str) -> TaskFile:
    """The gold file of a getter ``cloud_file``, with OSWorld's name in the cache."""
    return TaskFile(task_id, url, dest)


class FileCache:
    """The cache. Safe for concurrent threads and processes, also through several instances with one root.

    Args:
        root: the cache's folder; None: the package's cache folder (``OSWORLD_GYM_HOME``).
        offline: True: never use the network; None: True if ``OSWORLD_GYM_OFFLINE`` is 1.
        also: further caches that are read and never written; None: ``OSWORLD_ROOT/cache``, if set.
    """

    _checked: ClassVar[set[tuple[Path, int, int]]] = set()  #: (path, bytes, mtime in ns) of checked files

    def __init__(
        self, root: Path | None = None, *, offline: bool | None = None, also: tuple[Path, ...] | None = None
    ) -> None:
        self.root = root or cache_folder("files")
        self.offline = os.environ.get("OSWORLD_GYM_OFFLINE") == "1" if offline is None else offline
        checkout = osworld_root()
        self._also = also if also is not None else ((checkout / "cache",) if checkout else ())

    def find(self, task_file: TaskFile) -> Path | None:
        """The file's path in one of the caches, or None.

        Raises:
            TaskError: the file changed since it was fetched, or its name is a path outside the cache.
        """
        for root in (self.root, *self._also):
            placed = self._placed(task_file) if root == self.root else task_file
            path = root / placed.relative_path
            if not path.resolve().is_relative_to(root.resolve()):
                raise TaskError(
                    f"task {task_file.task_id!r}: the file name {task_file.name!r} is a path outside the cache"
                )
            if path.is_file():
                self._check(root, placed, path)
                return path
        return None

    def get(self, task_file: TaskFile) -> Path:
        """The file's path, downloaded first if it is in no cache. The file must not be modified.

        Raises:
            TaskError: it is missing and this cache is offline; the message states where to put it.
            DesktopError: ``setup_failed`` when it could not be fetched, or another process locked it for too long.
        """
        path = self.find(task_file)
        if path is not None:
            return path
        if self.offline:
            target = self.root / self._placed(task_file).relative_path
            raise TaskError(
                f"task {task_file.task_id!r} requires {task_file.url}, and this cache is offline; fix: fetch it to "
                f"{target}, or run 'osworld-gym tasks fetch' where there is a network"
            )
        with self._lock(task_file):
            path = self.find(task_file)
            return path if path is not None else self._fetch(self._placed(task_file))

    def read(self, task_file: TaskFile) -> bytes:
        """The file's bytes; raises as :meth:`get`."""
        return self.get(task_file).read_bytes()

    def _fetch(self, task_file: TaskFile) -> Path:
        target = self.root / task_file.relative_path
        target.parent.mkdir(parents=True, exist_ok=True)
        problem, end = "", time.monotonic() + WHOLE
        for _ in range(TRIES):
            try:
                with replaced_file(target, mode=0o444) as part:
                    self._note(task_file, _download(task_file.url, part, end))
                return target
            except OSError as error:  # those of requests, too
                problem = f"{type(error).__name__}: {error}"
            if time.monotonic() >= end:
                break
        message = f"{task_file.url} could not be fetched ({problem}); fix: put it at {target}"
        raise DesktopError(FailureReason.setup_failed, message)

    def _sums(self, task_file: TaskFile) -> Path:
        return self.root / ".sums" / task_file.task_id / f"{task_file.name}.sha256"

    def _note(self, task_file: TaskFile, digest: str) -> None:
        write_text(self._sums(task_file), f"{digest}\n{task_file.url}\n")

    def _noted(self, task_file: TaskFile) -> list[str]:
        """The SHA-256 of a file that was fetched, and its URL, which older caches lack; nothing for other files."""
        try:
            return self._sums(task_file).read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _placed(self, task_file: TaskFile) -> TaskFile:
        """The file by the name that it has in the own cache: by its URL, if the other name is of another URL's file."""
        if self._noted(task_file)[1:] in ([], [task_file.url]):
            return task_file
        return TaskFile(task_file.task_id, task_file.url, _name_by_url(task_file.url, task_file.name))

    def _check(self, root: Path, task_file: TaskFile, path: Path) -> None:
        """Compares with the stored SHA-256, once per process, size and mtime; a file that a user put there has none."""
        stat = path.stat()
        key = (path, stat.st_size, stat.st_mtime_ns)
        if root != self.root or key in self._checked or not (noted := self._noted(task_file)):
            return
        if noted[0] != (actual := _sha256(path)):
            raise TaskError(
                f"{path} differs from what was fetched (sha256 {actual[:16]}…, recorded {noted[0][:16]}…); fix: delete "
                f"it, or delete {self._sums(task_file)} if the change is intended"
            )
        self._checked.add(key)

    @contextmanager
    def _lock(self, task_file: TaskFile) -> Iterator[None]:
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(str(task_file.relative_path).encode()).hexdigest()[:32]
        end = time.monotonic() + LOCK
        with open(folder / name, "w", encoding="ascii") as file:
            while not _locked(file.fileno()):
                if time.monotonic() >= end:
                    message = f"another process has locked {task_file.relative_path} for {LOCK:g} s"
                    raise DesktopError(FailureReason.setup_failed, message)
                time.sleep(POLL)  # flock has no timeout
            yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _download(url: str, part: IO[bytes], end: float) -> str:
    """Writes the response's body; returns its SHA-256.

    Another thread receives it, since ``requests`` limits only the time between two received bytes.

    Raises:
        OSError: the request failed, its length is not ``Content-Length``, or it was not whole at the monotonic time
            ``end``.
    """
    download = _Download(url, part)
    threading.Thread(target=download.run, name="download", daemon=True).start()
    try:
        outcome = download.outcome.get(timeout=max(0.0, end - time.monotonic()))
    except Empty:
        raise TimeoutError(f"not whole after {WHOLE:g} s") from None
    finally:
        download.give_up()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class _Download:
    """A download: a thread calls :meth:`run`, and whoever waits for ``outcome`` calls :meth:`give_up` afterwards.

    Args:
        url: what is fetched.
        part: the file that the body is written to.
    """

    def __init__(self, url: str, part: IO[bytes]) -> None:
        self._url, self._part = url, part
        self.outcome: SimpleQueue[str | Exception] = SimpleQueue()  #: the SHA-256 of the whole body, or the error
        self._answer: requests.Response | None = None
        self._over = False

    def run(self) -> None:
        try:
            self.outcome.put(self._receive())
        except Exception as error:  # noqa: BLE001  raised by the thread that waits
            self.outcome.put(error)

    def give_up(self) -> None:
        """Lets :meth:`run` end, also while it waits for more of the body. Does nothing after its end."""
        self._over = True
        if self._answer is not None:
            with suppress(AttributeError, OSError, RuntimeError, ValueError):  # urllib3 before 2.3; already closed
                self._answer.raw.shutdown()

    def _receive(self) -> str:
        digest, count = hashlib.sha256(), 0
        with requests.get(self._url, stream=True, timeout=PATIENCE) as answer:
            self._answer = answer
            if self._over:
                raise TimeoutError("given up")
            answer.raise_for_status()
            for chunk in answer.iter_content(CHUNK):
                self._part.write(chunk)
                digest.update(chunk)
                count += len(chunk)
        promised = answer.headers.get("Content-Length")
        if promised and not answer.headers.get("Content-Encoding") and int(promised) != count:
            raise OSError(f"{count} of {promised} bytes received")
        return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
