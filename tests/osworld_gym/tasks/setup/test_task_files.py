"""The shared file cache: OSWorld's names, atomic downloads, offline mode, checksums, concurrent processes."""

import http.server
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.setup import file_cache as files
from osworld_gym.tasks.setup.file_cache import FileCache, gold_file, setup_file


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves /a and /b (3 bytes), /half (promises more than it sends); counts the requests."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", "3" if self.path in ("/a", "/b") else "30")
        self.end_headers()
        self.wfile.write(b"new" if self.path == "/b" else b"abc")

    def log_message(self, *args): ...


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def url(hub, path: str) -> str:
    return f"http://127.0.0.1:{hub.server_address[1]}{path}"


def cache(tmp_path: Path, **options) -> FileCache:
    return FileCache(tmp_path / "files", also=(), **options)


def test_osworlds_own_names():
    task_file = setup_file("t1", "https://example.org/x/Budget.xlsx?download=true", "/home/user/Desktop/b.xlsx")
    assert str(task_file.relative_path) == "t1/02d220b8-d82b-569c-93bf-d3f343e4a185_b.xlsx"  # uuid5(NAMESPACE_URL, url)
    assert str(gold_file("t1", "https://example.org/gold", "gold.xlsx").relative_path) == "t1/gold.xlsx"


def test_fetched_once_read_only_and_complete(hub, tmp_path):
    task_file = gold_file("t", url(hub, "/a"), "a.txt")
    first = cache(tmp_path, offline=False)
    assert first.read(task_file) == b"abc"
    assert first.read(task_file) == b"abc"
    assert hub.asked == ["/a"]
    path = tmp_path / "files" / "t" / "a.txt"
    assert path.stat().st_mode & 0o777 == 0o444
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert cache(tmp_path, offline=True).read(task_file) == b"abc"


@pytest.mark.parametrize("path", ["/half", "/missing"])
def test_an_incomplete_download_is_not_stored(hub, tmp_path, path):
    task_file = gold_file("t", url(hub, path), "a.txt")
    with pytest.raises(DesktopError, match="could not be fetched") as caught:
        cache(tmp_path, offline=False).get(task_file)
    assert caught.value.reason is FailureReason.setup_failed
    assert hub.asked == [path] * files.TRIES
    assert list((tmp_path / "files" / "t").iterdir()) == []


@pytest.mark.parametrize("begin", ["", "HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_a_download_that_comes_a_byte_at_a_time_ends_at_its_deadline(tmp_path, monkeypatch, begin):
    monkeypatch.setattr(files, "WHOLE", 0.5)
    over = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(begin.encode())
            while not over.wait(0.02):
                try:
                    connection.sendall(b"a")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=drip, args=(listener,), daemon=True)
        server.start()
        task_file = gold_file("t", f"http://127.0.0.1:{listener.getsockname()[1]}/a", "a.txt")
        start = time.monotonic()
        with pytest.raises(DesktopError, match=r"not whole after 0\.5 s") as caught:
            cache(tmp_path, offline=False).get(task_file)
        assert time.monotonic() - start < 10
        if begin.endswith("\r\n\r\n"):
            server.join(20)  # the connection was closed
            assert not server.is_alive()
        over.set()
        server.join(20)
    assert caught.value.reason is FailureReason.setup_failed
    assert list((tmp_path / "files" / "t").iterdir()) == []


def test_offline_names_the_file_and_its_path(tmp_path):
    task_file = gold_file("t", "http://127.0.0.1:9/gold", "gold.docx")
    with pytest.raises(TaskError, match=r"requires http://127.0.0.1:9/gold, .*files/t/gold.docx"):
        cache(tmp_path, offline=True).get(task_file)


def test_offline_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OSWORLD_GYM_OFFLINE", "1")
    assert cache(tmp_path).offline
    monkeypatch.delenv("OSWORLD_GYM_OFFLINE")
    assert not cache(tmp_path).offline


def test_a_cache_that_osworld_filled(tmp_path, monkeypatch):
    (tmp_path / "checkout" / "cache" / "t").mkdir(parents=True)
    (tmp_path / "checkout" / "cache" / "t" / "gold.txt").write_bytes(b"gold")
    monkeypatch.setenv("OSWORLD_ROOT", str(tmp_path / "checkout"))
    own = FileCache(tmp_path / "files", offline=True)
    assert own.read(gold_file("t", "http://127.0.0.1:9/gold", "gold.txt")) == b"gold"
    assert not (tmp_path / "files").exists()


def test_a_file_that_changed_is_noticed(hub, tmp_path):
    task_file = gold_file("t", url(hub, "/a"), "a.txt")
    path = cache(tmp_path, offline=False).get(task_file)
    path.chmod(0o644)
    path.write_bytes(b"abd")
    with pytest.raises(TaskError, match="differs from what was fetched"):
        cache(tmp_path, offline=False).get(task_file)


def test_a_gold_file_of_another_url_is_another_file(hub, tmp_path):
    old, new = (gold_file("t", url(hub, path), "gold.txt") for path in ("/a", "/b"))
    online, offline = cache(tmp_path, offline=False), cache(tmp_path, offline=True)
    assert online.read(old) == b"abc"
    assert offline.find(new) is None
    with pytest.raises(TaskError, match=r"requires http.*/b, .*-.*_gold\.txt"):
        offline.get(new)
    assert [online.read(one) for one in (new, old, new)] == [b"new", b"abc", b"new"]
    assert [offline.read(one) for one in (old, new)] == [b"abc", b"new"]
    assert hub.asked == ["/a", "/b"]


def test_a_gold_file_that_a_user_put_there_is_used_for_any_url(hub, tmp_path):
    (tmp_path / "files" / "t").mkdir(parents=True)
    (tmp_path / "files" / "t" / "gold.txt").write_bytes(b"own")
    assert cache(tmp_path, offline=False).read(gold_file("t", url(hub, "/a"), "gold.txt")) == b"own"
    assert hub.asked == []


def test_a_name_that_leaves_the_folder(tmp_path):
    with pytest.raises(TaskError, match="is a path outside the cache"):
        cache(tmp_path).get(gold_file("t", "http://127.0.0.1:9/x", "../../../etc/passwd"))


def test_a_lock_not_released_in_time(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK", 0.2)
    task_file = gold_file("t", url(hub, "/a"), "a.txt")
    holder = cache(tmp_path, offline=False)
    with holder._lock(task_file), pytest.raises(DesktopError, match=r"another process has locked t/a\.txt"):
        cache(tmp_path, offline=False).get(task_file)
    assert cache(tmp_path, offline=False).read(task_file) == b"abc"


def test_processes_at_once_fetch_once(hub, tmp_path):
    script = (
        "import sys; from pathlib import Path; from osworld_gym.tasks.setup.file_cache import FileCache, gold_file\n"
        "cache = FileCache(Path(sys.argv[1]), offline=False, also=())\n"
        "print(cache.read(gold_file('t', sys.argv[2], 'a.txt')).decode())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "files"), url(hub, "/a")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=100)[0] for process in processes] == ["abc\n"] * 3
    assert hub.asked == ["/a"]
