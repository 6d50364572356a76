"""Pretraining: every phase lowers its loss, resuming changes nothing, the learning rate schedule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.tasks.oracles.sim.expert_prose import VARIED
from osworld_gym.tasks.oracles.sim.free_prose import FREE
from recipes.tiny.checkpoint import read_manifest
from recipes.tiny.cloning import block
from recipes.tiny.grounding import label_words
from recipes.tiny.pretrain import (
    FREE_WORDS,
    PHASES,
    Pretraining,
    Recipe,
    finished_model,
    new_model,
    run,
    sharpen,
    short,
)
from recipes.tiny.processes import Processes
from recipes.tiny.turns import Screen, texts

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    corpus = [f"{q}{w}" for w in label_words() for q in " '"]
    corpus += [f" {word}" for position in (*FREE, *VARIED) for word in position] + [" just I see namely"]
    template = train_tokenizer(corpus)
    turns = [turn for screen in block(0, screens=8) for turn in screen.turns]
    return train_tokenizer([*corpus, *(text for turn in turns for text in texts(turn, template))])


def training(tokenizer: PreTrainedTokenizerFast, steps: tuple[int, ...]) -> Pretraining:
    recipe = Recipe(steps=steps, batch=4, turns=5)
    return Pretraining(new_model(tokenizer, recipe), tokenizer, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_a_few_steps_lower_the_loss(tokenizer: PreTrainedTokenizerFast, phase: int) -> None:
    steps = [0] * len(PHASES)
    steps[phase] = 30 if PHASES[phase] in ("polish", "finish") else 12  # half the others' learning rate, and falling
    run = training(tokenizer, tuple(steps))
    losses = [run.train_step()["loss"] for _ in range(steps[phase])]
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3]), losses
    assert run.seconds[PHASES[phase]] > 0


@pytest.mark.slow
def test_resuming_changes_nothing(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    whole = training(tokenizer, (2, 2, 2, 2, 2, 2, 2))
    for _ in range(14):
        whole.train_step()
    half = training(tokenizer, (2, 2, 2, 2, 2, 2, 2))
    for _ in range(3):
        half.train_step()
    half.save(tmp_path / "state.pt")
    resumed = training(tokenizer, (2, 2, 2, 2, 2, 2, 2))
    lines: list[str] = []
    run(resumed, tmp_path / "state.pt", log=lines.append)
    assert lines[0] == "resumed at step 3"
    assert_same_end(training(tokenizer, (2, 2, 2, 2, 2, 2, 2)), whole, resumed)


def assert_same_end(start: Pretraining, one: Pretraining, other: Pretraining) -> None:
    begun, end = start.model.state_dict(), other.model.state_dict()
    for name, weight in one.model.state_dict().items():
        assert (end[name] - weight).norm() <= 1e-3 * (weight - begun[name]).norm(), name


def free_training(tokenizer: PreTrainedTokenizerFast, steps: tuple[int, ...], seed: int = 0) -> Pretraining:
    recipe = replace(FREE_WORDS, steps=steps, batch=2, turns=4, hidden=32, seed=seed)
    return Pretraining(new_model(tokenizer, recipe), tokenizer, recipe)


@pytest.mark.slow
def test_free_words_are_learnt_and_resuming_changes_nothing(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    steps = (2, 30, 2, 2, 2, 2, 2)
    whole, half, resumed = (free_training(tokenizer, steps) for _ in range(3))
    words = [losses["words"] for losses in (whole.train_step() for _ in range(42)) if "words" in losses]
    assert words[-1] < 0.95 * words[0], words
    for _ in range(35):
        half.train_step()
    half.save(tmp_path / "state.pt")
    run(resumed, tmp_path / "state.pt", log=lambda _: None)
    assert_same_end(free_training(tokenizer, steps), whole, resumed)


def test_a_step_averages_its_parts(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    run = free_training(tokenizer, (0, 0, 1, 0, 0, 0, 0))
    parts: list[Sequence[Screen]] = []

    def loss_of(screens: Sequence[Screen], _weight: float) -> dict[str, torch.Tensor]:
        parts.append(screens)
        return {"loss": len(parts) * run.probe.weight.sum()}  # the parts' losses are 1 and 2 times the sum

    monkeypatch.setattr(run, "_responses", loss_of)
    expected = 1.5 * float(run.probe.weight.detach().sum())
    assert run.train_step()["loss"] == pytest.approx(expected, abs=1e-4)
    assert [len(part) for part in parts] == [1, 1]  # a batch of two
    assert not (parts[0][0].pixels == parts[1][0].pixels).all()
    # 1.5 for each of the 32 * 16 weights, clipped to norm 1
    assert run.probe.weight.grad is not None
    assert run.probe.weight.grad.flatten().tolist() == pytest.approx([512**-0.5] * 512, rel=1e-4)


def test_processes_share_the_parts(tokenizer: PreTrainedTokenizerFast) -> None:
    recipe = replace(FREE_WORDS, steps=(0,) * 7, batch=4, parts=4, hidden=32)
    model = new_model(tokenizer, recipe)
    assert Pretraining(model, tokenizer, recipe).parts == (0, 1, 2, 3)
    assert Pretraining(model, tokenizer, recipe, Processes(1, 2)).parts == (1, 3)
    with pytest.raises(ValueError, match=r"divides the recipe's 4 parts, got 3; fix: torchrun --nproc-per-node 4"):
        Pretraining(model, tokenizer, recipe, Processes(0, 3))
    with pytest.raises(ValueError, match="expected a batch that 3 parts share equally, got 4"):
        Pretraining(model, tokenizer, replace(recipe, parts=3))


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    options = ["-m", "recipes.tiny", "--wording", "free", "--share", "0.00005", "--seed", "3", "--episodes", "0"]
    for name, start in (("one", []), ("two", ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"])):
        command = [sys.executable, *(["-m", *start] if start else []), *options]
        state = ["--state", str(tmp_path / f"{name}.pt"), "--out", str(tmp_path / name)]
        done = subprocess.run([*command, *state], cwd=ROOT, timeout=300, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-4, msg=name)
    notes = [read_manifest(tmp_path / name) for name in ("one", "two")]
    assert [(note["processes"], note["step"]) for note in notes] == [(1, 7), (2, 7)]


def test_a_state_of_another_run_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    free_training(tokenizer, (0,) * 7).save(tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"the saved state is of a run with seed 0 instead of 1; fix: another --state"):
        free_training(tokenizer, (0,) * 7, seed=1).load(tmp_path / "state.pt")


def test_without_restarts_the_learning_rate_falls_once(tokenizer: PreTrainedTokenizerFast) -> None:
    run = free_training(tokenizer, (10, 30, 40, 15, 5, 60, 40))  # 200 steps, the last 100 of them down to zero
    found = []
    for step in (0, 100, 150, 199):
        run.step = step
        found += run.learning_rates()
    assert found == pytest.approx([3e-3, 1.5e-3, 3e-3, 1.5e-3, 1.5e-3, 0.75e-3, 3e-5, 1.5e-5])


def test_nothing_is_done_to_the_result_in_free_words(tokenizer: PreTrainedTokenizerFast) -> None:
    assert (FREE_WORDS.sharpness, FREE_WORDS.averaged, FREE_WORDS.hidden) == (1.0, False, 128)
    run = free_training(tokenizer, (0,) * 6 + (1,))
    run.train_step()
    after = {key: weight.clone() for key, weight in run.model.state_dict().items()}
    assert run.polished
    found = finished_model(run).state_dict()
    assert all(torch.equal(after[key], weight) for key, weight in found.items())


def test_learning_rate_is_constant_then_falls_to_zero(tokenizer: PreTrainedTokenizerFast) -> None:
    # 100 steps, decay 0.4: constant for 60, then 40 steps down; then from half of it in 20 steps down; again in 10
    run = training(tokenizer, (10, 30, 40, 15, 5, 20, 10))
    found = []
    for step in (0, 60, 80, 99, 100, 110, 120, 125):
        run.step = step
        found += run.learning_rates()
    assert found == pytest.approx(
        [3e-3, 1.5e-3, 3e-3, 1.5e-3, 1.5e-3, 0.75e-3, 3e-3 / 40, 1.5e-3 / 40] + 2 * [1.5e-3, 0.75e-3, 0.75e-3, 0.375e-3]
    )
    run.step = 45
    assert run.phase() == ("clone", 5)


def test_a_words_two_tokens_start_equal(tokenizer: PreTrainedTokenizerFast) -> None:
    weight = new_model(tokenizer, Recipe()).get_input_embeddings().weight
    spaced, bare = tokenizer(" mute")["input_ids"][-1], tokenizer("'mute")["input_ids"][-1]
    assert spaced != bare
    assert torch.equal(weight[spaced], weight[bare])


def test_a_share_of_the_recipe() -> None:
    assert short(Recipe(steps=(100, 200, 500, 1000, 800, 400, 200)), 0.001).steps == (1,) * 7
    assert short(Recipe(steps=(100, 200, 500, 1000, 800, 400, 200)), 0.5).steps == (50, 100, 250, 500, 400, 200, 100)


def test_sharpening_multiplies_the_logits(tokenizer: PreTrainedTokenizerFast) -> None:
    model = new_model(tokenizer, Recipe()).eval()
    tokens = torch.tensor([tokenizer("click mute")["input_ids"]])
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        sharpen(model, 1.5)
        torch.testing.assert_close(model(input_ids=tokens).logits, 1.5 * before, rtol=1e-4, atol=1e-5)


def test_the_result_is_the_sharpened_mean_of_polish_and_finish(tokenizer: PreTrainedTokenizerFast) -> None:
    run = training(tokenizer, (0, 0, 0, 0, 0, 0, 1))
    with pytest.raises(ValueError, match="expected a run of 1 steps that has ended, got one at step 0"):
        finished_model(run)
    before = {key: weight.clone() for key, weight in run.model.state_dict().items()}
    run.train_step()
    after = {key: weight.clone() for key, weight in run.model.state_dict().items()}
    assert any(not torch.equal(before[key], after[key]) for key in before)
    found = finished_model(run).state_dict()
    for key, weight in found.items():
        factor = run.recipe.sharpness if key == "model.language_model.norm.weight" else 1.0
        torch.testing.assert_close(weight, factor * (before[key] + after[key]) / 2, rtol=1e-5, atol=1e-7)
