"""Getters on test doubles of a desktop, a guest server and Chrome, with values worked out by hand."""

import json
import sqlite3
import subprocess
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from file_desktop import FileDesktop

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, CommandResult

PROFILE = "/home/user/.config/google-chrome/Default"
STATE = "/home/user/.config/google-chrome/Local State"
TREE = """<desktop-frame xmlns:st="https://accessibility.ubuntu.example.org/ns/state"><application name="Google Chrome">
<frame><entry name="Address and search bar" st:visible="true">a.org/x?q=1,2&amp;r=b</entry></frame></application>
<application name="Other"><entry name="Address and search bar">no</entry></application></desktop-frame>"""


def get(desktop: FileDesktop, kind: str, **config):
    task = Task(id="t", instruction="i", evaluator={"func": "infeasible"})
    run = TaskRun(task, desktop, FileCache(Path("/nonexistent"), offline=True, also=()), {})
    return GETTERS[kind](run, {"type": kind, **config})


def profile(**preferences) -> FileDesktop:
    return FileDesktop({f"{PROFILE}/Preferences": json.dumps(preferences).encode()})


class Guest(BaseHTTPRequestHandler):
    """A guest server, VLC's web interface and Chrome's list of tabs at one port; records the requests."""

    def _answer(self, body, status=200):
        self.server.told.append((self.path, self.headers.get("Authorization")))
        self.send_response(status)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        tab = {"id": "1", "type": "page", "url": "https://a.org/x?q=1,2&r=b", "title": "A"}
        answers = {
            "/accessibility": {"AT": TREE},
            "/terminal": {"output": "$ ls\n", "status": "success"},
            "/json/list": [tab, {"id": "2", "type": "worker", "url": "u", "title": ""}],
            "/requests/status.xml": b"<root><state>playing</state></root>",
        }
        self._answer(answers[self.path], self.server.status)

    def do_POST(self):
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/window_size" and form == "app_class_name=vlc":
            self._answer({"width": 10, "height": 20})
        elif self.path == "/wallpaper":
            self._answer(b"PNG")
        else:
            self._answer({"error": "none"}, 404)

    def log_message(self, *args): ...


@pytest.fixture
def guest():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guest)
    server.told, server.status = [], 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def at(guest) -> FileDesktop:
    address = guest.server_address
    return FileDesktop(server=(f"http://127.0.0.1:{address[1]}", "secret"), ports={9222: address, 8080: address})


@pytest.mark.parametrize(
    ("kind", "preferences", "value", "unset"),
    [
        (
            "default_search_engine",
            {"default_search_provider_data": {"template_url_data": {"short_name": "Bing"}}},
            "Bing",
            "Google",
        ),
        ("profile_name", {"profile": {"name": "Thomas"}}, "Thomas", None),
        ("enable_do_not_track", {"enable_do_not_track": True}, "true", "false"),
        ("enable_safe_browsing", {"safebrowsing": {"enhanced": True}}, "true", "false"),
        ("enable_enhanced_safety_browsing", {"safebrowsing": {"enabled": True}}, "false", "Google"),
        ("new_startup_page", {"session": {"restore_on_startup": 4}}, "false", "Google"),
        ("new_startup_page", {"session": {"restore_on_startup": 5}}, "true", "Google"),
        ("new_startup_page", {"other": 1}, "true", "Google"),
        ("data_delete_automacally", {"profile": {"default_content_setting_values": {}}}, "true", "Google"),
        ("data_delete_automacally", {"profile": {}}, "false", "Google"),
        ("find_unpacked_extension_path", {"extensions": {"settings": {"a": {"path": "/x"}}}}, ["/x"], "Google"),
        ("find_unpacked_extension_path", {"extensions": {"settings": {"a": {}}}}, "Google", "Google"),
        (
            "find_installed_extension_name",
            {"extensions": {"settings": {"a": {"manifest": {"name": "N"}}}}},
            ["N"],
            "Google",
        ),
    ],
)
def test_chromes_preferences(kind, preferences, value, unset):
    assert get(profile(**preferences), kind) == value
    assert get(FileDesktop(), kind) == unset


def test_chromes_other_files(tmp_path):
    assert get(FileDesktop(), "chrome_font_size") == {"default_fixed_font_size": 13, "default_font_size": 16}
    assert get(profile(), "chrome_font_size")["minimum_font_size"] == 13
    assert get(profile(webkit={"webprefs": {"default_font_size": 20}}), "chrome_font_size") == {"default_font_size": 20}
    state = {"intl": {"app_locale": "xh"}, "browser": {"enabled_labs_experiments": ["a@1"]}}
    desktop = FileDesktop({STATE: json.dumps(state).encode(), f"{PROFILE}/Bookmarks": b'{"roots": {"x": 1}}'})
    assert get(desktop, "chrome_language") == "xh"
    assert get(FileDesktop(), "chrome_language") == "en-US"
    assert get(desktop, "enabled_experiments") == ["a@1"]
    assert get(desktop, "bookmarks") == {"x": 1}
    assert get(FileDesktop(), "bookmarks") == []
    store = sqlite3.connect(tmp_path / "store")
    store.execute("CREATE TABLE urls (url, title, last_visit_time)")
    store.execute("CREATE TABLE cookies (creation, host_key)")
    store.execute("INSERT INTO urls VALUES ('u', 't', 5)")
    store.execute("INSERT INTO cookies VALUES (1, '.a.org')")
    store.commit()
    store.close()
    data = (tmp_path / "store").read_bytes()
    desktop = FileDesktop({f"{PROFILE}/History": data, f"{PROFILE}/Cookies": data})
    assert get(desktop, "history") == [("u", "t", 5)]
    assert get(desktop, "cookie_data") == [(1, ".a.org")]
    assert get(FileDesktop({f"{PROFILE}/History": b"torn" * 99}), "history") is None
    assert get(FileDesktop(), "cookie_data") is None


def test_shortcuts_and_folders():
    tree = {"type": "directory", "name": "Desktop", "children": [{"name": "a.desktop"}, {"name": "b.txt"}]}
    answer = CommandResult(0, json.dumps(tree), "")
    desktop = FileDesktop({"/home/user/Desktop/a.desktop": b"Name=A\n"}, commands={"python3": answer})
    assert get(desktop, "shortcuts_on_desktop") == {"a.desktop": "Name=A\n"}
    assert get(desktop, "list_directory", path="/x") == tree
    with pytest.raises(FileNotFoundError):
        get(FileDesktop(commands={"python3": CommandResult(1, "", "no")}), "list_directory", path="/x")


def test_what_the_guest_knows(guest):
    desktop = at(guest)
    assert get(desktop, "accessibility_tree") == TREE
    assert get(desktop, "vm_terminal_output") == "$ ls\n"
    assert get(desktop, "vm_window_size", app_class_name="vlc") == {"width": 10, "height": 20}
    assert get(desktop, "vm_window_size", app_class_name="gimp") is None
    assert get(desktop, "vm_wallpaper") == b"PNG"
    assert {token for _, token in guest.told} == {"Bearer secret"}
    with pytest.raises(TaskError, match="'accessibility_tree' asks a guest server"):
        get(FileDesktop(), "accessibility_tree")


def test_links_to_a_folder_around_them_are_listed_once(tmp_path):
    """Two of them, each of which contains both, would keep the listing busy until its deadline."""

    class Here(FileDesktop):
        def run(self, command, *, shell=False, timeout=30.0):
            done = subprocess.run(command, shell=shell, timeout=timeout, capture_output=True, text=True, check=False)
            return CommandResult(done.returncode, done.stdout, done.stderr)

    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(tmp_path)
    found = get(Here(), "list_directory", path=str(tmp_path))
    assert {node["name"]: len(node["children"]) for node in found["children"]} == {"one": 0, "real": 1, "two": 0}
    through = get(Here(), "list_directory", path=str(tmp_path / "one"))
    assert [node["name"] for node in through["children"]] == ["one", "real", "two"]


def test_chrome_as_it_runs(guest):
    desktop = at(guest)
    assert get(desktop, "open_tabs_info") == [{"title": "A", "url": "https://a.org/x?q=1,2&r=b"}]
    assert get(desktop, "active_url_from_accessTree") == "https://a.org/x?q=1,2&r=b"
    assert get(desktop, "active_url_from_accessTree", goto_prefix="") == "a.org/x?q=1,2&r=b"
    assert get(desktop, "active_tab_info") == {"title": "A", "url": "https://a.org/x?q=1,2&r=b"}
    parsed = get(desktop, "active_tab_url_parse", parse_keys=["q", "r", "z"], replace={"r": "s"}, split_list=True)
    assert parsed == {"q": ["1", "2"], "s": ["b"], "z": [""]}


def test_vlc(guest):
    assert get(at(guest), "vlc_playing_info", dest="x") == b"<root><state>playing</state></root>"
    assert guest.told[-1] == ("/requests/status.xml", "Basic " + b64encode(b":password").decode())
    guest.status = 401  # the policy has changed the password
    with pytest.raises(FileNotFoundError, match="status 401"):
        get(at(guest), "vlc_playing_info", dest="x")
    guest.status = 503
    with pytest.raises(DesktopError, match="status 503"):
        get(at(guest), "vlc_playing_info", dest="x")
    with pytest.raises(DesktopError, match="VLC does not answer") as caught:
        get(unanswered(8080, listening=True), "vlc_playing_info", dest="x")
    assert caught.value.reason is FailureReason.evaluator_failed
    with pytest.raises(TaskError, match="port 8080, which this provider does not forward"):
        get(FileDesktop(), "vlc_playing_info", dest="x")
    assert get(FileDesktop({"/home/user/.config/vlc/vlcrc": b"x=1"}), "vlc_config", dest="x") == b"x=1"
    with pytest.raises(FileNotFoundError):
        get(FileDesktop(), "vlc_config", dest="x")


def unanswered(port: int, *, listening: bool) -> FileDesktop:
    """A desktop whose forwarded port has no server; ``listening``: what a probe inside the desktop reports."""
    probe = CommandResult(0 if listening else 1, "", "")
    return FileDesktop(ports={port: ("127.0.0.1", 9)}, commands={"python3": probe})


@pytest.mark.parametrize(("port", "getter"), [(8080, "vlc_playing_info"), (9222, "open_tabs_info")])
def test_an_application_that_the_policy_closed_is_a_missing_result(port, getter):
    with pytest.raises(FileNotFoundError):
        get(unanswered(port, listening=False), getter, dest="x")
    with pytest.raises(DesktopError):
        get(unanswered(port, listening=True), getter, dest="x")
    gone = unanswered(port, listening=True)
    gone.commands["python3"] = DesktopError(FailureReason.died, "the desktop is gone")
    with pytest.raises(DesktopError) as caught:
        get(gone, getter, dest="x")
    assert caught.value.reason is FailureReason.died


def test_other_programs():
    gimp = FileDesktop({"/home/user/.config/GIMP/2.10/gimprc": b"(theme)"})
    assert get(gimp, "gimp_config_file", file_name="gimprc", dest="x") == b"(theme)"
    code = FileDesktop({"/out.txt": b"dark"})
    assert get(code, "vscode_config", vscode_extension_command="Say", path="/out.txt", dest="x") == b"dark"
    assert code.performed == [
        Action("hotkey", key="ctrl shift p"),
        Action("type", content="Say"),
        Action("hotkey", key="enter"),
    ]


@pytest.mark.parametrize(("said", "player"), [("a.desktop\nb.desktop\nb.desktop\n", "b.desktop\n"), ("", "unknown")])
def test_the_default_video_player_is_the_most_common(said, player):
    class Asked(FileDesktop):
        def run(self, command, *, shell=False, timeout=30.0):  # noqa: ARG002
            assert shell
            assert command.count("xdg-mime query default video/") == 43
            return CommandResult(0, said, "")

    assert get(Asked(), "default_video_player") == player


@pytest.mark.parametrize(
    ("kind", "config"),
    [("vm_command_line", {"command": "x"}), ("vm_command_error", {"command": ["x"]}), ("default_video_player", {})],
)
def test_a_command_has_as_long_as_in_osworlds_server(kind, config):
    class Slow(FileDesktop):
        def run(self, command, *, shell=False, timeout=30.0):  # noqa: ARG002
            if timeout < 119:
                raise DesktopError(FailureReason.hung, "the command ran for 119 s")
            return CommandResult(0, "said", "said")

    assert get(Slow(), kind, **config) == "said"


def test_a_spreadsheets_last_row_is_left_to_osworld():
    assert get(FileDesktop({"/a.txt": b"text"}), "content_from_vm_file", path="/a.txt") == "text"
    with pytest.raises(TaskError, match="requires OSWorld's evaluators"):
        get(FileDesktop(), "content_from_vm_file", path="/a.xlsx", file_type="xlsx", file_content="last_row")


def test_several_files_of_which_one_is_missing():
    several = {"path": ["/a", "/b"], "dest": ["a", "b"], "multi": True, "gives": [0, 1]}
    assert get(FileDesktop({"/b": b"1"}), "vm_file", **several) == [None, b"1"]
