"""Settings: every file loads, unknown names suggest the nearest known one, invalid types and choices are errors."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from repository import ROOT

from bepa_torchrl.cache import rules
from bepa_torchrl.experiment import settings as settings_module
from bepa_torchrl.experiment.config import (
    CONFIGS,
    GROUPS,
    RENAMED,
    ConfigError,
    build_settings,
    load_config,
    load_methods,
    read_settings,
    setting_names,
    settings_to_dict,
    settings_to_yaml,
)
from bepa_torchrl.experiment.preflight import checkpoint
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.settings.__main__ import settings_page, train_yaml
from bepa_torchrl.experts import plan
from bepa_torchrl.functional import RATIOS, advantage, aggregation
from bepa_torchrl.methods import METHODS
from osworld_gym.tasks.evaluation.score import Backend
from osworld_gym.tasks.oracles.registry import STYLES

FILES = sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.yaml"))
SECTIONS = [
    cls for cls in vars(settings_module).values() if isinstance(cls, type) and cls.__name__.endswith("Settings")
]


@pytest.fixture(scope="module")
def default() -> Settings:
    return load_config()


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# --- the files ------------------------------------------------------------------------------------------------------


def test_every_file_is_in_a_known_group() -> None:
    assert [f for f in FILES if "/" not in f] == ["train"]
    assert {f.split("/")[0] for f in FILES if "/" in f} == set(GROUPS)


@pytest.mark.parametrize("name", [f for f in FILES if "/" in f])
def test_every_file_loads_with_all_its_values(name: str) -> None:
    group, choice = name.split("/")
    loaded = dict(leaves(dataclasses.asdict(load_config([f"{group}={choice}"]))))
    own = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    own.pop("defaults", None)
    for key, value in leaves(own):
        assert loaded[key] == (tuple(value) if isinstance(value, list) else value), key


@pytest.mark.parametrize("name", [f for f in FILES if f.startswith(("env/", "policy/", "algo/"))])
def test_no_file_repeats_a_default(name: str) -> None:
    """env/osworld.yaml and env/desktop.yaml replace values of env/local.yaml, so they are compared with that."""
    data = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    base = yaml.safe_load((CONFIGS / "train.yaml").read_text())
    if data.pop("defaults", None):
        local = dict(leaves(yaml.safe_load((CONFIGS / "env" / "local.yaml").read_text())))
        base = {key: value for key, value in leaves(base) if key not in local} | local
    else:
        base = dict(leaves(base))
    assert {key for key, value in leaves(data) if base.get(key, ...) == value} == set()


def test_every_method_has_its_file() -> None:
    assert {f.split("/")[1] for f in FILES if f.startswith("algo/")} == set(METHODS)
    for name in METHODS:
        assert load_config([f"algo={name}"]).algo.name == name


def test_policy_files_set_the_optimiser_that_suits_them(default: Settings) -> None:
    tiny, large = default, load_config(["policy=uitars15_7b"])
    assert (tiny.optimizer.lr, tiny.optimizer.betas, tiny.optimizer.weight_decay) == (3e-4, (0.9, 0.99), 0.0)
    assert (large.optimizer.lr, large.optimizer.betas, large.optimizer.weight_decay) == (1e-6, (0.9, 0.999), 0.01)
    assert (large.policy.max_prompt_tokens, large.policy.history, large.train.max_tokens) == (65536, "all", 66048)
    assert (large.loss.clip, large.loss.aggregation, large.advantage.std) == ((0.2, 0.3), "group", "population")


def test_the_generated_files_are_what_the_dataclasses_give(default: Settings) -> None:
    """After a change of the dataclasses: make settings."""
    assert (CONFIGS / "train.yaml").read_text() == train_yaml()
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page()
    described = re.findall(r"^\| `([\w.]+)` ", settings_page(), flags=re.MULTILINE)
    free = {"env.options", "policy.engine.arguments"}
    leaf_names = [key for key, _ in leaves(settings_to_dict(default))]
    assert sorted(described) == sorted(leaf_names)
    assert free <= set(described)


# --- the dataclasses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", SECTIONS)
def test_every_field_is_documented_in_its_class(cls: type) -> None:
    described = re.findall(r"^ {8}(\w+): ", cls.__doc__ or "", flags=re.MULTILINE)
    assert described == [field.name for field in dataclasses.fields(cls)]


def test_choices_are_those_of_the_components() -> None:
    def named(cls: type, field: str) -> set[str]:
        return set(get_args(get_type_hints(cls)[field]))

    assert named(settings_module.LossSettings, "aggregation") == set(aggregation.AGGREGATIONS)
    assert named(settings_module.LossSettings, "unit") == set(aggregation.UNITS)
    assert named(settings_module.LossSettings, "ratio") == set(RATIOS)
    assert named(settings_module.AdvantageSettings, "kind") == set(advantage.ADVANTAGE_KINDS)
    assert named(settings_module.AdvantageSettings, "std") == set(advantage.STD_RULES)
    assert named(settings_module.CacheSettings, "rule") == set(rules.RULES)
    assert named(settings_module.ExpertSettings, "plan_source") == set(plan.SOURCES)
    assert named(settings_module.ExpertSettings, "oracle_style") == set(STYLES)
    assert named(settings_module.EnvSettings, "evaluators") == {backend.value for backend in Backend}


def test_advantages_of_another_kind_have_no_standard_deviation() -> None:
    assert load_methods(["advantage.kind=maxrl"])["bepa"].advantage.kind == "maxrl"
    with pytest.raises(ConfigError, match=r"advantage\.std=none is read with advantage\.kind=grpo only; leave one"):
        load_methods(["advantage.kind=maxrl", "advantage.std=none"])
    with pytest.raises(ConfigError, match="algo=luffy has the advantages of GRPO"):
        load_methods(["advantage.kind=leave_one_out", "algo=luffy"])


def test_the_eps_of_advantages_is_set_with_a_standard_deviation() -> None:
    assert load_methods(["advantage.std=bessel", "advantage.eps=1e-4"])["grpo"].advantage.eps == 1e-4
    assert load_methods(["advantage.std=none"])["grpo"].advantage.std == "none"
    with pytest.raises(
        ConfigError, match=r"advantage\.eps=0\.0001 is read with a standard .* advantage\.std=none .*; leave one"
    ):
        load_methods(["advantage.std=none", "advantage.eps=1e-4"])
    luffy = ["algo=luffy", "compare=[]", "algo.preset=released", "loss.max_length=100"]
    with pytest.raises(ConfigError, match=r"is read with a standard deviation, without .* algo\.preset=released, only"):
        load_methods([*luffy, "advantage.eps=1e-4"])
    beside = [*luffy, "loss.aggregation=sum_norm", "advantage.eps=1e-4"]
    assert load_methods([*beside, "compare=[grpo]"])["grpo"].advantage.eps == 1e-4  # whose advantages are divided
    with pytest.raises(ConfigError, match=r"is read with a standard deviation, without .* algo\.preset=released, only"):
        load_methods([*beside, "compare=[sft]"])


@pytest.mark.parametrize(
    "setting", ["advantage.std=bessel", "loss.aggregation=token", "loss.clip=[0.1,0.1]", "loss.dual_clip=3.0"]
)
def test_what_a_preset_of_luffy_fixes_cannot_be_set(setting: str) -> None:
    released = ["algo=luffy", "algo.preset=released", "loss.max_length=100", "compare=[]"]
    with pytest.raises(ConfigError, match=rf"{setting.split('=')[0]} is fixed by algo\.preset=released of algo=luffy"):
        load_methods([*released, setting])
    assert load_methods([*released, "advantage.std=none", "loss.aggregation=sum_norm"])["luffy"].loss.dual_clip is None
    with pytest.raises(ConfigError, match=r"compare=\[luffy\]: advantage\.std is fixed by .*, got none; leave it out"):
        load_methods(["algo=bepa", "compare=[luffy]", "advantage.std=none"])
    assert load_methods(["algo=luffy", "compare=[]", "loss.dual_clip=3.0"])["luffy"].loss.dual_clip == 3.0


def test_self_rolling_again_is_for_methods_that_have_self_rolled() -> None:
    with pytest.raises(ConfigError, match=r"expert\.reroll_every=5 is read with methods that start from self-rollouts"):
        load_methods(["algo=level2", "compare=[]", "expert.reroll_every=5"])
    assert set(load_methods(["algo=bepa", "compare=[level2]", "expert.reroll_every=5"])) == {"bepa", "level2"}


def test_the_ratio_of_a_response_is_for_tokens() -> None:
    with pytest.raises(ConfigError, match=r"loss\.ratio=sequence is for loss\.unit=token, got loss\.unit=step"):
        load_methods(["loss.ratio=sequence", "loss.unit=step"])


def test_dynamic_sampling_does_not_leave_out_the_anchors_groups() -> None:
    assert load_methods(["collect.dynamic=4"])["grpo"].collect.dynamic == 4
    with pytest.raises(ConfigError, match=r"collect\.dynamic=4 leaves out solved groups, .* set one to 0"):
        load_methods(["collect.dynamic=4", "loss.anchor=0.1"])


def test_dynamic_sampling_is_for_rollouts() -> None:
    assert set(load_methods(["algo=sft", "compare=[grpo]", "collect.dynamic=4"])) == {"sft", "grpo"}
    with pytest.raises(
        ConfigError, match=r"collect\.dynamic=4 is read with methods that collect rollouts only; train one"
    ):
        load_methods(["algo=sft", "compare=[]", "collect.dynamic=4"])


def test_the_gate_of_a_distillation_is_set_with_its_weight() -> None:
    assert load_methods(["loss.distill_weight=0.01", "loss.distill_beta=3"])["bepa"].loss.distill_beta == 3.0
    with pytest.raises(
        ConfigError, match=r"loss\.distill_beta=3\.0 is read with loss\.distill_weight only; set it, or"
    ):
        load_methods(["loss.distill_beta=3"])


@pytest.mark.parametrize("name", ["kl_weight", "entropy_weight", "distill_weight"])
def test_terms_of_tokens_are_for_tokens_and_for_rollouts(name: str) -> None:
    assert getattr(load_methods([f"loss.{name}=0.1"])["grpo"].loss, name) == 0.1
    with pytest.raises(ConfigError, match=rf"loss\.{name}=0\.1 is for loss\.unit=token, got loss\.unit=step"):
        load_methods([f"loss.{name}=0.1", "loss.unit=step"])
    with pytest.raises(ConfigError, match=rf"loss\.{name}=0\.1 is read with methods that collect rollouts only"):
        load_methods([f"loss.{name}=0.1", "algo=sft", "compare=[]"])


def test_the_anchor_is_for_rollouts_and_for_any_unit() -> None:
    assert load_methods(["loss.anchor=0.1", "loss.unit=step"])["bepa"].loss.anchor == 0.1
    with pytest.raises(ConfigError, match=r"loss\.anchor=0\.1 is read with methods that collect rollouts only"):
        load_methods(["loss.anchor=0.1", "algo=sft", "compare=[]"])


def test_settings_are_frozen(default: Settings) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        default.seed = 1  # type: ignore[misc]


# --- overrides ------------------------------------------------------------------------------------------------------


def test_values_override_files_and_experiments_override_groups() -> None:
    config = load_config(["experiment=smoke", "collect.groups=3", "optimizer.lr=1", "name=x"])
    assert (config.collect.groups, config.collect.group_size, config.optimizer.lr, config.name) == (3, 2, 1.0, "x")
    assert isinstance(config.optimizer.lr, float)


def test_provider_options_are_free() -> None:
    assert load_config(["env.options={proxy: 'http://x'}"]).env.options == {"proxy": "http://x"}
    assert load_config(["env.options.size=[640,480]"]).env.options == {"size": [640, 480]}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.options.urls=['http://h:1','http://hid/den@h:5000']", "env.options.urls: .*; set the variable OSWORLD"),
        ("env.options.reset_by='http://user:hidden@host/reset'", "env.options.reset_by: .*; name a command that"),
        ("env.options.mine={a: ['ssh://hidden@host']}", "env.options.mine: .*; leave it out"),
        ("policy.engine.url='http://hidden@host:1'", "policy.engine.url: .*; set policy.engine.token_file"),
        ("judge.url='https://user:hidden@host/v1'", "judge.url: .*; set the variable OPENAI_API_KEY"),
    ],
)
def test_no_url_in_the_settings_has_a_token(override: str, message: str) -> None:
    """They are written to the run's folder. The error does not print it either."""
    with pytest.raises(ConfigError, match=message) as caught:
        load_config([override])
    assert "hid" not in str(caught.value)


def test_urls_without_a_token_are_settings() -> None:
    given = ["env.options.urls=['http://10.0.0.6:5000']", "env.options.reset_by='ssh root@host revert'"]
    assert load_config(given).env.options["urls"] == ["http://10.0.0.6:5000"]


def test_a_missing_folder_of_a_run_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    problem = checkpoint(load_config(["policy.checkpoint=runs/typo"]))
    assert problem is not None
    assert "policy.checkpoint=runs/typo: expected a checkpoint folder, no such folder" in problem
    for settings in (["policy.checkpoint=owner/name"], ["policy.checkpoint=runs/typo", "runs=elsewhere"]):
        assert "expected a checkpoint folder" not in (checkpoint(load_config(settings)) or "")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algo=bepaa", "unknown algo 'bepaa' (did you mean 'bepa'?); known: arpo, bepa, grpo"),
        ("algo.name=bepaa", "unknown algo 'bepaa' (did you mean 'bepa'?)"),
        ("compare=[lufy]", "compare: unknown algo 'lufy' (did you mean 'luffy'?)"),
        ("env=lokal", "unknown env 'lokal' (did you mean 'local'?); known: desktop, local, osworld, sim"),
        (
            "policy=gpt",
            "unknown policy 'gpt'; known: local, opencua_7b, qwen3vl_2b_tools, qwen3vl_8b, qwen3vl_8b_tools, tiny, ",
        ),
        ("train.iteration=3", "unknown key 'train.iteration' (did you mean 'train.iterations'?)"),
        ("lr=1e-4", "unknown key 'lr' (did you mean 'optimizer.lr' or 'sft.lr'?)"),
        ("iterations=3", "unknown key 'iterations' (did you mean 'train.iterations'?)"),
        ("train={iteration: 3}", "unknown key 'train.iteration' (did you mean 'train.iterations'?)"),
        ("train={keep: 0}", "train.keep: expected an integer of at least 1, got 0; the default is train.keep=2"),
        ("algos=grpo", "unknown key 'algos' (did you mean 'algo'?)"),
        ("train.iterations=many", "train.iterations: expected an integer of at least 1, got 'many'; the default is"),
        ("train.iterations=2.5", "train.iterations: expected an integer of at least 1, got 2.5"),
        ("threads=0", "threads: expected an integer of at least 1, got 0; the default is threads=1"),
        ("collect.temperature=0", "collect.temperature: expected a number above 0, got 0"),
        ("resume=1", "resume: expected true or false, got 1; the default is resume=false"),
        ("compare=grpo", "got 'grpo'; write 'compare=[grpo]', quoted for the shell; the default is compare=[grpo]"),
        (
            "loss.clip=[0.2]",
            "loss.clip: expected a list of 2, each a number of at least 0, got [0.2]; the default is loss.clip=",
        ),
        ("loss.aggregation=sum", "loss.aggregation: expected one of group, token, sequence"),
        ("loss.dual_clip=1", "loss.dual_clip: expected a number above 1 or null, got 1"),
        ("name=[a]", "name: expected text or null, got ['a']"),
        ("train=3", "train: expected a section with the keys iterations, inner_epochs"),
        (
            "loss.aggregation=sum_norm",
            "loss.aggregation=sum_norm requires the longest episode in units",
        ),
        (
            "loss.max_length=9",
            "loss.max_length=9 is read with loss.aggregation=sum_norm only, got loss.agg",
        ),
        ("loss.kl_weight=-1", "loss.kl_weight: expected a number of at least 0, got -1"),
        ("loss.ratio=episode", "loss.ratio: expected one of token, sequence"),
        ("algo.gamma=0.2", "algo.gamma=0.2 is read with algo=luffy only; leave it out"),
        ("algo.gain=2", "algo.gain=2.0 is read with algo=prefix only; leave it out"),
        ("advantage.kind=rloo", "advantage.kind: expected one of grpo, leave_one_out, maxrl"),
        ("loss.clip=[-1,0.2]", "loss.clip: expected a list of 2, each a number of at least 0, got [-1, 0.2]"),
        ("optimizer.betas=[0.9,1]", "expected a list of 2, each a number of at least 0 and below 1, got [0.9, 1]"),
        ("+new=1", "+new=1: keys cannot be added or deleted"),
        ("seed", "expected key=value"),
        ("seed=${none}", "none"),
    ],
)
def test_wrong_settings_are_one_line_that_says_how_to_fix_them(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_per_micro_batch_were_replaced_by_a_token_budget() -> None:
    with pytest.raises(ConfigError, match=r"'train\.micro_batch': it was replaced by 'train\.max_tokens', a number"):
        load_config(["train.micro_batch=1"])


def test_a_token_budget_below_the_longest_row_is_refused() -> None:
    """The tiny policy's longest row has 1024 + 96 tokens."""
    assert load_config(["train.max_tokens=1120"]).train.max_tokens == 1120
    with pytest.raises(ConfigError, match=r"train\.max_tokens=1119 .*=1024 .*=96; set train\.max_tokens=1120"):
        load_config(["train.max_tokens=1119"])
    resumed = load_config(["train.max_tokens=1119", "resume=true", "name=run"])  # as the out-of-memory error advises
    assert resumed.train.max_tokens == 1119


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.history_images=5"], r"history=all shows every screenshot .* got 5; use history=last_k or"),
        (["policy.history=last_k"], r"history=last_k requires history_images of at least 1 .* got None"),
    ],
)
def test_a_number_of_images_that_does_not_go_with_the_history_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(["policy=uitars15_7b", *overrides])
    for given in (["policy.history=all"], ["policy.history=all", "policy.history_images=null"]):
        with pytest.raises(ConfigError, match=r"policy\.history: preset=compact shows the current screenshot only"):
            load_config(["policy=tiny", *given])
    policy = load_config(["policy=uitars15_7b", "policy.history=evict_block", "policy.history_images=5"]).policy
    assert (policy.history, policy.history_images) == ("evict_block", 5)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    assert new in setting_names()
    with pytest.raises(ConfigError, match=f"unknown key '{old}': it was renamed to '{new}'"):
        load_config([f"{old}=1"])


def test_a_users_folder_adds_files_which_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    mine = tmp_path / "env" / "mine.yaml"
    mine.write_text("# @package _global_\nenv:\n  desktops: 5\n  provider: sim\n  suite: sim\n  deadline: 10\n")
    with pytest.raises(ConfigError, match="unknown env 'mine'"):
        load_config(["env=mine"])
    config = load_config(["env=mine"], config_dir=tmp_path)
    assert (config.env.desktops, config.env.deadline) == (5, 10.0)
    mine.write_text(mine.read_text().replace("deadline", "dead_line"))
    with pytest.raises(ConfigError, match=r"unknown key 'env.dead_line' \(did you mean 'env.deadline'\?\)"):
        load_config(["env=mine"], config_dir=tmp_path)
    mine.write_text("# @package _global_\nenv:\n  desktops: many\n")
    with pytest.raises(ConfigError, match=r"env\.provider: expected a value, got none|env\.desktops: expected"):
        load_config(["env=mine"], config_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"--config-dir: expected an existing folder, got .*no"):
        load_config([], config_dir=tmp_path / "no")


def test_a_budget_of_self_rollouts_replaces_their_number_per_task() -> None:
    both = ["expert.selfroll_budget=9", "expert.selfroll_attempts=2"]
    with pytest.raises(ConfigError, match=r"expert\.selfroll_attempts=2 is read with expert\.selfroll_budget=null or"):
        load_config(both)
    assert load_config([*both, "expert.reroll_every=5"]).expert.selfroll_attempts == 2  # which re-rolling reads
    assert load_config(both[:1]).expert.selfroll_budget == 9


def test_a_loss_after_the_hand_over_requires_one() -> None:
    assert load_config(["expert.handover=3", "expert.handover_loss=after"]).expert.handover_loss == "after"
    with pytest.raises(ConfigError, match=r"handover_loss=after is read with expert\.handover=M or cache\.seed"):
        load_config(["expert.handover_loss=after"])


def test_stale_traces_are_replaced_only_where_tasks_are_self_rolled_again() -> None:
    with pytest.raises(ConfigError, match=r"expert\.reroll_stale=20 is read with expert\.reroll_every=N only; set it"):
        load_config(["expert.reroll_stale=20"])
    assert load_config(["expert.reroll_stale=20", "expert.reroll_every=5"]).expert.reroll_stale == 20


def test_the_file_of_a_wrong_value_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "mine.yaml"
    mine.write_text("# @package _global_\ntrain:\n  iterations: 0\n")
    with pytest.raises(ConfigError, match=rf"train\.iterations: expected an integer .*, got 0 \(in {mine}\)$"):
        load_config(["experiment=mine"], config_dir=tmp_path)


def test_every_method_of_a_run_is_loaded_and_checked() -> None:
    loaded = load_methods(["algo=level1", "compare=[grpo,level1,luffy]", "collect.group_size=3"])
    assert [(name, own.algo.name) for name, own in loaded.items()] == [(name, name) for name in loaded]
    assert list(loaded) == ["level1", "grpo", "luffy"]
    with pytest.raises(ConfigError, match=r"compare=\[luffy\]: collect\.group_size=2: luffy requires at least 3"):
        load_methods(["compare=[grpo,luffy]", "collect.group_size=2"])
    assert load_methods(["algo=luffy", "algo.gamma=0.2", "compare=[grpo]"])["grpo"].algo.gamma == 0.1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["seed=-5"], "seed: expected an integer of at least 0, got -5; the default is seed=0"),
        (["experiment=none_left"], "train.iterations: expected an integer of at least 1, got 0 (in "),
        (
            ["compare=[luffy]", "collect.group_size=2"],
            "compare=[luffy]: collect.group_size=2: luffy requires at least 3",
        ),
        (["compare=[odd]"], "compare: unknown algo 'odd'; known: bepa, "),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_made(given: list[str], problem: str, tmp_path: Path) -> None:
    """On the command line, in an experiment's file, and for a method that is only compared."""
    for name, text in (("experiment/none_left", "train: {iterations: 0}"), ("algo/odd", "algo: {name: grpo}")):
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"# @package _global_\n{text}\n")
    command = [sys.executable, "-m", "bepa_torchrl", "train", "--config-dir", str(tmp_path / "own"), *given]
    done = subprocess.run(
        [*command, f"runs={tmp_path / 'runs'}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"bepa train: {problem}")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["algo=level1"], "for methods that refresh their cache and inject on failure, got algo=level1"),
        (["algo=luffy"], "for methods that refresh their cache and inject on failure, got algo=luffy"),
        (["cache.min_successes=2"], "cache.min_successes=2 leaves out"),
    ],
)
def test_weights_by_need_are_refused_where_nothing_counts_them(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(["cache.injected_weight=need", *given])
    assert load_methods(["cache.injected_weight=need", "compare=[grpo]"])["grpo"].cache.injected_weight == "need"
    with pytest.raises(ConfigError, match=r"cache\.injected_weight=need is read with methods that inject traces only"):
        load_config(["cache.injected_weight=need", "algo=grpo"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["algo=luffy"], "cache.injected_kept=failures is for methods that inject on failure, got algo=luffy"),
        (["cache.injected_weight=need"], "that cache.injected_kept=failures sets to 0"),
        (["algo=grpo"], "cache.injected_kept=failures is read with methods that inject traces only"),
    ],
)
def test_kept_advantages_are_refused_where_they_have_no_effect(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(["cache.injected_kept=failures", *given])
    assert load_methods(["cache.injected_kept=trace", "compare=[grpo]"])["bepa"].cache.injected_kept == "trace"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["algo=level1", "compare=[]"], "one trace per task, got algo=level1 and cache.rule=random; set algo=bepa"),
        (["algo=arpo"], "for methods that refresh one trace per task, got algo=arpo"),
        (["cache.rule=all"], "got algo=bepa and cache.rule=all"),
        (["collect.mode=async"], "requires collect.mode=sync"),
        (["policy.engine.sleep=true"], "samples after the rollouts; set policy.engine.sleep=false"),
    ],
)
def test_a_part_of_the_refresh_is_refused_where_no_sampler_can_write_it(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load_config(["cache.refresh=wording", *given])
    both = load_methods(["cache.refresh=actions", "compare=[grpo,level1]"])
    assert both["bepa"].cache.refresh == "actions"
    with pytest.raises(ConfigError, match=r"cache\.reword_tries=8 is read with cache\.refresh=wording or actions only"):
        load_config(["cache.reword_tries=8"])


@pytest.mark.parametrize("method", ["level1", "grpo", "sft_self"])
def test_successes_that_refresh_a_cache_are_refused_where_no_cache_is_refreshed(method: str) -> None:
    message = (
        "cache.min_successes=4 is read with methods that refresh their cache only; train one by algo or compare, or"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(["cache.min_successes=4", f"algo={method}", "compare=[]"])
    both = load_methods(["cache.min_successes=4", f"algo={method}", "compare=[bepa]"])
    assert both["bepa"].cache.min_successes == 4


# --- the run folder's file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [[], ["experiment=smoke", "env=osworld", "name='1e5'", "env.options.a.b=[1,x]"]])
def test_settings_survive_their_file(overrides: list[str], tmp_path: Path) -> None:
    config = load_config(overrides)
    (tmp_path / "config.yaml").write_text(settings_to_yaml(config))
    assert read_settings(tmp_path / "config.yaml") == config


def test_a_damaged_file_of_settings_is_one_line_with_its_path(default: Settings, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text, message in (
        ("a: [", "expected YAML"),
        ("a: \udcff", "expected YAML: 'utf-8' codec can't decode"),
        ("3", "expected the settings of a run, got int"),
        ("seed: 1", "env: expected a value, got none|name: expected a value, got none"),
        (settings_to_yaml(default).replace("warm_pool: 0", "warm: 0"), "'env.warm': it was renamed to 'env.warm_pool'"),
    ):
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(ConfigError, match=message) as caught:
            read_settings(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_key_that_a_newer_version_has_added_gets_its_default(tmp_path: Path) -> None:
    """A saved run lacks it; a setting without a default, which every version has had, is named."""
    saved = load_config(["train.keep=7", "train.save_every=3", "policy.lora.rank=3", "policy.lora.alpha=9"])
    data = yaml.safe_load(settings_to_yaml(saved))
    del data["train"]["keep"], data["policy"]["lora"], data["record"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    read = read_settings(tmp_path / "config.yaml")
    assert (read.train.keep, read.train.save_every, read.policy.lora.alpha, read.record.every) == (2, 3, 64, 5)
    del data["env"]["desktops"]
    with pytest.raises(ConfigError, match=r"env\.desktops: expected a value, got none; set env\.desktops=\.\.\."):
        build_settings(data)
