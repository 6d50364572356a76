"""The shims as shell scripts, on the host with fake programs; requires no desktop."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from osworld_gym.guest.home import make_home
from osworld_gym.guest.shims import HERE, SCRIPTS, set_up

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of fake programs that print how they were called."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("libreoffice", "localc", "pkill", "killall"):
        (folder / name).write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def run(tmp_path: Path, programs: Path) -> Run:
    """Runs a command line with the shims first on PATH."""
    private = tmp_path / "private"
    private.mkdir()
    # as in an image with the shims on PATH: they must not call themselves
    path = f"{HERE}/bin:{programs}:/usr/bin:/bin"
    env = {"HOME": str(tmp_path), "USER": "user", "XDG_RUNTIME_DIR": str(tmp_path), **set_up(private, path)}

    def call(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", line]
        return subprocess.run(
            command, env=env | more, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )

    return call


def test_every_script_can_be_run() -> None:
    scripts = sorted((HERE / "bin").iterdir())
    assert {script.name for script in scripts} >= set(SCRIPTS)
    for script in scripts:
        assert os.access(script, os.X_OK), f"{script} is not executable"
        assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


def test_a_shim_is_there_when_its_program_is(run: Run) -> None:
    assert run("command -v localc").stdout.endswith("/private/bin/localc\n")
    assert run("command -v lowriter").stdout == "" or Path("/usr/bin/lowriter").exists()
    assert run("command -v code").returncode != 0 or Path("/usr/bin/code").exists()


def test_libreoffice_gets_no_splash_and_its_own_name(run: Run) -> None:
    assert run("libreoffice --calc 'a b.xlsx'").stdout == "libreoffice --nologo --calc a b.xlsx\n"
    assert run("localc x").stdout == "localc --nologo x\n"


def test_libreoffice_gets_a_faster_clock_but_a_conversion_does_not(run: Run, programs: Path) -> None:
    # not an existing library: the linker only warns about it
    (programs / "localc").write_text('#!/bin/sh\necho "$LD_PRELOAD" "$FAKETIME" "$NO_FAKE_STAT"\n')
    faster = {"OSWORLD_GYM_FAKETIME": "/no/faketime.so", "OSWORLD_GYM_OFFICE_CLOCK": "4"}
    assert run("localc x", **faster).stdout == "/no/faketime.so +0 x4 1\n"
    assert run("localc --headless --convert-to pdf x", **faster).stdout.strip() == ""
    assert run("localc x").stdout.strip() == ""


def test_pkill_chrome_means_chromium_too(run: Run) -> None:
    assert run("pkill chrome").stdout == "pkill chrom(e|ium)\n"
    assert run("pkill -9 google-chrome").stdout == "pkill -9 chrom(e|ium)\n"
    assert run("killall chrome").stdout == "killall chromium\n"
    assert run("pkill vlc; pkill -f 'chrome --x'").stdout == "pkill vlc\npkill -f chrome --x\n"


@pytest.mark.parametrize("option", ["-S", "-kS", "--stdin", "-S -u root", "-S -p ''"])
def test_sudo_reads_the_password_and_leaves_the_rest_of_stdin(run: Run, option: str) -> None:
    said = run(f"printf 'password\\nrest\\n' | sudo {option} cat")
    assert (said.returncode, said.stdout) == (0, "rest\n")


def test_sudo_accepts_the_password_that_serve_has_set(run: Run) -> None:
    run("mkdir -p ~/.config && echo -n 's3 cret' > ~/.config/osworld-gym-password")
    assert run("echo 's3 cret' | sudo -S echo done").stdout == "done\n"
    assert run("echo password | sudo -S echo done").returncode == 1


def test_sudo_with_a_wrong_password_does_nothing(run: Run, tmp_path: Path) -> None:
    said = run(f"echo Password | sudo -S touch {tmp_path}/made")
    assert (said.returncode, said.stdout) == (1, "")
    assert "incorrect password" in said.stderr
    assert not (tmp_path / "made").exists()


def test_sudo_passes_status_arguments_and_variables(run: Run) -> None:
    assert run("echo password | sudo -S sh -c 'exit 7'").returncode == 7
    assert run("echo password | sudo -S A='1 2' sh -c 'echo \"$A\"'").stdout == "1 2\n"


def test_apt_knows_what_is_there_and_fails_for_what_is_not(run: Run) -> None:
    there = run("echo password | sudo -S apt update -y && echo password | sudo -S apt install -y localc")
    assert (there.returncode, there.stdout) == (0, "localc is already the newest version.\n")
    missing = run("echo password | sudo -S apt-get install -y localc no-such-package")
    assert missing.returncode == 100
    assert "Unable to locate package no-such-package" in missing.stderr


def test_timedatectl_in_the_form_that_osworld_reads(run: Run) -> None:
    """Source: OSWorld's metric ``is_utc_0``, which checks the end of the fourth line."""
    assert run("timedatectl", TZ="UTC").stdout.split("\n")[3].endswith("Etc/UTC (UTC, +0000)")
    assert run("timedatectl set-timezone Europe/Berlin").returncode == 0
    assert "Europe/Berlin" in run("timedatectl status").stdout.split("\n")[3]
    for wrong in ("Nowhere/Town", "", "../../../etc/passwd", "/etc/passwd"):
        assert run(f"timedatectl set-timezone '{wrong}'").returncode == 1
    assert run("timedatectl show").stdout == "Timezone=Europe/Berlin\n"


def test_a_bare_home_names_only_applications_that_are_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_home(home)
    entries = (Path("/usr/share/applications"), HERE / "share/applications")
    lines = (home / ".config/mimeapps.list").read_text().splitlines()
    assert lines[0] == "[Default Applications]"
    for line in lines[1:]:
        kind, _, entry = line.partition("=")
        assert any((folder / entry).exists() for folder in entries), f"{kind}: {entry} is not installed"
        assert entry != "vlc.desktop"
