"""The settings of rollouts, of evaluations and of what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bepa_torchrl.experiment.settings.kinds import Count, NonNegativeFloat, Positive, PositiveFloat, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """Rollouts of one iteration.

    Args:
        groups: tasks per iteration.
        group_size: rollouts per task.
        temperature: sampling temperature.
        env_seed: ``group``: all rollouts of a group start from the same desktop seed; ``slot``: each has its own.
        retries: further attempts, on other desktops, for an episode whose desktop failed.
        dynamic: further groups per iteration, at most, in the place of groups whose advantages are all 0 (DAPO's
            dynamic sampling); 0: such groups stay, without a gradient (the paper). A group into which a trace is
            injected has a signal.
        mode: ``sync``: an iteration waits for its rollouts; ``async``: desktops go on while the policy is trained
            (docs/cluster.md).
        max_staleness: of ``async``: iterations that may be trained between a group's start and its own training.
        order: of ``async``: groups are trained in the order of admission or of completion.
        stall_timeout: of ``async``: seconds without a finished group after which the run ends.
    """

    groups: Positive = 16
    group_size: Positive = 8
    temperature: PositiveFloat = 1.0
    env_seed: Literal["group", "slot"] = "group"
    retries: Count = 2
    dynamic: Count = 0
    mode: Literal["sync", "async"] = "sync"
    max_staleness: Count = 0
    order: Literal["admission", "completion"] = "admission"
    stall_timeout: PositiveFloat = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Where the rollouts of ``collect.mode=async`` and the trainer's ranks run (docs/several-gpus.md).

    Args:
        address: address of a Ray cluster's head, ``auto`` for this machine's, ``local`` for one that the run starts;
            None: threads of the training process.
        listen: HOST:PORT at which the training process waits for rollout clusters (``bepa rollouts``), which then play
            all rollouts; None: nowhere. With ``listen``, ``address`` is where the queue is.
        token_file: file with the token of ``listen``; None: it is in the environment variable BEPA_CHANNEL_TOKEN.
        tls_certificate: file with the certificate of ``listen`` and its chain, PEM; None: without TLS.
        tls_key: file with the key of that certificate.
        workers: actors with desktops, which share ``env.desktops``; None: one per node with Ray's resource
            ``desktops``. Each then has as many desktops as its node has of the resource, also on nodes that join.
        replicas: copies of the policy that sample.
        gpus_per_replica: Ray's GPUs of each copy, above 0 with ``policy.device=cuda``.
        replica_slack: requests by which the copy that has answered an episode's turns may be loaded beyond the least
            loaded copy before that one answers the next turn; 0: the least loaded always does.
        shrink_after: seconds after which workers on Ray close desktops that the trainer cannot keep up with; None:
            never. They are made again when it waits.
        trainer: ``here``: the trainer's ranks are processes of this machine, or torchrun's; ``ray``: actors in one
            placement group of the cluster at ``address``, each with a GPU unless ``policy.device=cpu``, also with
            ``collect.mode=sync``. ``bepa train`` then only places them, passes their output on and, with
            ``restarts``, places them again.
        cpus_per_rank: of ``trainer=ray``: Ray's CPUs of each rank.
        place_timeout: of ``trainer=ray``: seconds within which the cluster must have room for ranks and replicas; more
            where nodes are started on demand.
    """

    address: Text | None = None
    listen: Text | None = None
    token_file: Text | None = None
    tls_certificate: Text | None = None
    tls_key: Text | None = None
    workers: Positive | None = 1
    replicas: Positive = 1
    gpus_per_replica: NonNegativeFloat = 0.0
    replica_slack: Count = 8
    shrink_after: PositiveFloat | None = 300.0
    trainer: Literal["here", "ray"] = "here"
    cpus_per_rank: PositiveFloat = 1.0
    place_timeout: PositiveFloat = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """Evaluations.

    Args:
        every: iterations between evaluations; 0: only at the end.
        episodes: sampled episodes per task in evaluations during training.
        final_episodes: sampled episodes per task before and after training, in addition to a greedy one; 0: neither is
            played.
        greedy: whether there is a greedy episode per task.
        seed: environment seed of the evaluations' episodes.
    """

    every: Count = 12
    episodes: Positive = 1
    final_episodes: Count = 3
    greedy: bool = True
    seed: Count = 12345


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """What is recorded in ``episodes.jsonl``.

    Args:
        every: iterations between those whose episodes are recorded whole; 0: none. Of the others there is a line
            without steps, except injected traces, the rollouts that they replaced, and the first episode of each task
            with each outcome, which are always whole.
        images: whether screenshots are stored.
        outcomes: whether the episodes of the base policy's and of the final evaluation are recorded, in
            ``outcomes.jsonl``. With ``images`` they make ``before-after.gif``.
        limit_gb: size of a method's record in GB (1e9 bytes) above which the oldest whole episodes lose their steps
            and screenshots; None: no limit.
        starts: name → beginning of a response, such as ``{terse: "Thought: just"}``. The share of the responses that
            begin so is measured in rollouts, injected traces, the final sampled evaluation and, with
            ``collect.mode=sync``, those during training (``collect/starts_NAME``, docs/files.md).
    """

    every: Count = 5
    images: bool = True
    outcomes: bool = False
    limit_gb: PositiveFloat | None = 20.0
    starts: Mapping[str, Text] = field(default_factory=dict)
