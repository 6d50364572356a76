"""Setup steps that involve the host: downloads, Chrome's tabs and history, stored output, accounts."""

import json
import socket
import sqlite3
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from file_desktop import FileDesktop

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.setup import chrome
from osworld_gym.tasks.setup import run as prepare
from osworld_gym.tasks.setup.file_cache import FileCache, setup_file
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.tasks.task import Task
from osworld_gym.types import CommandResult


def run(desktop, *steps, files=None, outputs=None):
    task = Task(id="t", instruction="i", config=steps, evaluator={"func": "infeasible"})
    cache = files or FileCache(Path("/nonexistent/cache"), offline=True, also=())
    TaskRun(task, desktop, cache, {} if outputs is None else outputs).run(steps)
    return desktop


def step(kind: str, **parameters) -> dict:
    return {"type": kind, "parameters": parameters}


class FakeChrome(BaseHTTPRequestHandler):
    """The HTTP side of DevTools: opens, closes and lists tabs.

    Opening requires PUT, and the address is the part of the query before the first ``&``, without percent-encoding, as
    in Chrome (content/browser/devtools/devtools_http_handler.cc).
    """

    def _answer(self, value, status=200):
        self.send_response(status)
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        tabs = self.server.tabs
        if self.path == "/json/version":
            self._answer({"Browser": "Chrome/140"})
        elif self.path == "/json/list":
            self._answer([{"id": "worker", "type": "service_worker", "url": "", "title": ""}, *tabs])
        elif self.path.startswith("/json/close/"):
            self.server.tabs = [tab for tab in tabs if tab["id"] != self.path.rsplit("/", 1)[1]]
            self._answer("Target is closing")
        else:
            self._answer("Using unsafe HTTP verb GET", 405)

    def do_PUT(self):
        tab = {
            "id": f"n{len(self.server.tabs)}",
            "type": "page",
            "title": "",
            "url": unquote(self.path.split("?", 1)[1].split("&", 1)[0]),
        }
        self.server.tabs.insert(0, tab)
        self._answer(tab)

    def log_message(self, *args): ...


@pytest.fixture
def browser():
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeChrome)
    server.tabs = [{"id": "first", "type": "page", "title": "New Tab", "url": "chrome://newtab/"}]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def desktop_with(browser) -> FileDesktop:
    return FileDesktop(ports={9222: browser.server_address})


def test_tabs_open_in_order_and_the_first_one_closes(browser):
    urls = ["https://a.org/?q=x y&z=1", "https://a.org/a%2Fb?c=50%25+1#é", "chrome://settings/"]
    run(desktop_with(browser), step("chrome_open_tabs", urls_to_open=urls))
    assert [tab["url"] for tab in browser.tabs] == urls[::-1]


def test_tabs_close_by_address(browser):
    browser.tabs += [{"id": i, "type": "page", "title": "", "url": "https://www.b.org/"} for i in ("b1", "b2")]
    run(desktop_with(browser), step("chrome_close_tabs", urls_to_close=["https://b.com"]))
    assert [tab["id"] for tab in browser.tabs] == ["first", "b2"]


def trickle(connection: socket.socket, ended: threading.Event) -> None:
    while not ended.wait(0.02):
        connection.sendall(b" ")


def endless(connection: socket.socket, ended: threading.Event) -> None:
    while not ended.is_set():
        connection.sendall(b" " * (1 << 16))


def nested(connection: socket.socket, ended: threading.Event) -> None:
    del ended
    connection.sendall(b"[" * 100_000)


@pytest.mark.parametrize("answer", [trickle, endless, nested])
def test_a_program_in_chromes_place_neither_holds_nor_ends_the_run(answer, monkeypatch):
    """The policy can start one; the address of the page is asked after each of its responses."""
    monkeypatch.setattr(chrome, "ADDRESS", 0.2)
    ended = threading.Event()

    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            answer(connection, ended)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        watchdog = threading.Timer(20.0, ended.set)
        watchdog.start()
        assert chrome.page_url(FileDesktop(ports={9222: listener.getsockname()})) == ""
        watchdog.cancel()
    assert not ended.is_set()  # nobody had to end the answer
    ended.set()


def test_the_address_of_a_page_is_short_and_can_be_written(browser):
    """It is kept for every step; a program in Chrome's place may answer with megabytes, and with half a character."""
    browser.tabs = [{"id": "a", "type": "page", "title": "", "url": "data:\ud83d" + "x" * (1 << 20)}]
    url = chrome.page_url(desktop_with(browser))
    assert url.encode().startswith(b"data:?xxx")
    assert len(url) == chrome.LONGEST_ADDRESS


def test_a_chrome_that_never_starts_is_a_failed_setup(monkeypatch):
    monkeypatch.setattr(chrome, "STARTED", 0.2)
    with pytest.raises(DesktopError, match="Chrome did not answer on port 9222") as caught:
        run(FileDesktop(ports={9222: ("127.0.0.1", 9)}), step("chrome_open_tabs", urls_to_open=["https://a.org"]))
    assert caught.value.reason is FailureReason.setup_failed


def test_a_provider_without_the_port_is_a_task_error():
    with pytest.raises(TaskError, match="queries Chrome on port 9222, which this provider's desktops do not forward"):
        run(FileDesktop(), step("chrome_open_tabs", urls_to_open=["https://a.org"]))


def test_download_comes_from_the_cache(tmp_path):
    task_file = setup_file("t", "https://hub/a.xlsx", "/home/user/b.xlsx")
    (tmp_path / "t").mkdir()
    (tmp_path / task_file.relative_path).write_bytes(b"sheet")
    files = FileCache(tmp_path, offline=True, also=())
    get = step("download", files=[{"url": "https://hub/a.xlsx", "path": "/home/user/b.xlsx"}])
    assert run(FileDesktop(), get, files=files).files == {"/home/user/b.xlsx": b"sheet"}
    with pytest.raises(TaskError, match="task 't' requires https://hub/other"):
        run(FileDesktop(), step("download", files=[{"url": "https://hub/other", "path": "/x"}]), files=files)


@pytest.mark.parametrize("kind", ["execute", "command"])
def test_output_is_stored_under_its_name(kind):
    outputs: dict[str, bytes] = {}
    desktop = FileDesktop(
        commands={"ls 640": CommandResult(0, "out \ud83d", "err")}
    )  # half a character, as JSON has it
    run(desktop, step(kind, command="ls {SCREEN_WIDTH}", shell="true", stdout="a.out", stderr="a.err"), outputs=outputs)
    assert outputs == {"a.out": b"out ?", "a.err": b"err"}
    assert desktop.steps == []


def test_output_of_config_would_be_lost():
    task = Task(id="t", instruction="i", config=(step("execute", command="ls", stdout="x"),), evaluator={})
    with pytest.raises(TaskError, match=r"which only evaluator.postconfig may"):
        prepare.prepare(task, FileDesktop())


@pytest.mark.parametrize(
    ("kind", "parameters"), [("googledrive", {"operation": [], "args": []}), ("login", {"platform": "googledrive"})]
)
def test_what_needs_an_account_cannot_run(kind, parameters):
    with pytest.raises(TaskError, match=rf"setup step '{kind}' cannot run here: it needs an? (Google )?account"):
        run(FileDesktop(), step(kind, **parameters))


def test_other_steps_are_the_providers():
    desktop = run(FileDesktop(), step("open", path="/a"), step("sim", anything=1), step("sleep", seconds=99))
    assert desktop.steps == ["open", "sim", "sleep"]


def test_sleeps_before_scoring_are_kept(monkeypatch):
    slept = []
    monkeypatch.setattr(prepare.time, "sleep", slept.append)
    desktop = FileDesktop()
    task = Task(id="t", instruction="i", evaluator={"func": "infeasible"})
    TaskRun(task, desktop, FileCache(Path("/none"), offline=True), {}).run([step("sleep", seconds="1.5")], sleeps=True)
    assert slept == [1.5]
    assert desktop.steps == []


def test_history_gets_its_visits(tmp_path):
    store = sqlite3.connect(tmp_path / "History")
    store.execute(
        "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden)"
    )
    store.execute(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, "
        "visit_duration)"
    )
    store.commit()
    store.close()
    visit = {"url": "https://a.org/", "title": "A", "visit_time_from_now_in_seconds": 100}
    data = prepare.add_visits((tmp_path / "History").read_bytes(), [visit], now=1_000_000.0)
    (tmp_path / "new").write_bytes(data)
    store = sqlite3.connect(tmp_path / "new")
    moment = (1_000_000 - 100 + 11_644_473_600) * 1_000_000  # microseconds since 1601
    assert store.execute("SELECT url, title, last_visit_time FROM urls").fetchall() == [("https://a.org/", "A", moment)]
    assert store.execute("SELECT url, visit_time FROM visits").fetchall() == [(1, moment)]
    desktop = run(FileDesktop({prepare.HISTORY: data}), step("update_browse_history", history=[visit]))
    assert len(desktop.files[prepare.HISTORY]) == len(data)
    with pytest.raises(DesktopError, match="update_browse_history"):
        prepare.add_visits(b"not a database" * 100, [visit], now=0.0)
