"""``osworld-gym doctor --packages``: what is missing, with the command that installs it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from osworld_gym.cli import main
from osworld_gym.commands import doctor
from osworld_gym.desktops.home_template import apt


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The programs that the machine has; packages are those that a test gives to :func:`installed`."""
    found = {"bwrap", "Xvfb", "openbox", "dbus-daemon", "mousepad", "pcmanfm", "xterm", "dpkg-query"}
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}" if name in found else None)
    return found


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    def missing(asked: Sequence[str]) -> list[str]:
        return [package for package in asked if package not in packages]

    monkeypatch.setattr(apt, "missing", missing)


FILES = (
    "libglib2.0-bin", "shared-mime-info", "adwaita-icon-theme", "librsvg2-common", "fonts-dejavu-core",
)  # fmt: skip


@pytest.mark.usefixtures("programs")
def test_all_are_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    installed(monkeypatch, *FILES)
    assert main(["doctor", "--packages"]) == 0
    assert "all 12 packages of a real desktop are installed" in capsys.readouterr().out


def test_missing_ones_are_named_with_the_command_and_status_2(
    programs: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, *FILES[1:], "mousepad")
    programs -= {"bwrap", "mousepad"}  # mousepad's package is there, its program under another path
    assert main(["doctor", "--packages"]) == 2
    error = capsys.readouterr().err
    assert "a real desktop lacks 2 of 12 packages: bubblewrap libglib2.0-bin" in error
    assert (
        "fix: sudo apt-get update && sudo apt-get install -y --no-install-recommends bubblewrap libglib2.0-bin" in error
    )


@pytest.mark.parametrize("option", [["--provider", "local"], ["--checks"]])
def test_options_of_providers_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--packages", *option]) == 2
    assert "looks at the Debian packages only; leave --provider and --checks out" in capsys.readouterr().err


def test_without_dpkg_only_programs_are_looked_for(programs: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    programs -= {"dpkg-query"}
    assert main(["doctor", "--packages"]) == 0
    programs -= {"Xvfb"}
    assert main(["doctor", "--packages"]) == 2
    assert "lacks 1 of 12 packages: xvfb" in capsys.readouterr().err
