"""The guest server on a real X desktop, with the requests of OSWorld's client: formats, rules, no blocking."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from PIL import Image
from polling import until
from processes import names

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.types import Action

pytestmark = pytest.mark.desktop

COUNT_CLIENTS = """
from Xlib.display import Display
from Xlib.ext import res
display = Display()
display.res_query_version()
print(len(display.res_query_clients().clients))
"""
TEXTS = (
    'it\'s "quoted" `and` $HOME \\n {}[]()<>|&;%~^#@!?*+=-_/\\',
    "Größe, naïve, Ünïcödé: ñ ß ø € … “quotes” – 你好 世界 こんにちは Привет Ελλάδα 🙂🎉",
    "first\nsecond\tthird",
    "".join(chr(0x4E00 + i) for i in range(300)),  # more characters than there are spare keys
)


@pytest.fixture(scope="module")
def desktop() -> Iterator[LocalDesktop]:
    with LocalDesktop() as made:
        made.reset(0)
        yield made


class Guest:
    """Plain HTTP requests, with the desktop's address and token."""

    def __init__(self, desktop: LocalDesktop) -> None:
        connection = desktop._guest._connection
        self.url = f"http://{connection.host}:{connection.port}"
        self.headers = dict(desktop._guest._headers)

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, headers=self.headers, timeout=60)

    def post(self, path: str, **kwargs: object) -> requests.Response:
        return requests.post(self.url + path, headers=self.headers, timeout=60, **kwargs)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def guest(desktop: LocalDesktop) -> Guest:
    return Guest(desktop)


def test_the_token_is_wanted(guest: Guest) -> None:
    assert requests.get(guest.url + "/screenshot", timeout=10).status_code == 401
    wrong = requests.post(guest.url + "/execute", json={"command": ["true"]}, headers={"Authorization": "Bearer x"})
    assert wrong.status_code == 401
    assert guest.get("/health").json()["status"] == "ok"
    assert guest.get("/no_such").status_code == 404


@pytest.mark.parametrize("path", ["/execute", "/setup/execute"])
def test_execute(guest: Guest, path: str) -> None:
    def run(command: object, shell: object = False) -> dict[str, object]:
        reply = guest.post(path, json={"command": command, "shell": shell})
        assert reply.status_code == 200, reply.text
        return reply.json()

    assert run("printf '%s' \"a b\"") == {"status": "success", "output": "a b", "error": "", "returncode": 0}
    assert run(["printf", "%s", "$HOME"])["output"] == "$HOME"
    assert run(["printf", "%s", "~/x"])["output"] == "/home/user/x"
    assert run("printf '%s' $HOME; exit 3", True) | {"status": ""} == {
        "status": "", "output": "/home/user", "error": "", "returncode": 3,
    }  # fmt: skip
    assert run(["printf one", "two"], "true")["output"] == "one"  # a list with a shell runs its first item
    failed = guest.post(path, json={"command": ["no_such_program"]})
    assert failed.status_code == 500
    assert "no_such_program" in failed.json()["message"]
    assert guest.post(path, json={"command": 3}).status_code == 400


def test_the_official_actions_run_in_the_guest(guest: Guest) -> None:
    code = "import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.moveTo(123, 45)"
    reply = guest.post("/execute", json={"command": ["python", "-c", code], "shell": False})
    assert (reply.json()["returncode"], reply.json()["error"]) == (0, "")
    assert guest.get("/cursor_position").json() == [123, 45]
    platform = guest.post("/execute", json={"command": ["python", "-c", "import platform; print(platform.system())"]})
    assert platform.json()["output"] == "Linux\n"


def test_a_child_that_keeps_stdout_open_does_not_block(guest: Guest) -> None:
    start = time.monotonic()
    reply = guest.post("/execute", json={"command": "sleep 45 & echo started", "shell": True})
    assert reply.json()["output"] == "started\n"
    assert time.monotonic() - start < 10
    assert guest.post("/execute", json={"command": "pkill -fx 'sleep 45'", "shell": True}).json()["returncode"] == 0


def test_a_command_past_its_timeout_is_killed(guest: Guest) -> None:
    reply = guest.post("/execute", json={"command": ["sleep", "46"], "timeout": 0.3})
    assert reply.status_code == 500
    assert "longer than 0.3 seconds" in reply.json()["message"]
    pgrep = {"command": ["pgrep", "-fx", "sleep 46"]}
    until(lambda: guest.post("/execute", json=pgrep).json()["output"] == "", "the command was not killed")


def test_screen(guest: Guest) -> None:
    reply = guest.get("/screenshot")
    assert reply.headers["Content-Type"] == "image/png"
    assert Image.open(io.BytesIO(reply.content)).size == (1280, 720)
    assert guest.post("/screen_size").json() == {"width": 1280, "height": 720}
    assert guest.get("/platform").text == "Linux"
    assert guest.get("/terminal").json()["status"] == "success"


def test_the_pointer_is_in_the_picture(desktop: LocalDesktop) -> None:
    desktop.perform([Action("click", start=(300, 300))])
    with_pointer = desktop.screenshot().pixels[290:330, 290:330].copy()
    desktop.perform([Action("click", start=(900, 600))])
    assert (desktop.screenshot().pixels[290:330, 290:330] != with_pointer).any()


def test_files(guest: Guest) -> None:
    data = bytes(range(256))
    files = {"file_path": (None, "~/a folder/naïve.bin"), "file_data": ("naïve.bin", data)}
    assert guest.post("/setup/upload", files=files).text == "File Uploaded: 256 bytes"
    for path in ("~/a folder/naïve.bin", "/home/user/a folder/naïve.bin", "$HOME/a folder/naïve.bin"):
        assert guest.post("/file", data={"file_path": path}).content == data
    assert guest.post("/file", data={"file_path": "/no/such"}).status_code == 404
    assert guest.post("/file").status_code == 400
    assert guest.post("/file", data={"file_path": "/a\0b"}).status_code == 400


def test_nonsense_is_refused(guest: Guest) -> None:
    assert guest.post("/actions", json={"actions": [{"kind": "dance"}]}).status_code == 400
    assert guest.post("/actions", json={"actions": [{"kind": "drag", "end": None}]}).status_code == 400
    for clicks in ("5", -1, 1.5, 10**9):
        scroll = {"kind": "scroll", "direction": "up", "clicks": clicks}
        assert guest.post("/actions", json={"actions": [scroll]}).status_code == 400
    assert guest.post("/actions", json={"actions": "click"}).status_code == 400
    assert guest.post("/observe", json={"quiet": -1}).status_code == 400
    assert (
        guest.post(
            "/observe",
            data=b"{",
        ).status_code
        == 400
    )
    assert guest.post("/setup/open_file", json={"path": "/no/such.txt"}).status_code == 404


def test_a_thousand_screenshots_leak_nothing(desktop: LocalDesktop, guest: Guest) -> None:
    def clients() -> int:
        return int(desktop.run(["python", "-c", COUNT_CLIENTS]).output)

    def files() -> int:
        """Size of the guest's table of open files, which doubles when it is full: only the guest may list them."""
        return int(desktop.run("grep FDSize /proc/1/status | tr -dc 0-9", shell=True).output)

    before, size = clients(), files()
    with requests.Session() as session:
        for _ in range(1000):
            reply = session.get(guest.url + "/screenshot", headers=guest.headers, timeout=10)
            assert reply.status_code == 200
    assert clients() == before
    assert files() <= 2 * size


def test_a_repeated_key_never_acts_twice(desktop: LocalDesktop, guest: Guest) -> None:
    desktop.write_file("~/key.txt", b"")
    desktop.setup({"type": "open", "parameters": {"path": "~/key.txt"}})
    order = {"key": "once", "actions": [{"kind": "type", "content": "x"}]}
    first, second = (guest.post("/actions", json=order).json() for _ in range(2))
    assert (first["performed"], first["repeated"]) == (1, False)
    assert (second["performed"], second["repeated"]) == (1, True)
    guest.post("/actions", json=order | {"key": "other"})
    desktop.perform([Action("hotkey", key="ctrl s")])
    assert desktop.read_file("~/key.txt").strip() == b"xx"
    desktop.setup({"type": "close_window", "parameters": {"window_name": "key.txt"}})
    assert desktop.windows() == []


@pytest.mark.parametrize("text", TEXTS, ids=["symbols", "unicode", "lines", "many"])
def test_text_arrives_as_it_was_typed(desktop: LocalDesktop, text: str) -> None:
    desktop.write_file("~/typed.txt", b"")
    desktop.setup({"type": "launch", "parameters": {"command": ["mousepad", "~/typed.txt"], "window": True}})
    desktop.perform([Action("type", content=text), Action("hotkey", key="ctrl s")])
    assert desktop.read_file("~/typed.txt").decode().rstrip("\n") == text
    desktop.setup({"type": "close_window", "parameters": {"window_name": "typed.txt"}})


def test_text_arrives_as_it_was_typed_in_an_application_that_reads_no_keys_for_a_while(desktop: LocalDesktop) -> None:
    """A screen that is still does not prove that the keys have been read: there is no new key map before they are."""
    text = "".join(chr(0x4E00 + i) for i in range(100))
    desktop.write_file("~/slow.txt", b"")
    desktop.setup({"type": "launch", "parameters": {"command": ["mousepad", "~/slow.txt"], "window": True}})
    (editor,) = [process for process, name in names(os.getpid()).items() if name == "mousepad"]
    editor.suspend()
    later = threading.Timer(1.0, editor.resume)
    later.start()
    desktop.perform([Action("type", content=text)])
    later.join()
    desktop.perform([Action("hotkey", key="ctrl s")])
    assert desktop.read_file("~/slow.txt").decode().rstrip("\n") == text
    desktop.setup({"type": "close_window", "parameters": {"window_name": "slow.txt"}})


def test_a_text_is_cut_off_if_the_application_reads_no_keys(desktop: LocalDesktop) -> None:
    text, before = "".join(chr(0x4F00 + i) for i in range(100)), desktop.cut_actions
    desktop.write_file("~/hung.txt", b"")
    desktop.setup({"type": "launch", "parameters": {"command": ["mousepad", "~/hung.txt"], "window": True}})
    (editor,) = [process for process, name in names(os.getpid()).items() if name == "mousepad"]
    editor.suspend()
    desktop.perform([Action("type", content=text)])
    assert desktop.cut_actions == before + 1
    editor.resume()
    desktop.perform([Action("hotkey", key="ctrl s")])
    arrived = desktop.read_file("~/hung.txt").decode().rstrip("\n")
    assert arrived == text[: len(arrived)] != text
    desktop.setup({"type": "close_window", "parameters": {"window_name": "hung.txt"}})


def test_two_clicks_are_not_a_double_click_and_a_double_click_is_one(desktop: LocalDesktop) -> None:
    desktop.run(["mkdir", "-p", "~/place/inner"])
    desktop.setup({"type": "launch", "parameters": {"command": ["pcmanfm", "~/place"], "window": True}})
    click = Action("click", start=(206, 118))
    desktop.perform([click, click])
    desktop.perform([click])
    assert [window["title"] for window in desktop.windows()] == ["place"]
    desktop.perform([Action("left_double", start=(206, 118))])
    assert [window["title"] for window in desktop.windows()] == ["inner"]
    desktop.setup({"type": "close_window", "parameters": {"window_name": "inner"}})


def test_a_drag_or_long_press_right_after_a_click_is_not_a_double_click(desktop: LocalDesktop) -> None:
    desktop.run(["mkdir", "-p", "~/place/inner"])
    desktop.setup({"type": "launch", "parameters": {"command": ["pcmanfm", "~/place"], "window": True}})
    point = (206, 118)
    for second in (Action("drag", start=point, end=(500, 300)), Action("long_press", start=point)):
        desktop.perform([Action("click", start=point)])
        desktop.perform([second])
        assert [window["title"] for window in desktop.windows()] == ["place"], second.kind
    desktop.setup({"type": "close_window", "parameters": {"window_name": "place"}})


def test_text_is_typed_by_the_present_keyboard_layout(desktop: LocalDesktop) -> None:
    """As by pyautogui, which reads the layout in each process; the codes of characters without a key are lost."""
    text = 'xyz AQ1 -/?@[] é 你 "ü"'
    for layout in ("us", "de", "fr", "us"):
        desktop.run(["setxkbmap", layout])
        desktop.setup(
            {"type": "launch", "parameters": {"command": ["xterm", "-e", "cat > /tmp/typed"], "window": True}}
        )
        desktop.perform([Action("type", content=f"{text}\n"), Action("hotkey", key="z"), Action("hotkey", key="-")])
        desktop.perform([Action("press_enter"), Action("hotkey", key="ctrl d")])
        assert desktop.read_file("/tmp/typed").decode() == f"{text}\nz-\n", layout


def test_a_key_that_is_held_has_its_shift(desktop: LocalDesktop) -> None:
    desktop.setup({"type": "launch", "parameters": {"command": ["xterm", "-e", "cat > /tmp/held"], "window": True}})
    keys = ("keydown ?", "keyup ?", "keydown 1", "keyup 1", "keydown shift", "keydown +", "keyup +", "keydown 1")
    pairs = (pair.split() for pair in (*keys, "keyup 1", "keyup shift"))
    desktop.perform([Action(kind, key=key) for kind, key in pairs])
    desktop.perform([Action("press_enter"), Action("hotkey", key="ctrl d")])
    assert desktop.read_file("/tmp/held") == b"?1+!\n"


def test_keys_have_the_spellings_that_other_providers_accept(desktop: LocalDesktop) -> None:
    desktop.setup({"type": "launch", "parameters": {"command": ["xterm", "-e", "cat > /tmp/spelt"], "window": True}})
    keys = ("Shift+A", "shift-b", "Shift, c", "plus", "Page_Up", "shift d", "comma", "-", "Return", "Ctrl+D")
    desktop.perform([Action("hotkey", key=key) for key in keys])
    assert desktop.read_file("/tmp/spelt") == b"ABC+\x1b[5~D,-\n"


def test_a_triple_click_selects_a_line(desktop: LocalDesktop) -> None:
    desktop.write_file("~/lines.txt", b"one two three four five six seven eight\n" * 60)
    desktop.setup({"type": "launch", "parameters": {"command": ["mousepad", "~/lines.txt"], "window": True}})
    (window,) = desktop.windows()
    middle = (window["x"] + 60, window["y"] + window["height"] / 2)
    desktop.perform([Action("left_triple", start=middle), Action("type", content="x"), Action("hotkey", key="ctrl s")])
    words = desktop.read_file("~/lines.txt").decode().split()
    assert [words.count(word) for word in ("one", "five", "eight", "x")] == [59, 59, 59, 1]
    desktop.setup({"type": "close_window", "parameters": {"window_name": "lines.txt"}})


def test_windows_by_title_and_class(desktop: LocalDesktop) -> None:
    for name in ("one", "two"):
        command = ["xterm", "-T", f"Terminal {name}", "-e", "sleep 60"]
        desktop.setup({"type": "launch", "parameters": {"command": command, "window": True}})

    def active() -> list[str]:
        return [window["title"] for window in desktop.windows() if window["active"]]

    def activate(**parameters: object) -> None:
        desktop.setup({"type": "activate_window", "parameters": parameters})

    assert active() == ["Terminal two"]
    activate(window_name="terminal ONE")
    assert active() == ["Terminal one"]
    activate(window_name="terminal two", strict=True)  # strict is case-sensitive: nothing is found
    assert active() == ["Terminal one"]
    activate(window_name="Terminal two", strict=True)
    assert active() == ["Terminal two"]
    activate(window_name="xterm.XTerm", by_class=True)
    assert active() == ["Terminal one"]
    for name in ("one", "two"):
        desktop.setup({"type": "close_window", "parameters": {"window_name": f"Terminal {name}"}})
    assert desktop.windows() == []


def test_a_screen_that_keeps_changing_ends_at_the_deadline(desktop: LocalDesktop, guest: Guest) -> None:
    command = ["xterm", "-e", "while true; do date +%N; sleep 0.02; done"]
    first = desktop.screenshot().png
    desktop.setup({"type": "launch", "parameters": {"command": command, "window": True}})
    shown, start = desktop.screenshot().png, time.monotonic()
    while desktop.screenshot().png in (first, shown):  # on a loaded machine the shell starts after its window is there
        assert time.monotonic() - start < 20.0
    start = time.monotonic()
    reply = guest.post("/observe", json={"quiet": 0.9, "deadline": 1.0})
    assert reply.headers["X-Still"] == "0"
    assert 1.0 <= time.monotonic() - start < 5.0
    desktop.setup({"type": "close_window", "parameters": {"window_name": "xterm", "by_class": True}})
    assert guest.post("/observe", json={"quiet": 0.1, "deadline": 5.0}).headers["X-Still"] == "1"
