"""RunUploader: uploads whole snapshots of a run's folder in the background while the run goes on.

The folder on the local disk is the spool: whatever happens to the store, nothing is lost, and the next snapshot has
everything. Back-pressure: one snapshot at a time is uploaded, from links to the folder's files, and a bounded number of
chunks is in memory; states that change faster than the store takes them are skipped, never the last one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from bepa_torchrl.scale.store.mirror.snapshot import CHUNK, RunStore, Snapshot, SnapshotError, StoredFile
from bepa_torchrl.scale.store.mirror.staging import SPOOL, Capture, ChangingError, FileState, capture, is_appended
from bepa_torchrl.scale.store.mirror.sync_state import SyncState, begin
from bepa_torchrl.scale.store.objects.base import StorageError

Result = TypeVar("Result")
_WRITERS, _IN_MEMORY = 4, 8  #: threads; chunks
_KEEP = 2  #: snapshots kept in the store
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0  #: seconds between two attempts
_LAST_DELAY = 1.0  #: the longest while :meth:`RunUploader.close` waits


class _CancelledError(Exception):
    """The deadline of :meth:`RunUploader.close` has passed."""


class RunUploader:
    """Uploads one folder, from its construction until :meth:`close`.

    Args:
        folder: the run's folder.
        store: its location in the store.
        interval: seconds between two checks of the folder.
        note: called from the uploading thread with a line for the user when the store fails, and when it is back.

    Raises:
        SnapshotError: the store has snapshots of this run from another machine.
        StorageError: the store cannot be read.
    """

    def __init__(self, folder: Path, store: RunStore, *, interval: float, note: Callable[[str], None]) -> None:
        self.folder, self.store = folder, store
        self._interval, self._note = interval, note
        self._state: SyncState = begin(folder, store)
        stored = store.chunks()
        self._chunks = stored & _whole_chunks(store, self._state.whole)  #: in the store
        self._unverified = stored - self._chunks  #: names in the store; what is there may be a part of a chunk
        self._known: dict[str, tuple[FileState, StoredFile]] = {}
        self._open = _OpenFiles()
        self._recent: list[Snapshot] = []  #: of this process, at most _KEEP
        self._closing, self._cancelled = threading.Event(), threading.Event()
        self._failed: Exception | None = None
        self._trouble: str | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"upload of {folder.name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises SnapshotError if uploading has ended because another process writes this run."""
        if self._failed is not None:
            raise self._failed

    def close(self, seconds: float) -> None:
        """Uploads the last state and ends; the folder must not change any more.

        Raises:
            StorageError: the store did not take it within ``seconds``; the local folder has everything.
            SnapshotError: another process writes this run.
        """
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._cancelled.set()
            self._thread.join(5.0)  # not longer: a call on a hanging network drive cannot be cancelled
            reason = self._trouble or "not all was uploaded"
            raise StorageError(
                f"the last upload did not end within storage_wait={seconds:g} s ({reason}); nothing is lost: "
                f"{self.folder} is complete, upload it later with resume=true"
            )
        self.check()

    # --- the uploading thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(_WRITERS) as pool:
                while True:
                    last = self._closing.wait(self._interval)
                    if last:
                        self._send_lost_again()
                    if self._attempt(pool) and last:
                        return
                    if last and self._cancelled.wait(_FIRST_DELAY):
                        return
        except _CancelledError:
            return
        except Exception as error:  # noqa: BLE001  raised to the caller by check and close
            self._failed = error
        finally:
            self._open.close()

    def _send_lost_again(self) -> None:
        """Forgets what was sent if the store has lost a part of it, as one that was restarted may have."""
        stored = self._retried(self.store.chunks)
        if self._recent and not self._recent[-1].chunks() <= stored:
            self._known = {}
        self._chunks &= stored

    def _attempt(self, pool: ThreadPoolExecutor) -> bool:
        """Uploads the present state; returns whether the store has it. A local disk error is noted, and tried again."""
        try:
            return self._upload(pool)
        except OSError as error:
            self._set_trouble(f"{self.folder / SPOOL} cannot be used ({error})")
            return False

    def _upload(self, pool: ThreadPoolExecutor) -> bool:
        """As :meth:`_attempt`."""
        try:
            taken = capture(self.folder, {path: state for path, (state, _) in self._known.items()})
        except ChangingError:
            return False
        opened = _OpenFiles(self.folder, taken.states)
        try:
            if taken.states == {path: state for path, (state, _) in self._known.items()}:
                return True
            files = self._upload_files(taken, pool)
            if files is None:
                return False
            snapshot = Snapshot(self._state.number + 1, self._state.writer, files)
            self._retried(lambda: self.store.publish(snapshot))
            opened, self._open = self._open, opened
        finally:
            opened.close()
            taken.discard()
        self._known = {path: (state, files[path]) for path, state in taken.states.items()}
        self._state = SyncState(self.store.url, self._state.writer, snapshot.number)
        self._state.write(self.folder)
        self._recent = [*self._recent, snapshot][-_KEEP:]
        self._set_trouble(None)
        with suppress(StorageError):  # again after the next snapshot
            self._remove_old(pool)
        return True

    def _upload_files(self, taken: Capture, pool: ThreadPoolExecutor) -> dict[str, StoredFile] | None:
        """Uploads what the store does not have; None if a file was shortened meanwhile."""
        room, pending = threading.Semaphore(_IN_MEMORY), list[Future[None]]()
        files: dict[str, StoredFile] = {}
        sent: set[str] = set()

        def send(digest: str, data: bytes) -> None:
            try:
                self._retried(lambda: self.store.put_chunk(digest, data))
            finally:
                room.release()

        try:
            for path, state in taken.states.items():
                known = self._known.get(path)
                if known is not None and known[0] == state:
                    files[path] = known[1]
                    continue
                digests, read = _unchanged(path, state, known if path in self._open.paths else None)
                for data in _pieces(taken.root / path, read, state.size):
                    digest = hashlib.sha256(data).hexdigest()
                    digests.append(digest)
                    read += len(data)
                    if digest not in self._chunks and digest not in sent:
                        sent.add(digest)
                        room.acquire()
                        self._check_cancelled()
                        pending.append(pool.submit(send, digest, data))
                if read != state.size:
                    return None
                files[path] = StoredFile(state.size, tuple(digests))
        finally:
            errors = [error for error in (each.exception() for each in pending) if error is not None]
        if errors:
            raise errors[0]
        self._chunks |= sent
        self._unverified -= sent
        return files

    def _remove_old(self, pool: ThreadPoolExecutor) -> None:
        """Removes older snapshots, then the chunks that no kept snapshot of this process has."""
        if len(self._recent) < _KEEP:
            return  # an earlier process's snapshot is kept until there are two of this one
        oldest = self._recent[0].number
        for number in self.store.numbers():
            if number < oldest:
                self.store.remove(number)
        unused = (self._chunks | self._unverified).difference(*(snapshot.chunks() for snapshot in self._recent))
        self._chunks -= unused
        self._unverified -= unused  # before: a failed removal leaves an unused object, which the next process removes
        wait([pool.submit(self._remove_chunk, digest) for digest in unused])

    def _remove_chunk(self, digest: str) -> None:
        if not self._cancelled.is_set():
            with suppress(StorageError):
                self.store.remove_chunk(digest)

    def _retried(self, action: Callable[[], Result]) -> Result:
        """The action's result; repeated, at growing intervals, until the store takes it or close gives up."""
        delay = _FIRST_DELAY
        while True:
            self._check_cancelled()
            try:
                return action()
            except StorageError as error:
                self._set_trouble(str(error))
                if not self._closing.wait(delay):
                    delay = min(2 * delay, _LONGEST_DELAY)
                else:  # a caller waits for this: no long pause once the store may be back
                    self._cancelled.wait(min(delay, _LAST_DELAY))

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError

    def _set_trouble(self, text: str | None) -> None:
        with self._lock:
            before, self._trouble = self._trouble, text
        if text is not None and before is None:
            self._note(f"storage: {text}; the run goes on and its files wait in {self.folder}")
        if text is None and before is not None:
            self._note(f"storage: {self.store.url} is back")


class _OpenFiles:
    """Keeps the files open that are appended to and have a whole chunk.

    Meanwhile no other file gets their inode's number: a file that has it has only grown. The file system may give that
    of a file that was replaced to the next one that replaces it.

    Args:
        folder: the run's folder.
        states: its files, as captured.
    """

    def __init__(self, folder: Path = Path(), states: Mapping[str, FileState] | None = None) -> None:
        self.paths: set[str] = set()  #: those that are open
        self._stack = ExitStack()
        for path, state in (states or {}).items():
            if is_appended(path) and state.size >= CHUNK:
                with suppress(OSError):
                    file = self._stack.enter_context((folder / path).open("rb"))
                    if os.fstat(file.fileno()).st_ino == state.inode:
                        self.paths.add(path)

    def close(self) -> None:
        """Closes them."""
        self._stack.close()


def _whole_chunks(store: RunStore, number: int) -> set[str]:
    """The chunks of a snapshot that this folder wrote or read; none if it cannot be used."""
    if not number:
        return set()
    try:
        return store.read(number).chunks()
    except (SnapshotError, FileNotFoundError):
        return set()


def _unchanged(path: str, state: FileState, known: tuple[FileState, StoredFile] | None) -> tuple[list[str], int]:
    """The hashes of the whole chunks of a file that only grew, and their size in bytes."""
    if known is None or not is_appended(path) or known[0].inode != state.inode or known[0].size > state.size:
        return [], 0
    whole = known[1].size // CHUNK
    return list(known[1].chunks[:whole]), whole * CHUNK


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    """The bytes from ``start`` to ``end``, fewer if the file is shorter, in chunks."""
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (data := file.read(min(CHUNK, end - start))):
            start += len(data)
            yield data
