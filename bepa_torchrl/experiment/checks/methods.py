"""Checks of the method, its loss, its cache and its groups. Imports no torch."""

from __future__ import annotations

from functools import partial

from bepa_torchrl.experiment.checks.check import method_of, raised
from bepa_torchrl.experiment.settings import (
    AdvantageSettings,
    AlgoSettings,
    CacheSettings,
    ExpertSettings,
    LossSettings,
    Settings,
)
from bepa_torchrl.methods import METHODS, LossKind, SeedSource, method_named
from bepa_torchrl.rollout.injection import Injection


def known_methods(settings: Settings) -> str | None:
    """``algo.name`` and the names in ``compare`` are methods; a file of ``algo/`` with another name is not enough."""
    for name in (settings.algo.name, *settings.compare):
        if name not in METHODS:
            return raised(partial(method_named, name), "algo" if name == settings.algo.name else "compare")
    return None


def settings_of_one_method(settings: Settings) -> str | None:
    """``algo.preset`` and ``algo.gamma`` are set for LUFFY only, ``algo.gain`` for methods with prefixes."""
    algo = settings.algo
    default = AlgoSettings(name=algo.name)
    if algo.gain != default.gain and not method_of(settings).prefix:
        return f"algo.gain is read by algo=prefix only, got algo={algo.name}; leave it out"
    if algo.name == "luffy" or (algo.preset, algo.gamma) == (default.preset, default.gamma):
        return None
    key = "preset" if algo.preset != default.preset else "gamma"
    return f"algo.{key} is read by algo=luffy only, got algo={algo.name}; leave it out"


def self_rollouts(settings: Settings) -> str | None:
    """One number of self-rollouts is given; ``reroll_*`` and ``handover_loss`` are set where they are read."""
    expert = settings.expert
    if expert.handover_loss == "after" and not expert.handover and settings.cache.seed is None:
        return "expert.handover_loss=after requires a hand-over; set expert.handover=M, or leave this out"
    if expert.reroll_every:
        if method_of(settings).seed_source is SeedSource.self_rolled or settings.compare:
            return None
        return (
            f"expert.reroll_every={expert.reroll_every} is for methods that start from self-rollouts, such as bepa and "
            f"level1, got algo={settings.algo.name}; leave it out"
        )
    if expert.selfroll_budget is not None and expert.selfroll_attempts != ExpertSettings().selfroll_attempts:
        return "expert.selfroll_budget is used instead of expert.selfroll_attempts; leave one of them out"
    if expert.reroll_stale is not None:
        return "expert.reroll_stale is read where tasks are self-rolled again; set expert.reroll_every=N"
    return None


def ratio_of_responses(settings: Settings) -> str | None:
    """``loss.ratio=sequence`` is set with ``loss.unit=token``."""
    loss = settings.loss
    if loss.ratio == "token" or loss.unit == "token":
        return None
    return f"loss.ratio={loss.ratio} is for loss.unit=token, got loss.unit={loss.unit}; leave one of them out"


def terms_of_tokens(settings: Settings) -> str | None:
    """The loss's terms per token are not set with ``loss.unit=step``; no term is without reinforcement."""
    loss, method = settings.loss, method_of(settings)
    for name in ("anchor", "kl_weight", "entropy_weight", "distill_weight"):
        weight = getattr(loss, name)
        if weight and loss.unit == "step" and name != "anchor":
            return f"loss.{name}={weight} is for loss.unit=token, got loss.unit=step; leave one of them out"
        if weight and not method.rl and not settings.compare:
            return f"loss.{name}={weight} is for methods that collect rollouts, got algo={method.name}; leave it out"
    if loss.distill_beta != LossSettings().distill_beta and not loss.distill_weight:
        return f"loss.distill_beta={loss.distill_beta} is read with loss.distill_weight only; set it, or leave this out"
    return None


def longest_episode(settings: Settings) -> str | None:
    """``loss.max_length`` is given with ``sum_norm``, and only then."""
    length = settings.loss.max_length
    released = settings.algo.name == "luffy" and settings.algo.preset == "released"
    aggregation = "algo.preset=released" if released else f"loss.aggregation={settings.loss.aggregation}"
    sums = released or settings.loss.aggregation == "sum_norm"
    if sums and length is None:
        return f"{aggregation} requires the longest episode in units; set loss.max_length=N"
    if not sums and length is not None:
        return f"loss.max_length={length} is read with loss.aggregation=sum_norm only, got {aggregation}"
    return None


def kind_of_advantage(settings: Settings) -> str | None:
    """``advantage.std`` and ``advantage.eps`` are set with GRPO's advantages only, which LUFFY's presets have, too.

    ``advantage.eps`` is added to a standard deviation, which ``advantage.std=none`` and LUFFY's preset ``released``
    lack.
    """
    advantage, algo = settings.advantage, settings.algo.name
    if advantage.kind == "grpo":
        released = algo == "luffy" and settings.algo.preset == "released"
        if advantage.eps == AdvantageSettings().eps or not (released or advantage.std == "none"):
            return None
        got = "algo.preset=released" if released else "advantage.std=none"
        return f"advantage.eps={advantage.eps} is added to a standard deviation, got {got}; leave one of them out"
    if algo == "luffy":
        return f"algo=luffy has the advantages of GRPO, got advantage.kind={advantage.kind}; leave it out"
    default = AdvantageSettings()
    for name, value, without in (("std", advantage.std, default.std), ("eps", advantage.eps, default.eps)):
        if value != without:
            return f"advantage.{name}={value} is read with advantage.kind=grpo only, got {advantage.kind}; leave it out"
    return None


def fixed_by_preset(settings: Settings) -> str | None:
    """What ``algo.preset`` fixes for LUFFY is not set to something else."""
    if method_of(settings).loss is not LossKind.luffy:
        return None
    preset, advantage, loss = settings.algo.preset, settings.advantage, settings.loss
    released, plain = preset == "released", LossSettings()
    std = "none" if released else "population"
    fixed: list[tuple[str, object, tuple[object, ...]]] = [
        ("advantage.std", advantage.std, (AdvantageSettings().std, std))
    ]
    if released:
        fixed += [
            ("loss.aggregation", loss.aggregation, (plain.aggregation, "sum_norm")),
            ("loss.clip", loss.clip, (plain.clip,)),
            ("loss.dual_clip", loss.dual_clip, (plain.dual_clip,)),
        ]
    for name, value, allowed in fixed:
        if value not in allowed:
            return f"{name} is fixed by algo.preset={preset} of algo={settings.algo.name}, got {value}; leave it out"
    return None


def injected_weight(settings: Settings) -> str | None:
    """``cache.injected_weight=need`` is set where refreshes of the cache count the groups with a success."""
    method, cache = method_of(settings), settings.cache
    if cache.injected_weight != "need" or method.injection is Injection.never:
        return None
    if method.injection is not Injection.on_failure or not method.refresh:
        return (
            "cache.injected_weight=need is for methods that refresh their cache and inject on failure, got "
            f"algo={method.name}; set cache.injected_weight=one, or algo=bepa"
        )
    if cache.min_successes > 1:
        return (
            "cache.injected_weight=need counts refreshes as groups with a success, which cache.min_successes="
            f"{cache.min_successes} leaves out; set one of them to its default"
        )
    return None


def part_of_refresh(settings: Settings) -> str | None:
    """``cache.refresh`` is another than ``trace`` where the sampler can write the one refreshed trace of a task."""
    method, cache, default = method_of(settings), settings.cache, CacheSettings()
    if cache.refresh == "trace":
        if cache.reword_tries == default.reword_tries:
            return None
        return f"cache.reword_tries={cache.reword_tries} is read with cache.refresh=wording or actions only; set one"
    if not (method.refresh or settings.compare) or method.cache_rule == "all" or cache.rule == "all":
        return (
            f"cache.refresh={cache.refresh} is for methods that refresh one trace per task, got algo={method.name} and "
            f"cache.rule={cache.rule}; set algo=bepa and another rule, or cache.refresh=trace"
        )
    if settings.collect.mode == "async":
        return f"cache.refresh={cache.refresh} requires collect.mode=sync: the sampler writes traces between rollouts"
    if settings.policy.engine.sleep:
        return f"cache.refresh={cache.refresh} samples after the rollouts; set policy.engine.sleep=false"
    return None


def refreshing_groups(settings: Settings) -> str | None:
    """``cache.min_successes`` is set for methods that refresh their cache."""
    method, cache = method_of(settings), settings.cache
    if cache.min_successes == CacheSettings().min_successes or method.refresh or settings.compare:
        return None
    return (
        f"cache.min_successes={cache.min_successes} is for methods that refresh their cache, got algo={method.name}; "
        "leave it out"
    )


def group_size(settings: Settings) -> str | None:
    """A group has at least two own rollouts."""
    size, method = settings.collect.group_size, method_of(settings)
    smallest = method.on_policy_rollouts(size, has_trace=True)
    if smallest >= 2:
        return None
    return f"collect.group_size={size}: {method.name} requires at least {2 + size - smallest}"


def further_groups(settings: Settings) -> str | None:
    """``collect.dynamic`` is for rollouts, and does not leave out groups that the anchor is for."""
    dynamic, anchor, method = settings.collect.dynamic, settings.loss.anchor, method_of(settings)
    if dynamic and not method.rl and not settings.compare:
        return f"collect.dynamic={dynamic} is for methods that collect rollouts, got algo={method.name}; leave it out"
    if not dynamic or not anchor:
        return None
    return f"collect.dynamic={dynamic} leaves out solved groups, which loss.anchor={anchor} is for; set one to 0"


def old_log_probs(settings: Settings) -> str | None:
    """Where something else than the policy samples, the trainer computes the old log-probs."""
    if settings.train.old_log_probs == "all":
        return None
    for key, given, without in (
        ("policy.rollout", settings.policy.rollout, "transformers"),
        ("loss.rollout_correction", settings.loss.rollout_correction, "off"),
    ):
        if given != without:
            return (
                f"{key}={given} requires the trainer's own old log-probs; set train.old_log_probs=all, "
                f"or {key}={without}"
            )
    return None
