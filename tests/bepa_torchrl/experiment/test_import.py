"""The setting ``import``: modules that add methods and action texts, read where a run's settings are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import install

from bepa_torchrl.experiment.config import ConfigError, load_config, read_settings, settings_to_yaml
from bepa_torchrl.methods import METHODS, method_named
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
