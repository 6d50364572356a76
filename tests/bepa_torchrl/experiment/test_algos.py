"""The table of methods, their losses and group sizes."""

from __future__ import annotations

import pytest

from bepa_torchrl.experiment.loss_and_optimizer import advantage_std, make_loss
from bepa_torchrl.losses import BEPALoss, LUFFYLoss, RLSFTLoss
from bepa_torchrl.methods import METHODS, LossKind, SeedSource, method_named
from bepa_torchrl.rollout.trace_replacement import Injection
from bepa_torchrl.testing import ScriptedLearner


def test_table_of_methods() -> None:
    """The paper's methods and three others: (cache seeds, refresh, injection, traces per task, traces of sft, rl)."""
    table = {
        a.name: (a.seed_source.value, a.refresh, a.injection.value, a.traces_per_task, a.sft.value, a.rl)
        for a in METHODS.values()
    }
    assert table == {
        "bepa": ("self_rolled", True, "on_failure", 1, "nothing", True),
        "grpo": ("nothing", False, "never", 1, "nothing", True),
        "replacement": ("converted", False, "on_failure", 1, "nothing", True),
        "luffy": ("converted", False, "always", 1, "nothing", True),
        "level1": ("self_rolled", False, "on_failure", 1, "nothing", True),
        "prefix": ("self_rolled", False, "never", 1, "nothing", True),
        "level2": ("converted", True, "on_failure", 1, "nothing", True),
        "arpo": ("nothing", True, "on_failure", 8, "nothing", True),
        "sft": ("nothing", False, "never", 1, "converted", False),
        "sft_self": ("nothing", False, "never", 1, "self_rolled", False),
        "rl_sft": ("converted", False, "additional", 1, "nothing", True),
        "sft_rl": ("nothing", False, "never", 1, "converted", True),
        "sft_self_rl": ("nothing", False, "never", 1, "self_rolled", True),
    }


def test_one_method_has_prefixes() -> None:
    assert [name for name, algo in METHODS.items() if algo.prefix] == ["prefix"]


def test_luffy_collects_one_rollout_less_where_there_is_a_trace() -> None:
    luffy, bepa = method_named("luffy"), method_named("bepa")
    assert (luffy.on_policy_rollouts(8, has_trace=True), luffy.on_policy_rollouts(8, has_trace=False)) == (7, 8)
    assert bepa.on_policy_rollouts(8, has_trace=True) == 8


def test_losses_follow_the_method() -> None:
    policy = ScriptedLearner(lambda _: False)
    kinds = {name: type(make_loss(algo, policy, clip_epsilon=(0.2, 0.3))) for name, algo in METHODS.items()}
    assert kinds["luffy"] is LUFFYLoss
    assert kinds["rl_sft"] is RLSFTLoss
    assert {kind for name, kind in kinds.items() if name not in ("luffy", "rl_sft")} == {BEPALoss}
    released = make_loss(method_named("luffy"), policy, luffy_preset="released", max_length=100)
    assert released.aggregation == "sum_norm"


def test_luffys_preset_decides_its_advantage() -> None:
    assert advantage_std(method_named("luffy"), "population", luffy_preset="released") == "none"
    assert advantage_std(method_named("luffy"), "bessel", luffy_preset="paper") == "population"
    assert advantage_std(method_named("bepa"), "bessel") == "bessel"


def test_experts_are_needed_where_traces_enter() -> None:
    assert {name for name, algo in METHODS.items() if not algo.needs_experts} == {"grpo", "arpo"}
    assert all(a.loss is LossKind.grpo for a in METHODS.values() if a.injection is Injection.on_failure)
    assert method_named("bepa").seed_source is SeedSource.self_rolled


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown algo 'lufy' \(did you mean 'luffy'\?\); known: bepa, grpo"):
        method_named("lufy")
