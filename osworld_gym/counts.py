"""Counts that are given to a constructor: one check, so that what no integer is fails there, and not much later."""

from __future__ import annotations

from numbers import Integral


def check_count(name: str, given: object, least: int = 1, why: str = "") -> None:
    """Checks a count, which NumPy's integers are too, and a bool is not.

    Args:
        name: with which the message begins.
        given: what was given.
        least: the least that it may be.
        why: what the count is, or why there is a least one; added to what is expected.

    Raises:
        ValueError: it is no integer of at least ``least``.
    """
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise ValueError(f"{name}: expected an integer >= {least}{why and f', {why}'}, got {given!r}")
