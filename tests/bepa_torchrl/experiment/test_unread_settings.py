"""Settings that nothing would read under the others are refused, and no value of a shipped file is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, replace
from typing import Any

import pytest
import yaml

from bepa_torchrl.experiment.checks.check import first_problem
from bepa_torchrl.experiment.checks.unread import READERS, default_of, settings_are_read, settings_beside_seed
from bepa_torchrl.experiment.config import CONFIGS, ConfigError, load_config, load_methods, setting_names, with_changes
from bepa_torchrl.experiment.settings import Settings

SHIPPED = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent != CONFIGS)
VLLM = ("policy.rollout=vllm", "train.old_log_probs=all")
ON_RAY = ("cluster.trainer=ray", "cluster.address=auto")
ALONE = ("algo=grpo", "compare=[]")


@pytest.fixture(scope="module")
def default() -> Settings:
    return load_config()


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize(
    ("given", "problem", "reader"),
    [
        (["storage_wait=9"], "storage_wait=9.0 is read with storage=FOLDER or a URL only; set it, or", ["storage=/x"]),
        (["judge.retries=0"], "judge.retries=0 is read with judge.model=NAME only", ["judge.model=m"]),
        (["collect.stall_timeout=9"], "stall_timeout=9.0 is read with collect.mode=async only", ["collect.mode=async"]),
        (
            ["cluster.replicas=2", *ON_RAY],
            "cluster.replicas=2 is read with collect.mode=async only; set it, or leave this out",
            ["collect.mode=async"],
        ),
        (
            ["cluster.replica_slack=0", "cluster.address=auto", "collect.mode=async"],
            "cluster.replica_slack=0 is read with cluster.replicas above 1 only",
            ["cluster.replicas=2"],
        ),
        (
            ["policy.engine.kv_cache_gb=2", "policy.engine.timeout=9"],
            "policy.engine.kv_cache_gb=2.0 and policy.engine.timeout=9.0 are read with policy.rollout=vllm only; set",
            VLLM,
        ),
        (["policy.engine.sleep=true"], "sleep=true is read with policy.rollout=vllm", [*VLLM, "policy.device=cuda"]),
        (["policy.engine.arguments.seed=1"], 'policy.engine.arguments={"seed": 1} is read with policy.rollout=', VLLM),
        (["policy.engine.devices='1'", "cluster.listen=:1", "collect.mode=async"], "devices=1 is read with", VLLM),
        (
            ["policy.engine.tls_ca=ca.pem", *VLLM],
            "policy.engine.tls_ca=ca.pem is read with policy.engine.url only",
            ["policy.engine.url='https://h:1'"],
        ),
        (["policy.lora.alpha=9"], "policy.lora.alpha=9 is read with policy.lora.rank only", ["policy.lora.rank=4"]),
        (["policy.lora.targets=[q_proj]"], 'targets=["q_proj"] is read with policy.lora.rank', ["policy.lora.rank=4"]),
        (
            ["train.gradient_sync=step"],
            "train.gradient_sync=step is read with train.ranks above 1, or by torchrun, only; set it, or leave",
            ["train.ranks=2"],
        ),
        (["train.rank_timeout=9"], "train.rank_timeout=9.0 is read with train.ranks above 1", ["train.ranks=2"]),
        (
            ["loss.rollout_cap=3", "train.old_log_probs=all"],
            "loss.rollout_cap=3.0 is read with loss.rollout_correction=token or sequence only; set it, or leave",
            ["loss.rollout_correction=token"],
        ),
        (["expert.plan_source=converted", "expert.plans=p"], "is read with expert.plans=null", ["expert.plans=null"]),
        (["expert.oracle_style=native", "expert.logs=[l]"], "is read with expert.logs=[] only", ["expert.logs=[]"]),
        (["eval.episodes=2", "eval.every=0"], "eval.episodes=2 is read with eval.every=N only", ["eval.every=1"]),
        (
            ["env.held_out_limit=2", "env.held_out_split=null"],
            "env.held_out_limit=2 is read with env.held_out_split only; set it, or leave this out",
            ["env.held_out_split=held_out"],
        ),
        (
            ["record.outcomes=true", "eval.final_episodes=0"],
            "record.outcomes=true is read with eval.final_episodes=N only",
            ["eval.final_episodes=1"],
        ),
    ],
)
def test_what_nothing_would_read_is_refused(given: list[str], problem: str, reader: list[str]) -> None:
    """The message names it, its value, what would read it and the fix; with that, it is accepted."""
    with pytest.raises(ConfigError) as raised:
        load_config([*ALONE, *given])
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    load_config([*ALONE, *given, *reader])


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        ("loss.clip=[0.1,0.1]", "methods that collect rollouts"),
        ("advantage.kind=maxrl", "methods that collect rollouts"),
        ("collect.env_seed=slot", "methods that collect rollouts"),
        ("train.inner_epochs=2", "methods that collect rollouts"),
        ("cache.rule=shortest", "methods that refresh their cache by a rule of one's choice"),
        ("cache.refresh=wording", "methods that refresh their cache"),
        ("cache.max_tasks=3", "methods that have a cache"),
        ("sft.weight=0.5", "algo=rl_sft"),
        ("collect.mode=async", "methods that collect rollouts"),
        ("train.save_every=5", "methods that collect rollouts"),
        ("expert.seed_from_converted=true", "methods that start from self-rollouts, such as bepa and level1,"),
    ],
)
def test_settings_of_methods_are_read_by_one_of_the_run(given: str, reads: str) -> None:
    """By that of ``algo`` or one in ``compare``."""
    name = given.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}=.* read with {reads} only; train one by algo or comp"):
        load_methods(["algo=sft", "compare=[sft_self]", given])
    assert set(load_methods(["algo=bepa", "compare=[sft,rl_sft]", given])) == {"bepa", "sft", "rl_sft"}


@pytest.mark.parametrize("given", ["loss.clip=[0.1,0.1]", "loss.dual_clip=3", "loss.ratio=sequence"])
def test_ratios_that_are_exactly_one_read_nothing(given: str) -> None:
    """As those of ``policy=uitars15_7b``, which takes one optimiser step per iteration."""
    once = ["policy=uitars15_7b", *ALONE, given]
    name = given.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}=.* is read with several optimiser steps per iteration"):
        load_config(once)
    for reads in ("train.minibatch_groups=4", "train.inner_epochs=2", "train.old_log_probs=injected"):
        load_config([*once, reads])
    assert load_config([*once, "resume=true"]).resume
    weighted = [*once, "loss.rollout_correction=token"]
    if name == "loss.ratio":
        assert load_config(weighted).loss.ratio == "sequence"
    else:
        with pytest.raises(ConfigError, match="set one of them, or leave this out"):
            load_config(weighted)


def test_the_loss_after_a_hand_over_is_of_self_rollouts() -> None:
    given = ["expert.handover=1", "expert.handover_loss=after", "compare=[]"]
    with pytest.raises(ConfigError, match=r"handover_loss=after is read with methods that start from self-rollouts or"):
        load_config(["algo=sft", *given])
    assert load_config(["algo=sft_self", *given]).expert.handover_loss == "after"


@pytest.mark.parametrize("setting", ["max_leak=0.5", "handover=1", "selfroll_attempts=2", "selfroll_budget=9"])
def test_self_rollouts_that_have_been_made_read_nothing(setting: str) -> None:
    settings = load_config([*ALONE, "algo=bepa", "cache.seed=FOLDER", f"expert.{setting}"])
    problem = settings_beside_seed(settings)
    assert problem is not None
    assert f"expert.{setting} is read with self-rollouts " in problem
    assert "give it to `bepa experts selfroll`" in problem
    again = with_changes(settings, {"expert.reroll_every": 2})
    assert (settings_beside_seed(again) is None) == ("budget" not in setting)
    assert settings_beside_seed(with_changes(settings, {"resume": True})) is None


def test_settings_of_fine_tuning_are_for_methods_that_fine_tune() -> None:
    with pytest.raises(ConfigError, match=r"sft\.epochs=9 and sft\.batch=2 are read with methods that fine-tune only"):
        load_methods(["sft.epochs=9", "sft.batch=2"])
    assert load_methods(["sft.epochs=9", "compare=[sft_rl]"])["sft_rl"].sft.epochs == 9


def test_a_learning_rate_of_the_command_line_is_read() -> None:
    """Whatever its value: 3e-4 is both rates' in ``policy/tiny.yaml``. A resumed run may have begun without it."""
    given = ["algo=sft", "optimizer.lr=3e-4"]
    with pytest.raises(
        ConfigError, match=r"lr=0\.0003 is read with methods that collect rollouts only; set sft\.lr, or"
    ):
        load_methods([*given, "compare=[sft_self]"])
    assert set(load_methods([*given, "compare=[grpo]"])) == {"sft", "grpo"}
    assert load_config([*given, "compare=[]", "resume=true"]).resume
    given = ["algo=bepa", "sft.lr=3e-4"]
    with pytest.raises(
        ConfigError, match=r"sft\.lr=0\.0003 is read with methods that fine-tune only; set optimizer\.lr"
    ):
        load_methods([*given, "compare=[rl_sft]"])
    assert set(load_methods([*given, "compare=[sft_rl]"])) == {"bepa", "sft_rl"}


def test_a_learning_rate_in_a_mapping_is_read() -> None:
    """Hydra merges a mapping into the section: it gives the settings that are in it."""
    with pytest.raises(ConfigError, match=r"optimizer\.lr=0\.0003 is read with methods that collect rollouts only"):
        load_config(["algo=sft", "compare=[]", "optimizer={lr: 3e-4, weight_decay: 0.1}"])
    assert load_config(["algo=sft", "compare=[]", "optimizer={weight_decay: 0.1}"]).optimizer.weight_decay == 0.1


def test_a_method_that_fixes_its_rule_reads_none() -> None:
    with pytest.raises(ConfigError, match=r"cache\.rule=shortest is read with methods that refresh"):
        load_config(["algo=arpo", "cache.rule=shortest"])


def test_ranks_of_torchrun_read_what_is_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert load_config(["train.rank_timeout=9"]).train.rank_timeout == 9.0


def test_an_engine_of_bepa_rollouts_reads_the_trainers_settings() -> None:
    """All but those of its machine."""
    listens = ["cluster.listen=0.0.0.0:1", "collect.mode=async", "compare=[]"]
    assert load_config([*listens, "policy.engine.tolerance=0.5"]).policy.engine.tolerance == 0.5


def test_a_run_that_has_begun_goes_on(default: Settings) -> None:
    unread = replace(default, storage_wait=9.0)
    assert settings_are_read(unread) is not None
    assert settings_are_read(replace(unread, resume=True)) is None


def test_defaults_are_read_or_not(default: Settings) -> None:
    assert first_problem(default, [settings_are_read]) is None


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_override_of_a_shipped_choice_leaves_a_value_of_its_file_to_be_refused(path: Any) -> None:
    """What a file sets is in no row, unless it is the default."""
    names = {name for reader in READERS for name in reader.settings()}
    own = dict(leaves(yaml.safe_load(path.read_text(encoding="utf-8"))))
    assert {key: value for key, value in own.items() if key in names and value != default_of(key)} == {}


def test_every_row_has_settings_with_a_default() -> None:
    names = {name for reader in READERS for name in reader.settings()}
    assert names <= set(setting_names())
    assert not [name for name in names if default_of(name) is MISSING]
    assert {"policy.engine.sleep", "judge.model", "loss.clip", "storage_wait"} <= names
