"""The settings of desktops and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bepa_torchrl.experiment.settings.kinds import Count, Positive, PositiveFloat, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """The desktops, the tasks, and when an episode ends.

    Args:
        provider: provider of the desktops, a name of :data:`osworld_gym.desktops.registry.PROVIDERS`.
        suite: name of a suite, folder of an OSWorld checkout, or file ``.json`` of tasks on web sites.
        options: keyword arguments of the provider's desktop class.
        desktops: desktops per training process.
        deadline: seconds for one call on a desktop (reset, step, verification).
        warm_pool: desktops kept ready in addition to ``desktops``, reset ahead of need. It must be 0 for ``sim``.
        max_steps: steps until an episode is truncated.
        parse_errors: unparsable responses in a row that end an episode.
        call_user_tolerance: the episode ends at its N-th ``call_user()``.
        evaluators: whose metrics score a task. ``official`` are OSWorld's own (``osworld-gym install-official``);
            ``auto`` is ours where we have the metric.
        official_timing: whether to sleep where OSWorld's client sleeps, for comparisons. It requires a longer
            ``deadline``.
        train_split: a split of the suite, a tag, or a list file ``{domain: [task id, ...]}`` ending in ``.json``;
            splits and tags joined by ``+`` are taken together.
        held_out_split: the same for evaluation only; None: no held-out tasks.
        runnable: whether to leave out tasks that cannot run on this machine and provider, and log why.
        train_limit: number of training tasks used, the first ones; None: all.
        held_out_limit: number of held-out tasks used, the first ones; None: all.
    """

    provider: Text
    suite: Text
    options: Mapping[str, Any] = field(default_factory=dict)
    desktops: Positive
    deadline: PositiveFloat
    warm_pool: Count = 0
    max_steps: Positive = 15
    parse_errors: Positive = 3
    call_user_tolerance: Positive = 3
    evaluators: Literal["auto", "ours", "official"] = "auto"
    official_timing: bool = False
    train_split: Text = "train"
    held_out_split: Text | None = "held_out"
    runnable: bool = False
    train_limit: Positive | None = None
    held_out_limit: Positive | None = None
