"""The settings of rollouts, of evaluations and of what is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bepa_torchrl.experiment.settings.bounds import Count, NonNegativeFloat, Positive, PositiveFloat


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """Rollouts of one iteration.

    Args:
        groups: tasks per iteration.
        group_size: rollouts per task.
        temperature: sampling temperature.
        env_seed: ``group``: all rollouts of a group start from the same desktop seed; ``slot``: each has its own.
        retries: further attempts, on other desktops, for an episode whose desktop failed.
        mode: ``sync``: an iteration waits for its rollouts; ``async``: desktops go on while the policy is trained.
        max_staleness: of ``async``: iterations that may be trained between a group's start and its own training.
        order: of ``async``: groups are trained in the order of ``admission`` or of ``completion``.
        stall_timeout: of ``async``: seconds without a finished group after which the run ends.
    """

    groups: Positive
    group_size: Positive
    temperature: PositiveFloat
    env_seed: Literal["group", "slot"]
    retries: Count
    mode: Literal["sync", "async"]
    max_staleness: Count
    order: Literal["admission", "completion"]
    stall_timeout: PositiveFloat


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the rollouts of ``collect.mode=async`` run.

    Args:
        address: of a Ray cluster's head, ``auto`` for this machine's, ``local`` for one that the run starts; None:
            threads of the training process.
        listen: HOST:PORT at which the training process waits for rollout clusters (``bepa rollouts``), which then play
            all rollouts; ``address`` is then where the queue is. None: none.
        token_file: file with the token of ``listen``; None: it is in the environment variable BEPA_CHANNEL_TOKEN.
        workers: actors with desktops; they share ``env.desktops``. None: one on each node that has Ray's resource
            ``desktops``, with that many, also on nodes that join.
        replicas: copies of the policy that sample.
        gpus_per_replica: Ray's GPUs of each copy.
        shrink_after: seconds after which workers on Ray close desktops that the trainer's pace does not require; they
            are made again when it waits. None: never.
    """

    address: str | None
    listen: str | None
    token_file: str | None
    workers: Positive | None
    replicas: Positive
    gpus_per_replica: NonNegativeFloat
    shrink_after: PositiveFloat | None


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """Evaluations.

    Args:
        every: iterations between evaluations; 0: only at the end.
        episodes: sampled episodes per task in evaluations during training.
        final_episodes: sampled episodes per task at the end, in addition to one greedy; 0: no final evaluation.
        seed: seed of the evaluations' episodes.
    """

    every: Count
    episodes: Positive
    final_episodes: Count
    seed: Count


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What is recorded in ``episodes.jsonl``.

    Args:
        every: iterations between those whose episodes are recorded whole; 0: none. Of the others there is a line
            without steps, except injected traces, the rollouts that they replaced, and the first episode of each task
            with each outcome, which are always whole.
        images: whether screenshots are stored.
        outcomes: whether the episodes of the base policy's and of the final evaluation are recorded, in
            ``outcomes.jsonl``; with ``images`` they make ``before-after.gif``.
        limit_gb: size of a method's record in GB (1e9 bytes) above which the oldest whole episodes lose their steps
            and screenshots; None: no limit.
    """

    every: Count
    images: bool
    outcomes: bool
    limit_gb: PositiveFloat | None
