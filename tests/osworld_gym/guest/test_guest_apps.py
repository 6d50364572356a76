"""The guest and real applications: still screens, the accessibility tree as evaluators use it, titles, terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import requests
from open_guest import OpenGuest, open_guest
from polling import until

from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.local.guest_process import Setting

pytestmark = pytest.mark.apps

FIX = "no template of the desktop's HOME here; fix: osworld-gym install-desktop"
ST = "{https://accessibility.ubuntu.example.org/ns/state}"
CP = "{https://accessibility.ubuntu.example.org/ns/component}"
STILL = 5.0  # seconds, /observe's own deadline
#: name → (command, part of the title)
APPLICATIONS = {
    "writer": (["libreoffice", "--writer", "~/letter.txt"], "letter"),
    "calc": (["libreoffice", "--calc", "--infilter=CSV:44,34,76,1", "~/table.csv"], "table.csv"),
    "chrome": (["google-chrome", "--force-renderer-accessibility", "file:///home/user/page.html"], "page"),
    "gimp": (["gimp"], "GNU Image Manipulation Program"),
    "terminal": (["gnome-terminal"], ""),
}


@pytest.fixture
def guest() -> Iterator[OpenGuest]:
    template = find_template()
    if template is None:
        pytest.fail(FIX)
    with open_guest(Setting(template=template.path)) as made:
        page = "<title>page one</title><input autofocus value=blinking><p>text"
        for name, text in (("letter.txt", "Dear reader"), ("table.csv", "a,b\n1,2\n"), ("page.html", page)):
            form = {"file_path": (None, f"~/{name}"), "file_data": (name, text.encode())}
            assert requests.post(made.url + "/setup/upload", files=form, timeout=60).ok
        yield made


def start(guest: OpenGuest, name: str) -> None:
    command, title = APPLICATIONS[name]
    order = {"command": command, "window": True, "deadline": 90}
    launched = requests.post(guest.url + "/setup/launch", json=order, timeout=150)
    assert launched.ok, launched.text
    end = time.monotonic() + 90
    while not any(title in found for found in titles(guest)):
        assert time.monotonic() < end, titles(guest)
        time.sleep(0.1)


def titles(guest: OpenGuest) -> list[str]:
    return [window["title"] for window in requests.get(guest.url + "/windows", timeout=30).json()["windows"]]


def tree(guest: OpenGuest) -> ElementTree.Element:
    reply = requests.get(guest.url + "/accessibility", timeout=120)
    assert reply.ok, reply.text
    assert "truncated" not in reply.json()
    return ElementTree.fromstring(reply.json()["AT"])


def act(guest: OpenGuest, **action: object) -> None:
    assert requests.post(guest.url + "/actions", json={"actions": [action]}, timeout=120).ok


@pytest.mark.parametrize("name", ["writer", "calc", "chrome", "gimp", "terminal"])
def test_the_screen_gets_still_within_the_deadline(guest: OpenGuest, name: str) -> None:
    """Caret and cursor keep blinking; each application is observed when idle, after a click and after a key."""
    start(guest, name)
    requests.post(guest.url + "/observe", json={"quiet": 1.0, "deadline": 60}, timeout=90)
    for action in ({}, {"kind": "click", "start": [640, 400]}, {"kind": "hotkey", "key": "a"}, {}):
        if action:
            act(guest, **action)
        for quiet in (0.1, 0.5, 1.5):
            seen = requests.post(guest.url + "/observe", json={"quiet": quiet, "deadline": STILL + quiet}, timeout=60)
            assert (name, action, quiet, seen.headers["X-Still"]) == (name, action, quiet, "1")


def test_the_tree_of_chrome_gives_the_address_as_evaluators_ask_it(guest: OpenGuest) -> None:
    """Selector ``application[name=Google Chrome] entry[name=Address and search bar]``, and OSWorld's window name."""
    start(guest, "chrome")
    end, found = time.monotonic() + 60, []
    while not any("page.html" in text for text in found) and time.monotonic() < end:
        browser = [app for app in tree(guest) if (app.tag, app.get("name")) == ("application", "Google Chrome")]
        bars = [node for app in browser for node in app.iter("entry") if node.get("name") == "Address and search bar"]
        found = ["".join(bar.itertext()) for bar in bars]
        time.sleep(0.2)  # the browser builds its tree at the first query
    assert any("/home/user/page.html" in text for text in found), found
    start(guest, "terminal")
    for name in ("Google Chrome", "google-chrome.Google-chrome"):
        order = {"window_name": name, "by_class": "." in name}
        requests.post(guest.url + "/setup/activate_window", json=order, timeout=30)
        windows = requests.get(guest.url + "/windows", timeout=30).json()["windows"]
        assert [window["title"] for window in windows if window["active"]] == ["page one - Chromium"]


def test_the_tree_of_calc_has_the_cells_that_show(guest: OpenGuest) -> None:
    start(guest, "calc")
    cells = [node for node in tree(guest).iter("table-cell") if node.get(f"{ST}showing") == "true"]
    texts = [cell.text for cell in cells]
    assert {"a", "b", "1", "2"} <= set(texts)
    assert 100 < len(cells) < 5000  # not the sheet's 17 billion cells
    first = cells[texts.index("a")]
    assert first.get("name") == "A1"
    assert first.get(f"{CP}screencoord", "").startswith("(")


def test_the_terminal_in_front_is_read_and_no_other(guest: OpenGuest) -> None:
    assert requests.get(guest.url + "/terminal", timeout=60).json() == {"output": None, "status": "success"}
    start(guest, "terminal")
    act(guest, kind="type", content="echo seen-$((40+2))\n")
    end, output = time.monotonic() + 30, ""
    while "\nseen-42\n" not in output and time.monotonic() < end:
        output = requests.get(guest.url + "/terminal", timeout=60).json()["output"] or ""
    assert "\nseen-42\n" in output
    start(guest, "gimp")
    assert requests.get(guest.url + "/terminal", timeout=60).json()["output"] is None


def test_a_program_that_hangs_is_left_out_and_the_tree_is_marked_incomplete(guest: OpenGuest) -> None:
    start(guest, "terminal")
    start(guest, "calc")
    stop = {"command": "pkill -STOP soffice.bin", "shell": True}
    assert requests.post(guest.url + "/execute", json=stop, timeout=30).json()["returncode"] == 0
    began = time.monotonic()
    reply = requests.get(guest.url + "/accessibility", timeout=120).json()
    assert time.monotonic() - began < 60
    assert reply["truncated"] is True
    assert 'name="gnome-terminal-server"' in reply["AT"]
    ElementTree.fromstring(reply["AT"])


@pytest.fixture(scope="module")
def bare() -> Iterator[OpenGuest]:
    with open_guest() as made:
        yield made


def test_a_recording_is_started_when_it_films_and_no_screen_waits_for_it(bare: OpenGuest) -> None:
    def post(path: str, body: object = None) -> requests.Response:
        return requests.post(bare.url + path, json=body, timeout=120)

    assert post("/start_recording").json() == {"status": "success", "message": "Started recording successfully."}
    assert post("/start_recording").status_code == 400
    start = time.monotonic()
    assert post("/observe", {"quiet": 0.1, "deadline": 10}).headers["X-Still"] == "1"
    assert time.monotonic() - start < 5
    film = post("/end_recording")
    assert (film.status_code, film.headers["Content-Type"]) == (200, "video/mp4")
    assert b"moov" in film.content
    assert post("/end_recording").status_code == 400
    pgrep = {"command": ["pgrep", "ffmpeg"]}
    until(lambda: post("/execute", pgrep).json()["output"] == "", "ffmpeg did not end")


def test_the_clipboard_goes_through_a_forked_python(bare: OpenGuest) -> None:
    def python(code: str) -> dict[str, Any]:
        return requests.post(bare.url + "/execute", json={"command": ["python", "-c", code]}, timeout=60).json()

    start = time.monotonic()
    assert python("import pyperclip; pyperclip.copy('Größe 你好 🙂')")["returncode"] == 0
    assert time.monotonic() - start < 30  # its daemon keeps running, with our streams
    wait = (
        "import pyperclip, time\nwhile pyperclip.paste() != 'Größe 你好 🙂': time.sleep(0.05)\nprint(pyperclip.paste())"
    )
    assert python(wait)["output"] == "Größe 你好 🙂\n"


FLAT = (
    '<office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'office:mimetype="application/vnd.oasis.opendocument.text" office:version="1.3">'
    "<office:body><office:text/></office:body></office:document>"
)


def test_opened_files_are_known_by_their_windows(guest: OpenGuest) -> None:
    form = {"file_path": (None, "~/r.fodt"), "file_data": ("r.fodt", FLAT.encode())}
    assert requests.post(guest.url + "/setup/upload", files=form, timeout=60).ok
    start(guest, "terminal")  # its title contains an r
    for path, title in (("~/r.fodt", "r.fodt - LibreOffice Writer"), ("~/letter.txt", "letter.txt")):
        reply = requests.post(guest.url + "/setup/open_file", json={"path": path, "deadline": 90}, timeout=150)
        assert reply.text == "File opened and window activated successfully", titles(guest)
        windows = requests.get(guest.url + "/windows", timeout=30).json()["windows"]
        assert [title in window["title"] for window in windows if window["active"]] == [True], windows
