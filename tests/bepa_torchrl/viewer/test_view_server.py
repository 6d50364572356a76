"""``bepa view --serve``: files of the pages only, for this machine only, and the number of changes."""

from __future__ import annotations

import errno
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from made_record import made_line, made_run, page_data

from bepa_torchrl.viewer import serve, site
from bepa_torchrl.viewer.serve import PagesServer
from bepa_torchrl.viewer.site import Site


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_run(tmp_path / "run", 3)


@pytest.fixture
def server(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PagesServer]:
    monkeypatch.setattr(serve, "_PAUSE", 0.0)
    pages = Site([str(run)], tmp_path / "out")
    pages.write()
    with PagesServer(pages, 0) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join(timeout=30)


def get(server: PagesServer, path: str, **headers: str) -> requests.Response:
    return requests.get(server.address + path, headers=headers, timeout=30)


def test_pages_and_data_are_served(server: PagesServer) -> None:
    assert "<main" in get(server, "").text
    assert get(server, "data/index.js").text.startswith("view.received(")
    assert server.address.startswith("http://127.0.0.1:")


def test_a_change_of_the_run_is_counted_once(server: PagesServer, run: Path) -> None:
    assert get(server, "changes").text == "0"
    with (run / "bepa" / "episodes.jsonl").open("a") as file:
        file.write(json.dumps(made_line(3, [])) + "\n")
    assert [get(server, "changes").text for _ in range(2)] == ["1", "1"]
    assert get(server, "changes").headers["Cache-Control"] == "no-cache"


def test_nothing_else_is_served(server: PagesServer) -> None:
    assert get(server, "data/").status_code == 404  # no list of files
    for path in (
        "",
        "data/index.js",
        "changes",
        "x/data/index.js",
        f"{server.secret}data/index.js",
        f"{server.secret}",
    ):
        assert requests.get(f"http://127.0.0.1:{server.server_port}/{path}", timeout=30).status_code == 404, path
    assert get(server, "../run/bepa/config.yaml").status_code == 404
    assert get(server, "%2e%2e/run/bepa/config.yaml").status_code == 404
    assert get(server, "", Host="attacker.example").status_code == 403
    assert requests.head(server.address, headers={"Host": "attacker.example"}, timeout=30).status_code == 403


def test_a_page_of_another_site_cannot_run_the_data_as_a_script(server: PagesServer) -> None:
    for path in ("data/index.js", "data/0-0.js", "changes", ""):
        answer = get(server, path)
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_size_of_a_page_is_asked_for(server: PagesServer) -> None:
    answer = requests.head(server.address + "changes", timeout=30)
    assert (answer.status_code, answer.headers["Content-Length"], answer.text) == (200, "1", "")


def test_a_browser_that_leaves_and_odd_requests_print_no_traceback(
    server: PagesServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.daemon_threads = False  # of which server_close waits for the end
    assert get(server, "%00").status_code == 404
    tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"  # as of https://127.0.0.1
    for request in (tls, f"GET /{server.secret}/plotly.min.js HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode()):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close it by a reset
            client.sendall(request)
            assert client.recv(20)
    server.shutdown()
    server.server_close()
    assert capfd.readouterr().err == ""


def test_a_run_that_is_moved_away_is_named_and_read_when_it_is_back(server: PagesServer, run: Path) -> None:
    run.rename(run.with_name("away"))
    answer = get(server, "changes")
    assert (answer.status_code, answer.text) == (
        503,
        f"{run}: the run is no longer there; put it back, or end bepa view",
    )
    assert get(server, "data/index.js").status_code == 200
    run.with_name("away").rename(run)
    assert get(server, "changes").status_code == 200


def test_what_could_not_be_written_is_written_later(
    server: PagesServer, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (run / "bepa" / "episodes.jsonl").open("a") as file:
        file.write(json.dumps(made_line(3, [])) + "\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(site, "write_text", full)
        assert "No space left" in get(server, "changes").text
    assert get(server, "changes").text == "1"
    assert page_data(server.site.out, "index")["streams"][0]["chunks"] == [0]
    assert len(page_data(server.site.out, "index")["streams"][0]["columns"]["task"]) == 4
