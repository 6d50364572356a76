"""Pretraining: every phase lowers its loss, resuming changes nothing, the learning rate schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.tasks.oracles.sim.expert_prose import VARIED
from osworld_gym.tasks.oracles.sim.free_prose import FREE
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
from recipes.tiny.turns import texts


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


def test_a_state_of_another_run_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    free_training(tokenizer, (0,) * 7).save(tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"the saved state is of a run with seed 0 instead of 1; fix: another --state"):
        free_training(tokenizer, (0,) * 7, seed=1).load(tmp_path / "state.pt")


def test_without_restarts_the_learning_rate_falls_once(tokenizer: PreTrainedTokenizerFast) -> None:
    run = free_training(tokenizer, (10, 30, 40, 15, 5, 60, 40))  # 200 steps, the last 90 of them down to zero
    found = []
    for step in (0, 110, 155, 199):
        run.step = step
        found += run.learning_rates()
    assert found == pytest.approx([3e-3, 1.5e-3, 3e-3, 1.5e-3, 1.5e-3, 0.75e-3, 3e-3 / 90, 1.5e-3 / 90])


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
