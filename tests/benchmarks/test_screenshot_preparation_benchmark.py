"""The benchmark of screenshots' preparation counts decodes, and its three ways give equal patches."""

from __future__ import annotations

import pytest

from benchmarks.screenshot_preparation import before, screenshots, with_cache


def test_decodes_of_an_episode() -> None:
    images = screenshots(3, (64, 48))
    first = before(images)
    cached, ahead = with_cache(images, threads=0, pause=0.0), with_cache(images, threads=1, pause=0.0)
    assert (first.decodes, cached.decodes, ahead.decodes) == (1 + 2 + 3 + 3, 3, 3)
    assert cached.checksum == ahead.checksum == pytest.approx(first.checksum, rel=1e-9)
    assert cached.seconds > 0
