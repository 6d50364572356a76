"""Copies of a run's folder: whole snapshots only, nothing lost while the store is away, one writer, old space freed."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bepa_torchrl.scale.store.mirror import RunStore, RunUploader, SnapshotError, restore
from bepa_torchrl.scale.store.mirror.snapshot import CHUNK
from bepa_torchrl.scale.store.mirror.staging import ChangingError, capture
from bepa_torchrl.scale.store.objects import ObjectStore, StorageError
from bepa_torchrl.scale.store.objects.local import LocalStore
from osworld_gym.atomic import write_text

DEADLINE = 60.0


class Flaky:
    """A store that can be away; records the order of writes."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner, self.url = inner, inner.url
        self.away = threading.Event()
        self.failures = 0
        self.written: list[str] = []
        self.fail_after = -1

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(key: str = "", *rest: bytes) -> object:
            if self.away.is_set() or self.fail_after == len(self.written):
                self.failures += 1
                raise StorageError(f"{self.url}: {name} failed: away; check the address and the network")
            if name in ("put", "create"):
                self.written.append(key)
            return getattr(self.inner, name)(key, *rest)

        return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder: small files, a file of three chunks, hidden files that do not belong to it."""
    folder = tmp_path / "run"
    (folder / "bepa" / "images").mkdir(parents=True)
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "empty").touch()
    (folder / "bepa" / "iterations.jsonl").write_text("1\n")
    (folder / "bepa" / "images" / "x.png").write_bytes(b"png")
    (folder / "weights.bin").write_bytes(os.urandom(2 * CHUNK + 5))
    (folder / ".lock").touch()
    (folder / "bepa" / ".abc.part").write_text("unfinished")
    return folder


def content(folder: Path) -> dict[str, str]:
    """Path → sha256 of the files that belong to a run; hidden folders change while it is uploaded."""
    hashes = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(top) / name for name in names if not name.startswith(".")]
        hashes |= {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return hashes


@contextmanager
def uploading(
    run: Path, store: RunStore, notes: list[str] | None = None, wait: float = DEADLINE
) -> Iterator[RunUploader]:
    uploader = RunUploader(run, store, interval=0.05, note=[].append if notes is None else notes.append)
    try:
        yield uploader
    finally:
        uploader.close(wait)


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_folder_is_restored_as_it_was(run: Path, tmp_path: Path) -> None:
    store = RunStore(LocalStore(tmp_path / "store"), "name")
    with uploading(run, store):
        pass
    found = restore(store, tmp_path / "elsewhere")
    assert found is not None
    assert found[1] == []
    assert content(tmp_path / "elsewhere") == content(run)
    screenshot = hashlib.sha256(b"png").hexdigest()
    assert (tmp_path / "store" / "name" / "objects" / screenshot[:2] / screenshot).read_bytes() == b"png"
    assert restore(RunStore(LocalStore(tmp_path / "store"), "other"), tmp_path / "nowhere") is None
    assert not (tmp_path / "nowhere").exists()


def test_only_what_changed_is_uploaded_again(run: Path, tmp_path: Path) -> None:
    flaky = Flaky(LocalStore(tmp_path / "store"))
    store = RunStore(flaky, "name")  # type: ignore[arg-type]
    with uploading(run, store):
        wait_for(store.numbers)
        flaky.written.clear()
        with (run / "bepa" / "iterations.jsonl").open("a") as file:
            file.write("2\n")
    assert len(flaky.written) == 2
    assert [key.split("/")[1] for key in flaky.written] == ["objects", "snapshots"]  # the marker last


def test_a_file_with_the_inode_of_an_earlier_one_is_not_taken_for_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file systems of Linux give a new file the number of one that was removed: the third file has the first's."""
    monkeypatch.setattr("bepa_torchrl.scale.store.mirror.uploader.CHUNK", 100)
    (run / "weights.bin").write_bytes(b"small")
    record = run / "bepa" / "episodes.jsonl"
    write_text(record, "old\n" * 100)
    number = record.stat().st_ino
    store = RunStore(LocalStore(tmp_path / "store"), "name")
    with uploading(run, store) as uploader:
        wait_for(store.numbers)
        wait_for(lambda: not list((run / ".storage").glob("links/*")))
        uploader._interval = 600.0
        time.sleep(0.5)  # the upload in progress is over
        for size in range(101, 121):
            write_text(record, "new\n" * size)
            if record.stat().st_ino == number:
                break
    restore(store, tmp_path / "elsewhere")
    assert content(tmp_path / "elsewhere") == content(run)


def test_an_upload_that_breaks_off_leaves_the_earlier_snapshot(run: Path, tmp_path: Path) -> None:
    """For every point at which the machine may be lost, the newest snapshot is one that the folder had."""
    (run / "weights.bin").write_bytes(b"small")
    before = content(run)
    for point in range(6):
        flaky = Flaky(LocalStore(tmp_path / f"store{point}"))
        store, folder = RunStore(flaky, "name"), tmp_path / f"run{point}"  # type: ignore[arg-type]
        shutil.copytree(run, folder)
        with uploading(folder, store):
            pass
        (folder / "weights.bin").write_bytes(b"other")
        (folder / "config.yaml").write_text("a: 2\n")
        with (folder / "bepa" / "iterations.jsonl").open("a") as file:
            file.write("2\n")
        after = content(folder)
        uploader = RunUploader(folder, store, interval=600.0, note=lambda _: None)
        flaky.fail_after = len(flaky.written) + point
        if point < 4:  # three chunks and the marker
            with pytest.raises(
                StorageError, match=f"nothing is lost: {folder} is complete, upload it later with resume"
            ):
                uploader.close(0.3)
        else:
            uploader.close(DEADLINE)
        flaky.fail_after = -1
        restore(store, tmp_path / f"restored{point}")
        assert content(tmp_path / f"restored{point}") == (before if point < 4 else after)


def test_nothing_is_lost_while_the_store_is_away(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints come and go meanwhile, as with train.keep=1; the last state arrives, and the user gets two notes."""
    monkeypatch.setattr("bepa_torchrl.scale.store.mirror.uploader._LONGEST_DELAY", 0.1)
    flaky, notes = Flaky(LocalStore(tmp_path / "store")), list[str]()
    store = RunStore(flaky, "name")  # type: ignore[arg-type]
    with uploading(run, store, notes):
        wait_for(store.numbers)
        flaky.away.set()
        for number in range(5):
            checkpoint = run / "checkpoints" / f"iteration-{number}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "weights").write_bytes(os.urandom(1000))
            shutil.rmtree(run / "checkpoints" / f"iteration-{number - 1}", ignore_errors=True)
            failures = flaky.failures
            wait_for(lambda failures=failures: flaky.failures > failures)
        flaky.away.clear()
    restore(store, tmp_path / "elsewhere")
    assert content(tmp_path / "elsewhere") == content(run)
    assert len(notes) == 2
    assert "away; check the address and the network; the run goes on and its files wait in" in notes[0]
    assert notes[1].endswith("is back")
    assert not (run / ".storage" / "links").exists()


def test_what_a_store_has_lost_is_sent_again_at_the_end(run: Path, tmp_path: Path) -> None:
    """As after a crash of a server that had confirmed writes it had not kept."""
    inner = LocalStore(tmp_path / "store")
    store = RunStore(inner, "name")
    with uploading(run, store):
        wait_for(store.numbers)
        for digest in sorted(store.chunks())[::2]:
            store.remove_chunk(digest)
    restore(store, tmp_path / "restored")
    assert content(tmp_path / "restored") == content(run)


def test_space_of_old_states_is_returned(run: Path, tmp_path: Path) -> None:
    store = RunStore(LocalStore(tmp_path / "store"), "name")
    for _ in range(2):  # two processes, for what the first leaves
        with uploading(run, store):
            for _ in range(4):
                newest = next(iter(store.numbers()), 0)
                (run / "weights.bin").write_bytes(os.urandom(100))
                wait_for(lambda newest=newest: next(iter(store.numbers()), 0) > newest)
    numbers = store.numbers()
    assert len(numbers) == 2
    assert store.chunks() == store.read(numbers[0]).chunks() | store.read(numbers[1]).chunks()


def test_a_damaged_snapshot_falls_back_to_the_one_before(run: Path, tmp_path: Path) -> None:
    store = RunStore(LocalStore(tmp_path / "store"), "name")
    with uploading(run, store):
        wait_for(store.numbers)
        before = content(run)
        (run / "config.yaml").write_text("a: 2\n")
    digest = hashlib.sha256(b"a: 2\n").hexdigest()
    (tmp_path / "store" / "name" / "objects" / digest[:2] / digest).write_text("a: 3\n")
    found = restore(store, tmp_path / "elsewhere")
    assert found is not None
    assert f"snapshot 2 cannot be used ({store.url}: object {digest} is damaged)" in found[1][0]
    assert content(tmp_path / "elsewhere") == before
    for path in (tmp_path / "store" / "name" / "objects").rglob("*"):
        if path.is_file():
            path.write_text("damaged")
    with pytest.raises(SnapshotError, match=r"no snapshot of .* can be used: snapshot 2 .*; snapshot 1"):
        restore(store, tmp_path / "third")


def test_a_part_of_an_object_is_uploaded_again(run: Path, tmp_path: Path) -> None:
    """A store without atomic writes keeps what a lost machine had sent of an object, under the object's name."""
    store = RunStore(LocalStore(tmp_path / "store"), "name")
    (run / "weights.bin").write_bytes(b"whole")
    digest = hashlib.sha256(b"whole").hexdigest()
    store.put_chunk(digest, b"who")
    with uploading(run, store):
        pass
    assert store.get_chunk(digest) == b"whole"
    restore(store, tmp_path / "elsewhere")
    assert content(tmp_path / "elsewhere") == content(run)


def test_a_run_goes_on_from_the_snapshot_before_a_damaged_one(run: Path, tmp_path: Path) -> None:
    store, elsewhere = RunStore(LocalStore(tmp_path / "store"), "name"), tmp_path / "elsewhere"
    with uploading(run, store):
        wait_for(store.numbers)
        (run / "config.yaml").write_text("a: 2\n")
    digest = hashlib.sha256(b"a: 2\n").hexdigest()
    store.put_chunk(digest, b"a: 3\n")
    restore(store, elsewhere)
    with uploading(elsewhere, store):  # does not take the damaged object for its own
        (elsewhere / "config.yaml").write_text("a: 2\n")
    assert store.numbers()[0] == 3
    assert store.get_chunk(digest) == b"a: 2\n"
    restore(store, tmp_path / "third")
    assert content(tmp_path / "third") == content(elsewhere)


def test_the_end_of_a_run_does_not_wait_for_the_next_attempt(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bepa_torchrl.scale.store.mirror.uploader._FIRST_DELAY", 10 * DEADLINE)
    flaky = Flaky(LocalStore(tmp_path / "store"))
    store = RunStore(flaky, "name")  # type: ignore[arg-type]
    uploader = RunUploader(run, store, interval=0.05, note=lambda _: None)
    flaky.away.set()
    (run / "config.yaml").write_text("a: 2\n")
    wait_for(lambda: flaky.failures)
    flaky.away.clear()
    uploader.close(DEADLINE)
    restore(store, tmp_path / "elsewhere")
    assert content(tmp_path / "elsewhere") == content(run)


def test_a_second_machine_ends_with_an_error_and_changes_nothing(run: Path, tmp_path: Path) -> None:
    store = RunStore(LocalStore(tmp_path / "store"), "name")
    with uploading(run, store):
        pass
    copy = tmp_path / "copy"
    restore(store, copy)
    with uploading(copy, store):  # the run goes on on another machine
        (copy / "config.yaml").write_text("other machine\n")
    with pytest.raises(SnapshotError, match="was continued elsewhere; remove that folder to go on from the store"):
        RunUploader(run, store, interval=0.05, note=lambda _: None)
    one = RunUploader(copy, store, interval=600.0, note=lambda _: None)
    two = RunUploader(copy, store, interval=600.0, note=lambda _: None)
    two._state = type(two._state)(two._state.url, "another", two._state.number)  # as if started elsewhere just then
    (copy / "config.yaml").write_text("first\n")
    one.close(DEADLINE)
    (copy / "config.yaml").write_text("second\n")
    with pytest.raises(SnapshotError, match="another process has written snapshot 3"):
        two.close(DEADLINE)
    newest = store.read(store.numbers()[0])
    assert newest.files["config.yaml"].chunks == (hashlib.sha256(b"first\n").hexdigest(),)


def test_a_reply_that_is_lost_does_not_look_like_a_second_writer(run: Path, tmp_path: Path) -> None:
    class Forgetful(LocalStore):
        lost = 0

        def create(self, key: str, data: bytes) -> None:
            super().create(key, data)
            if not self.lost:
                self.lost += 1
                raise StorageError("the reply was lost; check the network")

    store = RunStore(Forgetful(tmp_path / "store"), "name")
    with uploading(run, store):
        pass
    assert store.numbers() == [1]


def test_a_capture_is_consistent_or_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may grow meanwhile, also with a newer checkpoint; any other change starts the capture again."""
    from bepa_torchrl.scale.store.mirror import staging

    link, calls = staging._link, []

    def link_and_write(source: Path, target: Path) -> None:
        link(source, target)
        if len(calls) < 3:
            calls.append(source)
            (run / "new").write_text(str(len(calls)))
            with (run / "bepa" / "iterations.jsonl").open("a") as file:
                file.write("more\n")

    monkeypatch.setattr(staging, "_link", link_and_write)
    taken = capture(run, {})
    assert len(calls) == 3
    assert (taken.root / "new").read_text() == "3"
    assert taken.states["bepa/iterations.jsonl"].size == len("1\n" + 3 * "more\n")
    taken.discard()

    def always(source: Path, target: Path) -> None:
        link(source, target)
        (run / "new").write_text(str(time.monotonic_ns()))

    monkeypatch.setattr(staging, "_link", always)
    with pytest.raises(ChangingError):
        capture(run, {})


def test_file_systems_without_links_are_copied(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(LocalStore(tmp_path / "store"), "name")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    with uploading(run, store):
        pass
    restore(store, tmp_path / "elsewhere")
    assert content(tmp_path / "elsewhere") == content(run)
