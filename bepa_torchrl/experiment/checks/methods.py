"""Checks of the method, its loss, its cache and its groups. Imports no torch."""

from __future__ import annotations

from functools import partial

from bepa_torchrl.experiment.checks.check import method_of, raised
from bepa_torchrl.experiment.settings import (
    AdvantageSettings,
    LossSettings,
    Settings,
)
from bepa_torchrl.methods import LossKind, method_named
from bepa_torchrl.rollout.injection import Injection


def known_methods(settings: Settings) -> str | None:
    """``algo.name`` and the names in ``compare`` are methods; a file of ``algo/`` with another name is not enough."""
    for name in (settings.algo.name, *settings.compare):
        problem = raised(partial(method_named, name), "algo" if name == settings.algo.name else "compare")
        if problem is not None:
            return problem
    return None


def ratio_of_responses(settings: Settings) -> str | None:
    """``loss.ratio=sequence`` is set with ``loss.unit=token``."""
    loss = settings.loss
    if loss.ratio == "token" or loss.unit == "token":
        return None
    return f"loss.ratio={loss.ratio} is for loss.unit=token, got loss.unit={loss.unit}; leave one of them out"


def terms_of_tokens(settings: Settings) -> str | None:
    """The loss's terms per token are not set with ``loss.unit=step``."""
    loss = settings.loss
    for name in ("kl_weight", "entropy_weight", "distill_weight"):
        weight = getattr(loss, name)
        if weight and loss.unit == "step":
            return f"loss.{name}={weight} is for loss.unit=token, got loss.unit=step; leave one of them out"
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
    """LUFFY's presets have the advantages of GRPO."""
    kind = settings.advantage.kind
    if kind == "grpo" or settings.algo.name != "luffy":
        return None
    return f"algo=luffy has the advantages of GRPO, got advantage.kind={kind}; leave it out"


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


def injected_kept(settings: Settings) -> str | None:
    """``cache.injected_kept`` is set where a trace replaces a failure, and leaves ``injected_weight`` its effect."""
    method, cache = method_of(settings), settings.cache
    if cache.injected_kept == "all" or method.injection is Injection.never:
        return None
    if method.injection is not Injection.on_failure:
        return (
            f"cache.injected_kept={cache.injected_kept} is for methods that inject on failure, got "
            f"algo={method.name}; set cache.injected_kept=all, or algo=bepa"
        )
    if cache.injected_kept == "failures" and cache.injected_weight == "need":
        return (
            "cache.injected_weight=need is a factor of the advantage that cache.injected_kept=failures sets to 0; set "
            "one of them to its default"
        )
    return None


def part_of_refresh(settings: Settings) -> str | None:
    """``cache.refresh`` is another than ``trace`` where the sampler can write the one refreshed trace of a task."""
    method, cache = method_of(settings), settings.cache
    if cache.refresh == "trace":
        return None
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


def group_size(settings: Settings) -> str | None:
    """A group has at least two own rollouts."""
    size, method = settings.collect.group_size, method_of(settings)
    smallest = method.on_policy_rollouts(size, has_trace=True)
    if smallest >= 2:
        return None
    return f"collect.group_size={size}: {method.name} requires at least {2 + size - smallest}"


def further_groups(settings: Settings) -> str | None:
    """``collect.dynamic`` does not leave out groups that the anchor is for."""
    dynamic, anchor = settings.collect.dynamic, settings.loss.anchor
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
