"""``python -m recipes.tiny``: the wording's recipe, the checkpoint of an unfinished run, the gate of the wording."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.tasks.oracles.sim.expert_prose import VARIED
from osworld_gym.tasks.oracles.sim.free_prose import FREE
from recipes.tiny import __main__ as program
from recipes.tiny.checkpoint import read_manifest, write_checkpoint
from recipes.tiny.grounding import label_words
from recipes.tiny.pretrain import AGAIN, FREE_AGAIN, FREE_PLANS, FREE_WORDS, Pretraining, Recipe, new_model


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = [word for position in (*FREE, *VARIED) for word in position]
    corpus = [f"{before}{word}" for word in label_words() for before in " '"]
    return train_tokenizer([*corpus, *(f" {word}" for word in words), " just I see namely"])


@pytest.fixture
def small(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> Pretraining:
    """A run of the recipe in free words, without steps and 32 wide, which the command line makes as well."""
    recipe = replace(FREE_WORDS, steps=(0,) * 7, hidden=32, seed=3)
    monkeypatch.setattr(program, "RECIPES", {"free": replace(recipe, seed=0), "terse": Recipe()})
    monkeypatch.setattr(program, "short", lambda recipe, _share: recipe)
    monkeypatch.setattr(program, "project_tokenizer", lambda _styles: tokenizer)
    return Pretraining(new_model(tokenizer, recipe), tokenizer, recipe)


def test_a_snapshot_has_the_states_weights_and_its_step(small: Pretraining, tmp_path: Path) -> None:
    small.step = 41
    small.save(tmp_path / "state.pt")
    options = [
        "--wording",
        "free",
        "--seed",
        "3",
        "--state",
        str(tmp_path / "state.pt"),
        "--folder",
        str(tmp_path / "out"),
    ]
    assert program.main(["snapshot", *options]) == 0
    assert (tmp_path / "state.pt").exists()
    notes = read_manifest(tmp_path / "out")
    assert (notes["step"], notes["recipe"]["styles"]["planned"]) == (41, 0.9)
    assert notes["command"] == "python -m recipes.tiny --wording free --share 1.0 --seed 3"
    found = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "out")
    for name, weight in small.model.state_dict().items():
        assert found.state_dict()[name].equal(weight), name


@pytest.mark.usefixtures("small")
def test_training_ends_with_a_checkpoint_and_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def measured(_policy: object, **how: Any) -> dict[str, Any]:
        asked.append(how)
        return {"expert_only": 3}

    monkeypatch.setattr(program, "measure_free", measured)
    monkeypatch.setattr(program, "free_gate_failures", lambda found: [f"expert_only: {found['expert_only']}"])
    state = ["--state", str(tmp_path / "state.pt"), "--out", str(tmp_path / "out")]
    assert program.main(["--wording", "free", "--seed", "3", "--episodes", "2", *state]) == 0
    assert asked == [{"episodes": 2, "seed": 3}]
    assert read_manifest(tmp_path / "out")["measured"]["expert_only"] == 3
    assert "expert_only: 3" in capsys.readouterr().out
    assert not (tmp_path / "state.pt").exists()


def test_the_default_is_the_recipe_of_what_ships() -> None:
    options = program.parser().parse_args([])
    assert (options.wording, options.share, options.episodes) == ("terse", 1.0, 8)
    assert program.RECIPES["terse"].styles is None
    assert program.RECIPES["terse"].hidden == 96


@pytest.fixture
def ended(small: Pretraining, tmp_path: Path) -> Path:
    """The checkpoint of a first training that has ended."""
    notes = {"recipe": asdict(small.recipe), "step": 0, "command": "first"}
    write_checkpoint(tmp_path / "first", small.model, small.tokenizer, notes)
    return tmp_path / "first"


def test_a_second_training_starts_from_the_weights_of_the_first_one(
    small: Pretraining, ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a step its result are the first one's weights, and its manifest says where it started."""
    monkeypatch.setattr(program, "AGAIN", {"free": replace(FREE_AGAIN, steps=(0,) * 7)})
    state = ["--state", str(tmp_path / "state.pt"), "--out", str(tmp_path / "out"), "--episodes", "0"]
    assert program.main(["--wording", "free", "--seed", "3", "--again", str(ended), *state]) == 0
    found = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "out")
    for name, weight in small.model.state_dict().items():
        assert found.state_dict()[name].equal(weight), name
    notes, first = read_manifest(tmp_path / "out"), read_manifest(ended)
    assert notes["command"].endswith("--seed 3 --again FOLDER")
    assert notes["recipe"]["data"] == 2_000_000
    assert notes["recipe"]["seed"] == 3
    assert notes["start"]["weights"] == first["sha256"]["model.safetensors"] == notes["sha256"]["model.safetensors"]
    assert notes["start"]["command"] == "first"
    assert "sha256" not in notes["start"]


def test_the_one_with_more_plans_is_an_option(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "FREE_PLANS", replace(FREE_PLANS, steps=(0,) * 7))
    free = ["--wording", "free", "--seed", "3", "--episodes", "0", "--plans"]
    state = ["--state", str(tmp_path / "state.pt"), "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="--plans is of the second training; give --again FOLDER as well"):
        program.main([*free, *state])
    assert program.main([*free, *state, "--again", str(ended)]) == 0
    notes = read_manifest(tmp_path / "out")
    assert notes["command"].endswith("--seed 3 --again FOLDER --plans")
    assert notes["recipe"]["acting"] == {"shuffled": 0.55, "expert": 0.1, "planned": 0.78, "long": None}
    assert notes["recipe"]["finishing"]["long"] == FREE_AGAIN.finishing.long


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("options", "changed", "problem"),
    [
        (["--wording", "terse"], {}, r"no second training with --wording terse, only \['free'\]"),
        (["--wording", "free"], {}, "is of --wording free --seed 3, expected --wording free --seed 0; fix: give the"),
        (["--wording", "free", "--seed", "3"], {"step": -1}, "is at step -1 of 0; fix"),
        (["--wording", "free", "--seed", "3"], {"start": {}}, "has had its second training; fix: give the folder"),
        (["--wording", "free", "--seed", "3"], None, "first has no manifest.json; fix"),
    ],
)
def test_a_second_training_is_of_a_first_one_that_has_ended(
    ended: Path, options: list[str], changed: dict[str, Any] | None, problem: str
) -> None:
    if changed is None:
        (ended / "manifest.json").unlink()
    else:
        (ended / "manifest.json").write_text(json.dumps(read_manifest(ended) | changed), encoding="utf-8")
    with pytest.raises(ValueError, match=problem):
        program.main([*options, "--again", str(ended)])


def test_the_second_training_has_other_data_and_half_the_rate(tokenizer: PreTrainedTokenizerFast) -> None:
    recipe = replace(AGAIN["free"], hidden=32)
    training = Pretraining(new_model(tokenizer, recipe), tokenizer, recipe)
    assert (training.phase(), training.total) == (("polish", 0), 12_000)
    assert training.learning_rates() == (1.5e-3, 0.75e-3)
    training.step = 9_600
    assert training.phase() == ("finish", 0)
    assert training.learning_rates() == pytest.approx((0.3e-3, 0.15e-3))
    assert FREE_WORDS.data + FREE_WORDS.parts * 1_000_000 <= FREE_AGAIN.data
