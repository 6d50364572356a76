"""The setting ``import``: modules that add methods and action texts, read where a run's settings are read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import install

from bepa_torchrl.experiment.config import ConfigError, load_config, read_settings, settings_to_yaml
from bepa_torchrl.methods import METHODS, LossKind, Method, SeedSource, method_named
from osworld_gym.action_text import ACTION_TEXTS

OWN = """
from bepa_torchrl.methods import METHODS, Method
from osworld_gym.action_text import ACTION_TEXTS

METHODS["own"] = Method("own", "on-policy rollouts")
ACTION_TEXTS["own_text"] = ACTION_TEXTS["uitars"]
"""
MODULE = "module_of_a_run"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module."""
    (tmp_path / f"{MODULE}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget()


def forget() -> None:
    """As a process in which the module was not imported."""
    if sys.modules.pop(MODULE, None):
        del METHODS["own"], ACTION_TEXTS["own_text"]


@pytest.mark.usefixtures("folder")
def test_a_method_of_an_imported_module_needs_no_file() -> None:
    given = [f"import=[{MODULE}]", "algo=own", "compare=[own, grpo]", "policy.action_text=own_text"]
    settings = load_config(given)
    assert (settings.import_, settings.algo.name, settings.compare) == ((MODULE,), "own", ("own", "grpo"))
    assert settings.policy.action_text == "own_text"
    assert method_named("own").about == "on-policy rollouts"
    forget()
    with pytest.raises(ConfigError, match="unknown algo 'own'"):
        load_config(["algo=own"])


def test_a_method_may_have_a_file_of_settings(folder: Path) -> None:
    (folder / "algo").mkdir()
    (folder / "algo" / "mine.yaml").write_text(
        f"# @package _global_\nimport: [{MODULE}]\nalgo: {{name: own}}\nseed: 7\n"
    )
    settings = load_config(["algo=mine"], config_dir=folder)
    assert (settings.algo.name, settings.seed) == ("own", 7)


def test_the_processes_of_a_run_import_what_its_settings_name(folder: Path) -> None:
    """A method's process and its ranks read the settings from their folder."""
    (folder / "config.yaml").write_text(settings_to_yaml(load_config([f"import=[{MODULE}]", "algo=own"])))
    forget()
    assert "own" not in METHODS
    settings = read_settings(folder / "config.yaml")
    assert method_named(settings.algo.name).name == "own"


def test_a_method_of_an_installed_package(folder: Path) -> None:
    module = "from bepa_torchrl.methods import Method\nOWN = Method('packaged', 'x')\n"
    install(folder, "package-of-a-run", "[bepa_torchrl.methods]\npackaged = package_of_a_run:OWN\n", module)
    sys.path.insert(0, str(folder))
    assert load_config(["algo=packaged", "compare=[]"]).algo.name == "packaged"
    assert method_named("packaged").about == "x"


def test_a_method_with_two_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "second", METHODS["grpo"])
    with pytest.raises(ValueError, match="the method 'second' was added with name='grpo'; give both the same name"):
        method_named("second")


def test_a_method_with_two_names_is_found_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "second", METHODS["grpo"])
    for given in (["algo=second", "compare=[]"], ["algo=grpo", "compare=[second]"]):
        with pytest.raises(ConfigError, match="'second' was added with name='grpo'"):
            load_config(given)


def test_values_of_a_method_may_be_text() -> None:
    """The trainer compares identities: ``loss="luffy"`` trained by GRPO's loss."""
    method = Method("own", "x", seed_source="converted", injection="always", loss="luffy", sft="self_rolled")
    assert method.loss is LossKind.luffy
    assert (method.seed_source, method.sft) == (SeedSource.converted, SeedSource.self_rolled)
    assert method.on_policy_rollouts(8, has_trace=True) == 7
    assert Method("own", "x", sft="nothing").needs_experts is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "grpoo"}, "method own: loss: expected one of grpo, luffy, rl_sft; got 'grpoo'"),
        ({"seed_source": "self"}, "seed_source: expected one of nothing, converted, self_rolled; got 'self'"),
        ({"injection": True}, "injection: expected one of never, on_failure, always, additional; got True"),
        ({"traces_per_task": 0}, "method own: traces_per_task: expected an integer >= 1, got 0"),
    ],
)
def test_a_method_with_an_unknown_value_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Method("own", "x", **given)
