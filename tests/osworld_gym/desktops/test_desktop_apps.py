"""The full desktop: every application opens with OSWorld's setup steps, without dialogs, in OSWorld's environment."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageChops
from polling import until

from osworld_gym.desktops.home_template import apt
from osworld_gym.desktops.home_template.applications import APPS, App
from osworld_gym.desktops.home_template.build import build_template
from osworld_gym.desktops.home_template.find import Template
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.types import Action

pytestmark = [pytest.mark.apps, pytest.mark.timeout(600)]

SIZE = (1920, 1080)
DEADLINE = 90.0  # seconds for a window on a busy machine
CARET = (4, 48)  # (width, height) of a blinking caret in pixels
DOCUMENTS = "/home/user/Documents"

_FLAT = """<?xml version="1.0"?>
<office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" office:version="1.2"
 office:mimetype="application/vnd.oasis.opendocument.presentation"><office:body><office:presentation>
<draw:page draw:name="one"/></office:presentation></office:body></office:document>"""


@pytest.fixture(scope="session")
def template() -> Template:
    """This machine's template; built on first use."""
    lacking = apt.missing(apt.required())
    assert not lacking, f"these tests require packages; fix: {' '.join([*apt.INSTALL, *lacking])}"
    return build_template(lambda: LocalDesktop(*SIZE, template=None), print)


@pytest.fixture
def desktop(template: Template) -> Iterator[LocalDesktop]:
    with LocalDesktop(*SIZE, template=template.path) as made:
        made.reset(0)
        yield made


def titles(desktop: LocalDesktop) -> list[str]:
    return [window["title"] for window in desktop.windows()]


def check_alone_and_still(desktop: LocalDesktop, title: str) -> None:
    """Exactly one active window with that title, no dialog, and a screen on which only a caret changes."""
    until(lambda: any(title in name for name in titles(desktop)), f"no window titled {title!r}")
    until(lambda: rests(desktop), "the screen did not come to rest")
    [window] = desktop.windows()
    assert title in window["title"]
    assert window["active"]


def rests(desktop: LocalDesktop) -> bool:
    """Whether only a caret changes for two seconds."""
    desktop.wait_still(10.0)
    before = desktop.screenshot().pixels
    time.sleep(2.0)  # the absence of changes has no event
    after = desktop.screenshot().pixels
    box = ImageChops.difference(Image.fromarray(before), Image.fromarray(after)).getbbox()
    return box is None or (box[2] - box[0] <= CARET[0] and box[3] - box[1] <= CARET[1])


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_launch_shows_one_still_window(desktop: LocalDesktop, app: App) -> None:
    desktop.setup({"type": "launch", "parameters": {"command": list(app.command)}})
    check_alone_and_still(desktop, app.title)


@pytest.fixture(scope="module")
def office(template: Template) -> dict[str, bytes]:
    """Files in the office formats, by suffix, created by LibreOffice."""
    sources = {"docx": ("txt", "one line\n"), "xlsx": ("csv", "a,b\n1,2\n"), "pptx": ("fodp", _FLAT)}
    with LocalDesktop(*SIZE, template=template.path) as made:
        made.reset(0)
        out = {}
        for kind, (source, text) in sources.items():
            made.write_file(f"/tmp/made.{source}", text.encode())
            command = f"libreoffice --headless --convert-to {kind} --outdir /tmp /tmp/made.{source}"
            said = made.run(command, shell=True, timeout=DEADLINE)
            assert said.returncode == 0, said.error
            out[kind] = made.read_file(f"/tmp/made.{kind}")
    return out


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("docx", "report.docx - LibreOffice Writer"),
        ("xlsx", "report.xlsx - LibreOffice Calc"),
        ("pptx", "report.pptx - LibreOffice Impress"),
    ],
)
def test_open_shows_office_files(desktop: LocalDesktop, office: dict[str, bytes], kind: str, title: str) -> None:
    desktop.write_file(f"{DOCUMENTS}/report.{kind}", office[kind])
    desktop.setup({"type": "open", "parameters": {"path": f"{DOCUMENTS}/report.{kind}"}})
    check_alone_and_still(desktop, title)


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), "teal").save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "title"),
    [
        ("notes.txt", b"one line\n", "notes.txt - Mousepad"),
        ("page.html", b"<title>page.html</title><p>hello", "page.html - "),
        ("picture.png", _png(), "picture.png"),
    ],
)
def test_open_shows_other_files(desktop: LocalDesktop, name: str, data: bytes, title: str) -> None:
    desktop.write_file(f"{DOCUMENTS}/{name}", data)
    desktop.setup({"type": "open", "parameters": {"path": f"{DOCUMENTS}/{name}"}})
    check_alone_and_still(desktop, title)


def test_gimp_opens_a_picture_without_asking(desktop: LocalDesktop) -> None:
    desktop.write_file("/home/user/Desktop/picture.png", _png())
    desktop.setup({"type": "launch", "parameters": {"command": ["gimp", "/home/user/Desktop/picture.png"]}})
    check_alone_and_still(desktop, "[picture]")


def test_the_terminal_opens_by_its_keys_and_is_titled_as_osworlds(desktop: LocalDesktop) -> None:
    desktop.perform([Action("hotkey", key="ctrl alt t")])
    until(lambda: "user@user-virtual-machine: ~" in titles(desktop), "no terminal")
    desktop.perform([Action("type", content="cd Documents\n")])
    until(lambda: "user@user-virtual-machine: ~/Documents" in titles(desktop), f"its title stays: {titles(desktop)}")


def test_volume_is_at_forty_percent_and_can_be_raised(desktop: LocalDesktop) -> None:
    command = "pulseaudio --start\npactl list sinks | grep '^[[:space:]]Volume:' | head -n 1 | awk '{print $5}'"
    assert desktop.run(command, shell=True).output == "40%\n"
    assert desktop.run("pactl set-sink-volume @DEFAULT_SINK@ 100%", shell=True).returncode == 0
    assert desktop.run(command, shell=True).output == "100%\n"


def test_settings_are_kept_between_programs(desktop: LocalDesktop) -> None:
    name = "org.gnome.desktop.screensaver lock-enabled"
    before = desktop.run(f"gsettings get {name}", shell=True).output
    assert before == "true\n"
    assert desktop.run(f"gsettings set {name} false", shell=True).returncode == 0
    address = "export DBUS_SESSION_BUS_ADDRESS='unix:path=/run/user/1000/bus'\n"
    assert desktop.run(f"{address}gsettings get {name}", shell=True).output == "false\n"


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("text/plain", "org.xfce.mousepad.desktop"),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "libreoffice-writer.desktop"),
        ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "libreoffice-calc.desktop"),
        ("application/vnd.openxmlformats-officedocument.presentationml.presentation", "libreoffice-impress.desktop"),
        ("text/html", "google-chrome.desktop"),
        ("application/pdf", "google-chrome.desktop"),
    ],
)
def test_default_applications(desktop: LocalDesktop, kind: str, entry: str) -> None:
    assert desktop.run(["xdg-mime", "query", "default", kind]).output == f"{entry}\n"


def test_vlc_is_not_the_video_player_until_it_is_made_so(desktop: LocalDesktop) -> None:
    ask = ["xdg-mime", "query", "default", "video/mp4"]
    kinds = "grep ^MimeType /usr/share/applications/vlc.desktop | tr '=;' '\\n' | grep ^video"
    all_of_them = f"for kind in $({kinds}); do xdg-mime query default $kind; done | sort -u"
    assert desktop.run(all_of_them, shell=True).output == "google-chrome.desktop\n"
    assert desktop.run(ask).output == "google-chrome.desktop\n"
    assert desktop.run(["xdg-mime", "default", "vlc.desktop", "video/mp4"]).returncode == 0
    assert desktop.run(ask).output == "vlc.desktop\n"


def test_vlc_answers_on_its_port_with_osworlds_password(desktop: LocalDesktop) -> None:
    desktop.setup({"type": "launch", "parameters": {"command": "VLC_VERBOSE=-1 vlc --no-audio", "shell": True}})
    status = "curl --silent --user :{} --write-out '%{{http_code}}' http://localhost:8080/requests/status.xml"
    until(lambda: desktop.run(status.format("password"), shell=True).returncode == 0, "nobody answers on 8080")
    said = desktop.run(status.format("password"), shell=True).output
    assert said.endswith("200")
    assert "<state>stopped</state>" in said
    assert desktop.run(status.format("wrong"), shell=True).output.endswith("401")


def test_two_desktops_have_chrome_on_the_same_ports(template: Template) -> None:
    with LocalDesktop(*SIZE, template=template.path) as one, LocalDesktop(*SIZE, template=template.path) as two:
        for desktop in (one, two):
            desktop.reset(0)
            for command in (
                ["google-chrome", "--remote-debugging-port=1337"],
                ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"],
            ):
                desktop.setup({"type": "launch", "parameters": {"command": command}})
        seen = [_version(desktop) for desktop in (one, two)]
        assert all(version["Browser"].startswith("Chrome/") for version in seen)
        assert seen[0]["webSocketDebuggerUrl"] != seen[1]["webSocketDebuggerUrl"]
        one.setup({"type": "launch", "parameters": {"command": ["pkill", "chrome"]}})
        until(lambda: not titles(one), "pkill chrome left its window")
        assert titles(two)


def _version(desktop: LocalDesktop) -> dict[str, str]:
    command = ["curl", "--silent", "localhost:9222/json/version"]
    until(lambda: desktop.run(command).returncode == 0, "nobody answers on 9222")
    return dict(json.loads(desktop.run(command).output))


def test_chrome_starts_again_after_it_was_killed_without_asking(desktop: LocalDesktop) -> None:
    launch = {"type": "launch", "parameters": {"command": ["google-chrome"]}}
    desktop.setup(launch)
    until(lambda: titles(desktop), "no window")
    desktop.run(["pkill", "-9", "chrome"])
    until(lambda: not titles(desktop), "it lives")
    desktop.setup(launch)
    check_alone_and_still(desktop, "New Tab")


def test_sudo_takes_the_password_and_nothing_else(desktop: LocalDesktop) -> None:
    told = desktop.run("echo password | sudo -S touch /home/user/made && id -un", shell=True)
    assert (told.returncode, told.output) == (0, "user\n")
    assert desktop.read_file("/home/user/made") == b""
    assert desktop.run("echo wrong | sudo -S touch /home/user/more", shell=True).returncode == 1
    assert desktop.run("ls /home/user/more", shell=True).returncode != 0
    assert desktop.run("echo password | sudo -S apt-get install -y jq", shell=True).returncode == 0
    assert desktop.run("echo password | sudo -S apt-get install -y nothing-of-that-name", shell=True).returncode == 100


def test_the_time_zone_is_shown_and_set(desktop: LocalDesktop) -> None:
    shown = desktop.run("timedatectl status", shell=True).output.split("\n")[3]
    assert shown.endswith("Asia/Hong_Kong (HKT, +0800)")
    assert desktop.run("timedatectl set-timezone Asia/Tokyo", shell=True).returncode == 0
    assert "Asia/Tokyo (JST, +0900)" in desktop.run("timedatectl", shell=True).output
    assert desktop.run("timedatectl set-timezone ../../etc/passwd", shell=True).returncode == 1


def test_programs_publish_their_accessibility_trees(desktop: LocalDesktop) -> None:
    """The AT-SPI bus is running with Chromium, Qt and LibreOffice on it, without any setting by the task."""
    for command in (["google-chrome"], ["vlc"], ["libreoffice", "--calc"]):
        desktop.launch(command, shell=False, window=True)
    script = "import pyatspi\nprint(*(a.name for a in pyatspi.Registry.getDesktop(0)), sep='\\n')\n"
    names: set[str] = set()

    def all_named() -> bool:
        names.update(desktop.run(["/usr/bin/python3", "-c", script]).output.split("\n"))
        return {"Chromium", "vlc", "soffice"} <= names

    until(all_named, f"some are missing: {names}")


def test_template_holds_no_locks_and_no_caches(template: Template) -> None:
    left = [path for path in template.path.rglob("*") if path.name in ("LOCK", ".lock", ".parentlock", "SingletonLock")]
    assert left == []
    assert not (template.path / ".cache").exists()
    assert sum(path.stat().st_size for path in template.path.rglob("*") if path.is_file()) < 30_000_000


def test_building_again_finds_it_and_another_package_set_makes_a_new_one(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> LocalDesktop:
        raise AssertionError("a desktop was asked for")

    assert build_template(never, print) == template
    monkeypatch.setattr("osworld_gym.desktops.home_template.find.packages", lambda: {"calc": "another version"})
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path))
    with pytest.raises(AssertionError):
        build_template(never, print)
    assert list((tmp_path / "template").iterdir()) == []  # a failure leaves nothing behind
