"""The shipped checkpoint: its files match the manifest, it loads, and it can act."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.policies.transformers.policy import load_policy
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.types import PromptContext
from osworld_gym.uitars.parse import parse
from recipes.tiny.checkpoint import file_hashes, read_manifest, write_notes
from recipes.tiny.evaluate import measure
from recipes.tiny.gate import ORDER, gate_failures


def test_the_files_are_what_the_manifest_says() -> None:
    folder = tiny_checkpoint()
    assert file_hashes(folder) == read_manifest(folder)["sha256"]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 15_000_000


def test_a_changed_file_shows(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint(), tmp_path / "copy"))
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert file_hashes(folder) != read_manifest(folder)["sha256"]


def test_notes_keep_the_hashes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_notes(tmp_path, {"command": "c"})
    # sha256 of "{}"
    known = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"command": "c", "sha256": {"config.json": known}}


def test_it_passes_the_gate() -> None:
    assert gate_failures(read_manifest(tiny_checkpoint())["measured"]) == []


@pytest.mark.slow
def test_the_measured_figures_are_those_of_the_files() -> None:
    """Two episodes per task instead of eight, at another seed: 64 episodes per rate, three standard errors at most."""
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    found, stated = measure(policy, episodes=2, seed=1), read_manifest(tiny_checkpoint())["measured"]
    for split in ("train", "held_out"):
        for name in ("known", "unknown", "unknown_planned", "known_planned"):
            assert found[split][name] == pytest.approx(stated[split][name], abs=0.18), (split, name)
    for name, figures in stated["divergence"].items():
        assert found["divergence"][name]["tail"] == pytest.approx(figures["tail"], abs=0.02), name
        assert found["divergence"][name]["js"] == pytest.approx(figures["js"], abs=0.03), name
    js = [found["divergence"][name]["js"] for name in ORDER]
    raw, converted, level1, level2 = js
    assert raw > converted > level1 > 0, js
    assert level2 < level1 + 0.005, js  # two near sets: their order turns with the episodes (docs/history/log.md)
    dialect = found["dialect"]
    assert dialect["prompted_known"] == pytest.approx(stated["dialect"]["prompted_known"], abs=0.18)
    assert dialect["unprompted_share"] == pytest.approx(stated["dialect"]["unprompted_share"], abs=0.01)


def test_transformers_loads_it() -> None:
    model = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint())
    assert isinstance(model, Qwen2_5_VLForConditionalGeneration)
    assert len(AutoTokenizer.from_pretrained(tiny_checkpoint())) <= model.config.text_config.vocab_size


@pytest.mark.parametrize("seed", range(3))
def test_it_opens_an_application_on_a_fresh_desktop(seed: int) -> None:
    """Its responses parse, and a click on the empty desktop does what the thought states."""
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    desktop = SimDesktop()
    desktop.reset(seed)
    prompt = policy.render([PromptContext("turn on mute", [desktop.screenshot().png])])[0]
    assert prompt is not None
    response = policy.sample([prompt], [(0, seed)], temperature=0.0)[0]
    assert parse(response.text).actions[0].kind == "click"
