"""The settings of desktops and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bepa_torchrl.experiment.settings.bounds import Count, Positive, PositiveFloat


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """The desktops, the tasks, and when an episode ends.

    Args:
        provider: a name of :data:`osworld_gym.desktops.registry.PROVIDERS`.
        suite: a suite's name, or an OSWorld checkout's folder.
        options: keyword arguments of the provider's desktop class.
        desktops: desktops per training process.
        deadline: seconds for one call on a desktop (reset, step, verification).
        warm_pool: desktops kept ready in addition to ``desktops``, reset ahead of need; must be 0 for ``sim``.
        max_steps: steps until an episode is truncated.
        parse_errors: unparsable responses in a row that end an episode.
        call_user_tolerance: number of ``call_user()`` calls after which an episode ends.
        evaluators: whose metrics score a task: ``ours``, OSWorld's (``official``), or ``auto`` (ours where we have it).
        official_timing: whether to sleep where OSWorld's client sleeps; requires a longer ``deadline``.
        train_split: a split of the suite, a tag, or a list file ``{domain: [task id, ...]}`` ending in ``.json``.
        held_out_split: the same for evaluation only; None: no held-out tasks.
        runnable: whether to leave out tasks that cannot run on this machine and provider.
        train_limit: number of training tasks used, the first ones; None: all.
        held_out_limit: number of held-out tasks used, the first ones; None: all.
    """

    provider: str
    suite: str
    options: Mapping[str, Any]
    desktops: Positive
    deadline: PositiveFloat
    warm_pool: Count
    max_steps: Positive
    parse_errors: Positive
    call_user_tolerance: Positive
    evaluators: Literal["auto", "ours", "official"]
    official_timing: bool
    train_split: str
    held_out_split: str | None
    runnable: bool
    train_limit: Positive | None
    held_out_limit: Positive | None
