"""A run's requirements are checked before its folder is created; the message has the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.checks import COMMAND
from bepa_torchrl.experiment.config import ConfigError, check, load_config
from osworld_gym.desktops.local import desktop as local_desktop
from osworld_gym.errors import DesktopError
from osworld_gym.extras import EXTRAS


def check_machine(*overrides: str) -> None:
    check(load_config(overrides), COMMAND)


def test_the_default_run_needs_nothing_else() -> None:
    check_machine()


def test_a_wrong_osworld_root_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSWORLD_ROOT", "/nope")
    with pytest.raises(ConfigError, match=r"OSWORLD_ROOT=/nope: expected .* no such folder; fix: export OSWORLD_ROOT="):
        check_machine("env=osworld", "env.provider=sim")
    monkeypatch.setenv("OSWORLD_ROOT", str(tmp_path))
    with pytest.raises(ConfigError, match=f"OSWORLD_ROOT={tmp_path}: .* no evaluation_examples/examples in it"):
        check_machine("env=osworld", "env.provider=sim")
    (tmp_path / "evaluation_examples" / "examples").mkdir(parents=True)
    check_machine("env=osworld", "env.provider=sim")
    monkeypatch.delenv("OSWORLD_ROOT")
    with pytest.raises(ConfigError, match=r"requires OSWORLD_ROOT, .*; fix: export OSWORLD_ROOT=FOLDER"):
        check_machine("env=osworld", "env.provider=sim")


def test_a_checkpoint_folder_must_be_whole(tmp_path: Path) -> None:
    for content, message in (
        (None, "expected a checkpoint folder, no such folder; fix: policy.checkpoint=FOLDER"),
        ({}, "expected a config.json, found none; fix: name the folder of a checkpoint"),
        ({"config.json": "{"}, r"found one that cannot be read \(Expecting property name"),
        ({"config.json": "[]", "model.safetensors": ""}, "found one that is a list, not a JSON object"),
        ({"config.json": "{}"}, r"expected weights in \*\.safetensors, found none"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir()))) / "model"
        if content is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in content.items():
                (folder / name).write_text(text)
        with pytest.raises(ConfigError, match=message):
            check_machine(f"policy.checkpoint='{folder}'")


def test_a_repository_must_be_in_the_cache_in_offline_mode_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    check_machine("policy.checkpoint=owner/name")  # it is downloaded when the policy is loaded
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["policy.checkpoint=owner/name", f"runs={tmp_path / 'runs'}"], prog="bepa train") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "policy.checkpoint=owner/name: the hub repository of this name is not in the local Hugging Face" in line
    assert "offline mode is on (HF_HUB_OFFLINE); fix: `hf download owner/name`" in line
    assert not (tmp_path / "runs").exists()
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    check_machine("policy.checkpoint=owner/name")


def test_a_missing_system_package_is_named_before_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(local_desktop.PROGRAMS, "no-such-program", "no-such-package")
    assert main(["env=local", f"runs={tmp_path}"], prog="bepa train") == 3
    error = capsys.readouterr().err
    assert "env.provider=local cannot be used here" in error
    assert "apt-get install" in error
    assert "no-such-package" in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_osworld_root_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSWORLD_ROOT", "/nope")
    assert main(["env=osworld", "algo=grpo", f"runs={tmp_path}"], prog="bepa train") == 2
    assert "bepa train: OSWORLD_ROOT=/nope: expected" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_provider_whose_python_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_provider: str, **_options: object) -> None:
        raise ModuleNotFoundError("No module named 'docker'", name="docker")

    monkeypatch.setattr("bepa_torchrl.experiment.preflight.make_desktop", make)
    with pytest.raises(DesktopError, match=r"env.provider=container requires the Python package docker; fix: pip inst"):
        check_machine("env.provider=container")


@pytest.mark.parametrize(
    ("override", "extra"),
    [("policy.lora.rank=8", "lora"), ("optimizer.kind=adamw_8bit", "adam8bit"), ("cluster.address=auto", "ray")],
)
def test_a_missing_extra_is_named_before_anything_is_prepared(
    override: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXTRAS, extra, ("no_such_module",))
    mode = ["collect.mode=async"] if extra == "ray" else []
    assert main([override, *mode, f"runs={tmp_path}"], prog="bepa train") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"requires no_such_module, not installed; fix: pip install 'osworld-gym[{extra}]'" in line
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_provider_option_is_named() -> None:
    with pytest.raises(ValueError, match="provider 'sim' has no option depth"):
        check_machine("env.options.depth=3")
