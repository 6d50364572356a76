"""Checks which settings ``resume=true`` may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bepa_torchrl.storage.json_lines import RecordError

#: settings that may be changed when resuming; a name that ends in a dot means all keys below it
CHANGEABLE = (
    "train.iterations",
    "train.max_tokens",
    "train.save_every",
    "train.keep",
    "train.ranks",
    "train.rank_timeout",
    "eval.",
    "collect.stall_timeout",
    "cluster.shrink_after",
    "record.",
    "policy.activation_checkpointing",
    "policy.max_batch_tokens",
    "policy.max_rows",
    "threads",
    "processes",
    "storage",
    "storage_wait",
)
_GROUPS = {"env": "sim", "policy": "tiny", "algo": "bepa", "experiment": "null"}  #: with their defaults
_IDENTITY = ("name", "runs", "resume")


def changed_settings(
    saved: Mapping[str, Any], requested: Mapping[str, Any], overrides: Sequence[str], first: Sequence[str]
) -> dict[str, Any]:
    """The settings that a resume changes, by dotted key; empty if there are none.

    Args:
        saved: the run's settings as nested mappings.
        requested: the settings that this command line composes, as nested mappings.
        overrides: the ``key=value`` arguments of this command line; keys that are not given keep their saved values.
        first: the ``key=value`` arguments with which the run was started.

    Raises:
        RecordError: settings differ that cannot be changed; the message has their old and new values.
    """
    refused = _other_choices(overrides, first)
    changes: dict[str, Any] = {}
    old, new = dict(leaves(saved)), dict(leaves(requested))
    for written in (key_of(override) for override in overrides):
        if written in _GROUPS or written in _IDENTITY:
            continue
        for key in sorted(key for key in old.keys() | new.keys() if key == written or key.startswith(f"{written}.")):
            if key in old and key in new and old[key] == new[key]:
                continue
            if _changeable(key) and key in new:
                changes[key] = new[key]
            else:
                refused.append(f"{key}: {_shown(old, key)} → {_shown(new, key)}")
    if refused:
        names = ", ".join(f"{name}*" if name.endswith(".") else name for name in CHANGEABLE)
        raise RecordError(
            f"resume=true cannot change {'; '.join(refused)}; it may change {names}. "
            "Leave these out, or start a run with another name="
        )
    return changes


def key_of(override: str) -> str:
    """The key of ``key=value``."""
    return override.partition("=")[0].strip()


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting; lists and empty mappings are values."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


def _other_choices(overrides: Sequence[str], first: Sequence[str]) -> list[str]:
    """Choices of a group (``env=``, ``policy=``, …) that differ from the run's."""
    was = _GROUPS | dict(_choices(first))
    return [f"{group}: {was[group]} → {choice}" for group, choice in _choices(overrides) if choice != was[group]]


def _choices(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for override in overrides:
        if key_of(override) in _GROUPS:
            yield key_of(override), override.partition("=")[2].strip()


def _changeable(key: str) -> bool:
    return any(key.startswith(name) if name.endswith(".") else key == name for name in CHANGEABLE)


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "(not set)"
