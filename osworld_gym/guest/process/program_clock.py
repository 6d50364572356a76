"""LibreOffice's clock, which runs faster than time by libfaketime, so that its timers are over sooner.

It redraws toolbars, sidebar and status bar by a timer of 300 ms, and other parts by some of 150 ms, long after its work
is done: most of an action's time was spent waiting for them. docs/stillness.md has the measurements.
"""

from __future__ import annotations

import re
from glob import glob

RATE = 4.0  #: LibreOffice's clock against time
SLOWEST, FASTEST = 1.0, 10.0  #: the rates that are allowed
#: environment variables that ``shims/bin/libreoffice`` reads
RATE_VARIABLE, LIBRARY_VARIABLE = "OSWORLD_GYM_OFFICE_CLOCK", "OSWORLD_GYM_FAKETIME"
_LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
_FAKETIME = re.compile(rb"(?:^|\0)FAKETIME=\+0 x([0-9]{1,3}(?:\.[0-9]{1,9})?)(?:\0|$)")  # as that script writes it


def office_clock(rate: float) -> dict[str, str]:
    """The environment that makes LibreOffice's clock run ``rate`` times as fast as time.

    Empty at a rate of 1, and where libfaketime is not installed: the clock is the machine's then.

    Raises:
        ValueError: the rate is not between 1 and 10.
    """
    check_rate(rate)
    libraries = [path for pattern in _LIBRARIES for path in glob(pattern)]
    if rate == 1 or not libraries:
        return {}
    return {RATE_VARIABLE: f"{rate:g}", LIBRARY_VARIABLE: libraries[0]}


def check_rate(rate: float) -> None:
    """Raises ValueError if the rate is not between 1 and 10."""
    if not SLOWEST <= rate <= FASTEST:
        raise ValueError(f"office_clock: expected 1 (the machine's clock) to 10 times as fast, got {rate}")


def clock_rate(pid: int) -> float:
    """How fast a program's clock runs; 1 for the machine's, and if the program has ended.

    Between 1 and 10 in any case: a policy can start programs with any environment.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            match = _FAKETIME.search(file.read())
    except OSError:
        return 1.0
    return 1.0 if match is None else min(max(float(match[1]), SLOWEST), FASTEST)
