"""When a cached trace enters a group. Imports no torch."""

from __future__ import annotations

from enum import StrEnum


class Injection(StrEnum):
    """When a cached trace enters a group."""

    never = "never"  #: GRPO
    on_failure = "on_failure"  #: replaces the first valid rollout when all failed (BEPA and variants)
    always = "always"  #: an additional member of the group, if there is a trace (LUFFY)
    additional = "additional"  #: rows in addition to the group, with advantage 0 (RL+SFT)
