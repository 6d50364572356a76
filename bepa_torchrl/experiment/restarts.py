"""``restarts``: goes on with a run, without a human, after its infrastructure has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bepa_torchrl.failures import INFRASTRUCTURE, exit_code

Result = TypeVar("Result")
FIRST_WAIT, LONGEST_WAIT = 10.0, 600.0  #: seconds before the first restart; each further one waits twice as long


def wait_before(restart: int) -> float:
    """Seconds that restart 1, 2, … waits for the infrastructure to come back: 10, 20, 40, …, at most 600."""
    return min(FIRST_WAIT * 2.0 ** min(restart - 1, 60), LONGEST_WAIT)


class Restarts:
    """Repeats the parts of a run whose infrastructure has failed; each part goes on where it had come to.

    Args:
        limit: restarts of all parts together.
        note: gets a line before each.
        wait: waits so many seconds.
    """

    def __init__(self, limit: int, note: Callable[[str], None], wait: Callable[[float], None] = time.sleep) -> None:
        self.limit, self.used = limit, 0
        self._note, self._wait = note, wait

    def run(self, part: Callable[[], Result], *, failed: Callable[[Result], bool] = lambda _: False) -> Result:
        """The first result that has not failed, or the last one when no restart is left.

        Args:
            part: is called until it succeeds.
            failed: whether a result is a failure of the infrastructure.

        Raises:
            Exception: as ``part``, if it is not a failure of the infrastructure (exit code 3), or none is left.
        """
        while True:
            try:
                result = part()
                if not failed(result) or self.used >= self.limit:
                    return result
                problem = ""
            except Exception as error:
                if exit_code(error) != INFRASTRUCTURE or self.used >= self.limit:
                    raise
                problem = f": {' '.join(str(error).split())}"
            self.used += 1
            seconds = wait_before(self.used)
            self._note(f"restart {self.used} of {self.limit} in {seconds:g} s, from what is saved{problem}")
            self._wait(seconds)
