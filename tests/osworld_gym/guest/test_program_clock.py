"""LibreOffice's faster clock: what it is given, and how fast a program's clock is found to be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.guest.process import program_clock
from osworld_gym.guest.process.program_clock import clock_rate, office_clock
from osworld_gym.guest.process.reaction import HORIZON, Reaction

#: value of FAKETIME → the rate of the clock; a policy may set any value
RATES = (
    *(("+0 x4", 4.0), ("+0 x2.5", 2.5), ("-1d", 1.0)),
    *(("+0 x0", 1.0), ("+0 x.", 1.0), ("+0 x1.2.3", 1.0), ("+0 x999", 10.0), ("+0 x" + "9" * 400, 1.0)),
)
FIX = "libfaketime or the template of the desktop's HOME is missing; fix: osworld-gym install-desktop"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "libfaketime.so.1"
    made.touch()
    monkeypatch.setattr(program_clock, "_LIBRARIES", (str(tmp_path / "lib*"),))
    return made


def test_the_clock_is_faster_where_the_library_is(library: Path) -> None:
    expected = {"OSWORLD_GYM_OFFICE_CLOCK": "4", "OSWORLD_GYM_FAKETIME": str(library)}
    assert office_clock(4.0) == expected
    assert office_clock(2.5)["OSWORLD_GYM_OFFICE_CLOCK"] == "2.5"
    assert office_clock(1) == {}, "the machine's clock"
    library.unlink()
    assert office_clock(4.0) == {}, "the library is not installed"


@pytest.mark.parametrize("rate", [0.5, 0.0, -1.0, 11.0, float("nan")])
def test_a_useless_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"office_clock: expected 1 .* to 10 times as fast, got"):
        office_clock(rate)
    with pytest.raises(ValueError, match="office_clock"):
        LocalDesktop(office_clock=rate)


def test_the_rate_of_a_program_is_that_of_its_environment() -> None:
    command = [sys.executable, "-c", "print(1, flush=True); input()"]
    assert clock_rate(os.getpid()) == 1.0
    for value, rate in RATES:
        env = os.environ | {"FAKETIME": value}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
            assert child.stdout is not None
            child.stdout.readline()
            try:
                assert clock_rate(child.pid) == rate
                (program,) = Reaction(lambda pid=child.pid: [pid], lambda: [])._seen.values()
                assert program.horizon == pytest.approx(HORIZON / rate)
            finally:
                child.kill()
    assert clock_rate(child.pid) == 1.0, "it has ended"


@pytest.mark.apps
def test_libreoffice_has_the_faster_clock_and_nothing_else_has() -> None:
    template, environment = find_template(), office_clock(4.0)
    if template is None or not environment:
        pytest.fail(FIX)
    script = "for pid in $(pgrep -x NAME); do tr '\\0' '\\n' </proc/$pid/environ | grep ^FAKETIME=; done"
    for rate, expected in ((4.0, "FAKETIME=+0 x4"), (1.0, "")):
        with LocalDesktop(template=template.path, office_clock=rate) as desktop:
            desktop.reset(0)
            for command in (["soffice", "--calc"], ["mousepad"]):
                desktop.setup({"type": "launch", "parameters": {"command": command, "window": True}})
            assert desktop.run(script.replace("NAME", "soffice.bin"), shell=True).output.strip() == expected
            assert desktop.run(script.replace("NAME", "mousepad"), shell=True).output == ""
            assert desktop.run("pgrep -xc soffice.bin", shell=True).output.strip() == "1"


@pytest.mark.apps
def test_a_program_with_that_clock_sleeps_a_quarter_as_long() -> None:
    environment = office_clock(4.0)
    if not environment:
        pytest.fail(FIX)
    code = "import time; a, b = time.monotonic(), time.time(); time.sleep(2); "
    code += "print(time.monotonic() - a, time.time() - b)"
    faster = {"LD_PRELOAD": environment["OSWORLD_GYM_FAKETIME"], "FAKETIME": "+0 x4", "NO_FAKE_STAT": "1"}
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | faster, capture_output=True, text=True)
    assert time.monotonic() - start < 1.9, "half a second, and the start of Python"
    assert [float(word) for word in done.stdout.split()] == pytest.approx([2.0, 2.0], abs=1.0), done.stderr
