"""The home template without a desktop: finding, versions, settings, package lists; and the command's output."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from osworld_gym.cli import main
from osworld_gym.desktops.home_template import apt
from osworld_gym.desktops.home_template import find as template
from osworld_gym.desktops.home_template.applications import APPS
from osworld_gym.desktops.home_template.build import _OUT
from osworld_gym.desktops.home_template.find import find_template, template_folder, template_version
from osworld_gym.desktops.home_template.settings import SEEDS, fix_profiles, libreoffice, vlc
from osworld_gym.errors import DesktopError

VERSIONS = {"calc": "7.4", "vlc": "3.0"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two applications and no template."""
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(template, "packages", lambda: VERSIONS)


def test_a_template_is_found_by_the_packages_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_template() is None
    version = template_version()
    (template_folder(version) / "home").mkdir(parents=True)
    found = find_template()
    assert found is not None
    assert (found.path, found.version) == (template_folder(version) / "home", version)
    monkeypatch.setattr(template, "packages", lambda: VERSIONS | {"vlc": "3.1"})
    assert template_version() != version
    assert find_template() is None


def test_what_it_is_made_from_is_part_of_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = template_version()
    extra = tmp_path / "recipe.py"
    extra.write_text("another line")
    monkeypatch.setattr(template, "_RECIPE", (*template._RECIPE, extra))
    assert template_version() != before


def test_libreoffices_settings_are_xml_with_the_version() -> None:
    root = xml.etree.ElementTree.fromstring(libreoffice("7.4"))
    path = "{http://openoffice.org/2001/registry}path"
    named = {(item.get(path), prop.get(path.replace("path", "name"))): prop[0].text for item in root for prop in item}
    assert named[("/org.openoffice.Setup/Product", "ooSetupLastVersion")] == "7.4"
    assert named[("/org.openoffice.Office.Common/Misc", "ShowTipOfTheDay")] == "false"


def test_vlcs_options_are_set_and_a_missing_one_is_named() -> None:
    names = ("qt-privacy-ask", "metadata-network-access", "http-password", "http-port", "extraintf")
    text = vlc("".join(f"# a line about {name}\n#{name}=something\n\n" for name in names))
    assert "\nhttp-password=password\n" in text
    assert "\nhttp-port=8080\n" in text
    assert "#http-port=" not in text
    with pytest.raises(ValueError, match="qt-privacy-ask"):
        vlc("")


def test_cleaning_removes_what_identifies_a_machine(tmp_path: Path) -> None:
    chrome = tmp_path / ".config/google-chrome"
    (chrome / "Default").mkdir(parents=True)
    preferences = {
        "profile": {"exit_type": "Crashed", "default_content_setting_values": {"cookies": 1}, "name": "Person 1"},
        "enterprise_profile_guid": "x",
        "google": {"services": {"signin_scoped_device_id": "y"}},
    }
    (chrome / "Default/Preferences").write_text(json.dumps(preferences))
    (chrome / "Local State").write_text(json.dumps({"user_experience_metrics": {"client_id2": "z"}, "kept": 1}))
    session = tmp_path / ".config/GIMP/2.10/sessionrc"
    session.parent.mkdir(parents=True)
    session.write_text('(position 200 620)\n(aux-info (maximized "no"))\n')
    fix_profiles(tmp_path)
    kept = json.loads((chrome / "Default/Preferences").read_text())
    assert kept["profile"] == {"exit_type": "Normal", "exited_cleanly": True, "name": "Person 1"}
    assert "enterprise_profile_guid" not in kept
    assert kept["default_search_provider_data"]["template_url_data"]["short_name"] == "Google"
    assert kept["google"] == {}
    assert json.loads((chrome / "Local State").read_text()) == {"kept": 1}
    assert session.read_text() == '(position 0 0)\n(aux-info (maximized "yes"))\n'


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        (".cache/thumbnails/x.png", True),
        (".config/google-chrome/SingletonLock", True),
        (".config/google-chrome/Default/History", False),
        (".config/google-chrome/Default/History-journal", True),
        (".config/google-chrome/Default/Sessions/Tabs_1", True),
        (".thunderbird/a.default/.parentlock", True),
        (".thunderbird/a.default/prefs.js", False),
        (".thunderbird/a.default/Mail/Local Folders/Trash", False),
        ("thunderbird", True),
        (".config/libreoffice/4/.lock", True),
        (".config/libreoffice/4/user/registrymodifications.xcu", False),
        (".config/chromium/Crash Reports/x", True),
        (".config/pulse/cookie", True),
        (".config/pulse/default.pa", False),
        ("Documents", False),
    ],
)
def test_what_is_left_out(path: str, left_out: bool) -> None:
    assert bool(_OUT.search(path)) is left_out


def test_the_lists_hold_every_applications_package_once() -> None:
    names = apt.required()
    assert len(names) == len(set(names))
    assert {app.package for app in APPS} <= set(names)
    assert all(name == name.strip().lower() for name in names)


def test_seeds_lie_inside_home() -> None:
    assert all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in SEEDS)


def test_without_debian_the_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DesktopError, match="libreoffice-calc"):
        apt.missing(apt.required())


def _fake_debian(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where every package but gimp and vlc is installed, and whose apt only simulates."""
    there = "".join(f"{name} installed\n" for name in apt.required() if name not in ("gimp", "vlc"))
    programs = {
        "dpkg-query": f"cat <<'E'\n{there}vlc not-installed\nE",
        "apt-get": "case $* in *--simulate*) printf 'Inst %s (1)\\n' gimp vlc libx;; *) exit 9;; esac",
        "apt-cache": "printf 'Package: x\\nInstalled-Size: 2000\\nSize: 500000\\n\\n%.0s' 1 2 3",
    }
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_install_desktop_explains_and_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake_debian(tmp_path / "debian", monkeypatch)
    monkeypatch.setattr("osworld_gym.commands.install.MODULES", ("json",))  # the guest's may be missing here
    assert main(["install-desktop", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "2 of " in said
    assert "gimp vlc" in said or "vlc gimp" in said
    assert "would add 3, 2 MB to fetch, 6 MB on disk" in said
    assert str(tmp_path / "data/template") in said
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["install-desktop", "--yes"]) == 3
    assert "sudo apt-get install -y --no-install-recommends" in capsys.readouterr().err
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["install-desktop"]) == 2  # not a terminal, so no confirmation is possible
    assert main(["install-desktop", "--yes"]) == 3  # apt fails
    assert "apt-get install ended with status 9" in capsys.readouterr().err
    monkeypatch.setattr("osworld_gym.desktops.home_template.apt.INSTALL", ("true",))
    monkeypatch.setenv("SUDO_USER", "somebody")
    monkeypatch.setattr("osworld_gym.desktops.home_template.apt.plan", lambda _: apt.Plan((), 0, 0))
    assert main(["install-desktop", "--yes"]) == 0  # packages only: desktops are not run as root
    assert "without sudo" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()
