"""``restarts``: what is repeated, how often, and how long each restart waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bepa_torchrl.experiment.restarts import Restarts, wait_before
from bepa_torchrl.failures import BAD_INPUT, INFRASTRUCTURE
from osworld_gym.errors import DesktopError, FailureReason


def outcomes(*values: int | Exception) -> Callable[[], int]:
    """A part of a run that ends in these ways, one after the other."""
    rest: Iterator[int | Exception] = iter(values)

    def part() -> int:
        value = next(rest)
        if isinstance(value, Exception):
            raise value
        return value

    return part


def made(limit: int) -> tuple[Restarts, list[str], list[float]]:
    notes, waited = list[str](), list[float]()
    return Restarts(limit, notes.append, waited.append), notes, waited


def lost(code: int) -> bool:
    return code == INFRASTRUCTURE


def test_a_restart_waits_twice_as_long_as_the_one_before_up_to_ten_minutes() -> None:
    assert [wait_before(n) for n in (1, 2, 3, 6, 7, 8, 10_000)] == [10.0, 20.0, 40.0, 320.0, 600.0, 600.0, 600.0]


def test_infrastructure_is_tried_again_and_each_restart_is_a_line() -> None:
    restarts, notes, waited = made(5)
    away = DesktopError(FailureReason.never_ready, "no cluster\nat auto")
    assert restarts.run(outcomes(INFRASTRUCTURE, away, 0), failed=lost) == 0
    assert notes == [
        "restart 1 of 5 in 10 s, from what is saved",
        f"restart 2 of 5 in 20 s, from what is saved: {' '.join(str(away).split())}",
    ]
    assert waited == [10.0, 20.0]


def test_the_limit_is_of_all_parts_together() -> None:
    restarts, notes, _ = made(2)
    assert restarts.run(outcomes(OSError("away"), 7)) == 7
    assert restarts.run(outcomes(INFRASTRUCTURE, INFRASTRUCTURE, 0), failed=lost) == INFRASTRUCTURE
    with pytest.raises(OSError, match="away again"):
        restarts.run(outcomes(OSError("away again"), 0))
    assert len(notes) == 2


@pytest.mark.parametrize("error", [ValueError("bad input"), RuntimeError("a bug")])
def test_other_errors_are_not_tried_again(error: Exception) -> None:
    restarts, notes, _ = made(3)
    with pytest.raises(type(error)):
        restarts.run(outcomes(error, 0))
    assert restarts.run(outcomes(BAD_INPUT, 0), failed=lost) == BAD_INPUT
    assert notes == []
