"""Settings that are read under other settings only; given without those, they would have no effect. Imports no torch.

:data:`READERS` says when they are read. Files of ``configs/`` set the settings of :data:`OF_FILES`: those are refused
where the command line gives them, whatever their value. What is in no row is always read, or a file sets it: one
override of what that file chose (``policy.lora.rank=null``) may leave its value unread, and is not refused for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache, reduce
from typing import Any, get_type_hints

from bepa_torchrl.experiment.checks.check import has_url, method_of
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import is_rank
from bepa_torchrl.methods import METHODS, LossKind, Method, SeedSource
from bepa_torchrl.rollout.injection import Injection


@dataclass(frozen=True, slots=True)
class Reader:
    """When settings are read.

    Args:
        names: the settings; a name that ends in a dot means all below it.
        reads: whether they are read, given all settings.
        when: the same in words, after "is read with".
        fix: what to do where they are not.
    """

    names: tuple[str, ...]
    reads: Callable[[Settings], bool]
    when: str
    fix: str = "set it, or leave this out"

    def settings(self) -> Iterator[str]:
        """The dotted name of each of its settings."""
        for name in self.names:
            section = name.removesuffix(".")
            below = (f"{name}{field.name}" for field in fields(_section(section))) if name != section else ()
            yield from below or (name,)


def settings_are_read(settings: Settings) -> str | None:
    """What is set is read. Not when a run is resumed, which may have begun without this check."""
    return _unread(settings, READERS, lambda name: _value(settings, name) != default_of(name))


def overrides_are_read(settings: Settings, keys: Collection[str]) -> str | None:
    """What the command line gives of :data:`OF_FILES` is read; ``keys`` are the dotted names of its overrides."""
    return _unread(settings, OF_FILES, lambda name: name in keys)


def changes_are_read(settings: Settings, keys: Collection[str]) -> str | None:
    """What `bepa rollouts` sets of the trainer's settings is read there; ``keys`` are the dotted names of that."""
    return _unread(settings, READERS, lambda name: name in keys and _value(settings, name) != default_of(name))


def settings_beside_seed(settings: Settings) -> str | None:
    """What is set is read although ``cache.seed`` has the run's self-rollouts."""
    return _unread(settings, BESIDE_SEED, lambda name: _value(settings, name) != default_of(name))


def _unread(settings: Settings, readers: Iterable[Reader], is_given: Callable[[str], bool]) -> str | None:
    if settings.resume:
        return None
    for reader in readers:
        if reader.reads(settings):
            continue
        given = [f"{name}={_shown(_value(settings, name))}" for name in reader.settings() if is_given(name)]
        if given:
            are = "is" if len(given) == 1 else "are"
            return f"{' and '.join(given)} {are} read with {reader.when} only; {reader.fix}"
    return None


def default_of(name: str) -> Any:
    """The default of a setting in its dataclass; MISSING: the files of ``configs/`` have it."""
    section, _, last = name.rpartition(".")
    field = next(field for field in fields(_section(section)) if field.name == last)
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def _section(name: str) -> type[Any]:
    """The dataclass of a section; without a name that of all settings."""
    if not name:
        return Settings
    above, _, last = name.rpartition(".")
    kind: type[Any] = get_type_hints(_section(above))[last]
    return kind


def _value(settings: Settings, name: str) -> Any:
    return reduce(getattr, name.split("."), settings)


def _shown(value: Any) -> str:
    """The value as on a command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _methods(reads: Callable[[Method], bool]) -> Callable[[Settings], bool]:
    """Whether the method of the run, or one in ``compare``, is such a method."""
    return lambda settings: any(reads(METHODS[name]) for name in (settings.algo.name, *settings.compare))


def _has_cache(method: Method) -> bool:
    return method.refresh or method.prefix or method.injection is not Injection.never


def _has_self_rolled(method: Method) -> bool:
    """Whether the method starts from self-rollouts, or fine-tunes on them."""
    return SeedSource.self_rolled in (method.seed_source, method.sft)


def _has_deviation(settings: Settings) -> bool:
    """Whether advantages of a method are divided by a standard deviation: the released LUFFY's are not."""
    released = method_of(settings).loss is LossKind.luffy and settings.algo.preset == "released"
    compared = any(METHODS[name].rl for name in settings.compare if name != settings.algo.name)  # without the preset
    return settings.advantage.std != "none" and (not released or compared)


def _has_engine(settings: Settings) -> bool:
    """Whether there is an engine, here or where ``bepa rollouts`` plays, which gets what it does not set itself."""
    return settings.policy.rollout == "vllm" or settings.cluster.listen is not None


_ONE_OF_THEM = "leave one of them out"
_SET_ONE = "set one of them, or leave this out"
#: without these every ratio is exactly 1
_SEVERAL_STEPS = (
    "several optimiser steps per iteration (train.minibatch_groups or train.inner_epochs) or "
    "train.old_log_probs=injected"
)
_SELF_ROLLED = "methods that start from self-rollouts, such as bepa and level1,"
_METHOD = "train one by algo or compare, or leave this out"
#: settings of those that listen for other clusters, and of those that play rollouts in a Ray cluster
_LISTENING = ("cluster.token_file", "cluster.tls_certificate", "cluster.tls_key")
_PLAYING = tuple(
    f"cluster.{name}" for name in ("workers", "replicas", "gpus_per_replica", "replica_slack", "shrink_after")
)

#: the first row that does not read a setting makes the message
READERS: tuple[Reader, ...] = (
    Reader(("storage_wait",), lambda s: s.storage is not None, "storage=FOLDER or a URL"),
    Reader(("judge.",), lambda s: s.judge.model is not None, "judge.model=NAME"),
    Reader(("eval.episodes",), lambda s: s.eval.every > 0, "eval.every=N"),
    # where rollouts are played, and what samples
    Reader(("collect.mode",), _methods(lambda method: method.rl), "methods that collect rollouts", _METHOD),
    Reader(
        ("collect.max_staleness", "collect.order", "collect.stall_timeout"),
        lambda s: s.collect.mode == "async",
        "collect.mode=async",
    ),
    Reader(_LISTENING, lambda s: s.cluster.listen is not None, "cluster.listen"),
    Reader(
        _PLAYING,
        lambda s: s.cluster.listen is None,
        "rollouts of its own",
        "with cluster.listen give it to `bepa rollouts`",
    ),
    Reader(_PLAYING, lambda s: s.cluster.address is not None, "cluster.address"),
    Reader(_PLAYING, lambda s: s.collect.mode == "async", "collect.mode=async"),
    Reader(("cluster.replica_slack",), lambda s: s.cluster.replicas > 1, "cluster.replicas above 1"),
    Reader(
        ("cluster.cpus_per_rank", "cluster.place_timeout"), lambda s: s.cluster.trainer == "ray", "cluster.trainer=ray"
    ),
    Reader(
        ("policy.engine.url", "policy.engine.token_file", "policy.engine.tls_ca", "policy.engine.devices"),
        lambda s: s.policy.rollout == "vllm",
        "policy.rollout=vllm",
    ),
    Reader(("policy.engine.",), _has_engine, "policy.rollout=vllm"),
    Reader(("policy.engine.token_file", "policy.engine.tls_ca"), has_url, "policy.engine.url"),
    # the policy and its ranks
    Reader(
        ("policy.lora.alpha", "policy.lora.targets"),
        lambda s: s.policy.lora.rank is not None,
        "policy.lora.rank",
    ),
    Reader(
        ("train.gradient_sync", "train.rank_timeout"),
        lambda s: s.train.ranks > 1 or is_rank(),
        "train.ranks above 1, or by torchrun,",
    ),
    # methods
    Reader(
        ("algo.preset", "algo.gamma"),
        lambda s: method_of(s).loss is LossKind.luffy,
        "algo=luffy",
        "leave it out",
    ),
    Reader(("algo.gain",), lambda s: method_of(s).prefix, "algo=prefix", "leave it out"),
    Reader(
        ("loss.", "advantage.", "collect.dynamic", "collect.env_seed", "train.inner_epochs", "train.keep"),
        _methods(lambda method: method.rl),
        "methods that collect rollouts",
        _METHOD,
    ),
    Reader(
        ("sft.epochs", "sft.batch"),
        _methods(lambda method: method.sft is not SeedSource.nothing),
        "methods that fine-tune",
        _METHOD,
    ),
    Reader(("sft.weight",), _methods(lambda method: method.loss is LossKind.rl_sft), "algo=rl_sft", _METHOD),
    Reader(
        ("cache.min_successes", "cache.refresh"),
        _methods(lambda method: method.refresh),
        "methods that refresh their cache",
        _METHOD,
    ),
    Reader(
        ("cache.rule",),
        _methods(lambda method: method.refresh and method.cache_rule is None),
        "methods that refresh their cache by a rule of one's choice",
        _METHOD,
    ),
    Reader(("cache.max_tasks",), _methods(_has_cache), "methods that have a cache", _METHOD),
    Reader(
        ("cache.injected_kept", "cache.injected_weight"),
        _methods(lambda method: method.injection is not Injection.never),
        "methods that inject traces",
        _METHOD,
    ),
    Reader(
        ("expert.reroll_every",),
        _methods(lambda method: method.seed_source is SeedSource.self_rolled),
        _SELF_ROLLED,
        _METHOD,
    ),
    Reader(
        ("expert.handover_loss",),
        _methods(_has_self_rolled),
        "methods that start from self-rollouts or fine-tune on them, such as bepa and sft_self,",
        _METHOD,
    ),
    # settings beside each other
    Reader(("loss.clip", "loss.dual_clip"), lambda s: not s.old_policy_is_current, _SEVERAL_STEPS, _SET_ONE),
    Reader(
        ("loss.ratio",),
        lambda s: not s.old_policy_is_current or s.loss.rollout_correction == "token",
        f"{_SEVERAL_STEPS} or loss.rollout_correction=token",
        _SET_ONE,
    ),
    Reader(("loss.distill_beta",), lambda s: s.loss.distill_weight > 0, "loss.distill_weight"),
    Reader(
        ("loss.rollout_cap",), lambda s: s.loss.rollout_correction != "off", "loss.rollout_correction=token or sequence"
    ),
    Reader(
        ("advantage.std", "advantage.eps"),
        lambda s: s.advantage.kind == "grpo",
        "advantage.kind=grpo",
        _ONE_OF_THEM,
    ),
    Reader(
        ("advantage.eps",),
        _has_deviation,
        "a standard deviation, without advantage.std=none and algo.preset=released,",
        _ONE_OF_THEM,
    ),
    Reader(("cache.reword_tries",), lambda s: s.cache.refresh != "trace", "cache.refresh=wording or actions"),
    Reader(
        ("expert.selfroll_attempts",),
        lambda s: s.expert.selfroll_budget is None or s.expert.reroll_every > 0,
        "expert.selfroll_budget=null or expert.reroll_every=N",
        _ONE_OF_THEM,
    ),
    Reader(("expert.reroll_stale",), lambda s: s.expert.reroll_every > 0, "expert.reroll_every=N"),
    Reader(
        ("expert.handover_loss",),
        lambda s: s.expert.handover > 0 or s.cache.seed is not None,
        "expert.handover=M or cache.seed=FOLDER",
    ),
    Reader(("expert.plan_source",), lambda s: s.expert.plans is None, "expert.plans=null", _ONE_OF_THEM),
    Reader(("expert.oracle_style",), lambda s: not s.expert.logs, "expert.logs=[]", _ONE_OF_THEM),
)

#: those that files of ``configs/`` set. Settings of a run's length are not among them: a sweep over methods shares them
OF_FILES: tuple[Reader, ...] = (
    Reader(
        ("env.held_out_limit",),
        lambda s: s.env.held_out_split is not None or s.env.held_out_limit is None,
        "env.held_out_split",
    ),
    Reader(("record.outcomes",), lambda s: s.eval.final_episodes > 0 or not s.record.outcomes, "eval.final_episodes=N"),
    Reader(("train.save_every",), _methods(lambda method: method.rl), "methods that collect rollouts", _METHOD),
    Reader(
        ("expert.seed_from_converted",),
        _methods(lambda method: method.seed_source is SeedSource.self_rolled),
        _SELF_ROLLED,
        _METHOD,
    ),
    Reader(
        ("optimizer.lr",),
        _methods(lambda method: method.rl),
        "methods that collect rollouts",
        "set sft.lr, or leave this out",
    ),
    Reader(
        ("sft.lr",),
        _methods(lambda method: method.sft is not SeedSource.nothing),
        "methods that fine-tune",
        "set optimizer.lr, or leave this out",
    ),
)

_SEEDED = "give it to `bepa experts selfroll`, which has made those of cache.seed, or leave this out"
#: those of self-rollouts, where ``cache.seed`` has them. The file of plans is beside it as the plans' origin
BESIDE_SEED: tuple[Reader, ...] = (
    Reader(("expert.selfroll_budget",), lambda _: False, "self-rollouts before training", _SEEDED),
    Reader(
        ("expert.selfroll_attempts", "expert.handover", "expert.max_leak"),
        lambda s: s.expert.reroll_every > 0,
        "self-rollouts of this run",
        _SEEDED,
    ),
)
