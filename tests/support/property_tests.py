"""The number of examples of a property test, and where they come from.

The default tests draw the same examples every time. ``HYPOTHESIS_PROFILE=nightly`` (``make nightly``) draws new ones,
and more of them.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

NIGHTLY = "nightly"
FACTOR = 20  #: examples in the nightly tier per example in the default tests

# no deadline and no limit on the time of drawing: both depend on the machine's load
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", _COMMON, derandomize=True, database=None)
settings.register_profile(NIGHTLY, _COMMON, derandomize=False)


#: ``default`` or ``nightly``
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")


def load_profile() -> None:
    """Loads :data:`PROFILE`.

    Raises:
        ValueError: ``HYPOTHESIS_PROFILE`` names no profile.
    """
    if PROFILE not in ("default", NIGHTLY):
        raise ValueError(f"HYPOTHESIS_PROFILE: expected default or {NIGHTLY}, got {PROFILE!r}")
    settings.load_profile(PROFILE)


def examples(count: int) -> settings:
    """Settings of a property test: ``count`` examples, or ``FACTOR`` times as many in the nightly tier."""
    return settings(max_examples=count * (FACTOR if PROFILE == NIGHTLY else 1))
