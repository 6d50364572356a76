"""The wall time of an evaluation does not depend on a clock that is set meanwhile."""

from __future__ import annotations

import time

import pytest

from bepa_torchrl.experiment.evaluation_run import Session


@pytest.mark.parametrize("set_to", [0.0, 1e12])
def test_a_clock_that_is_set_does_not_change_the_seconds(set_to: float, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    monkeypatch.setattr(time, "time", lambda: set_to)
    assert 0.0 <= session.now() - session.start < 1e6
