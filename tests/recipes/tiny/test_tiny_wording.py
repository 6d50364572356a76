"""Free words: the lists, both styles, hasty decisions, and a loss without the noise of the drawn words."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.oracles.sim.expert_prose import FIRST_WORD, VARIED
from osworld_gym.tasks.oracles.sim.free_prose import (
    DECISION_WORD,
    FREE,
    SEES,
    SUBJECT,
    TERSE_WORD,
    decision_of,
    free_thought,
    is_terse,
    seen_on,
    terse_thought,
    weights,
)
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.types import Action
from recipes.tiny.cloning import ACTING, block
from recipes.tiny.grounding import grounding_screen, label_words
from recipes.tiny.turns import Screen, Turn, pack
from recipes.tiny.wording import Styles, WordTargets, worded

STYLES = Styles()
DRAWN = Styles(drawn_alone=0.3, drawn_planned=0.6)  #: more terse thoughts without a plan, for shares of few turns
WORDS = [word for words in FREE for word in words]


def turns_of(screens: list[Screen]) -> list[Turn]:
    return [turn for screen in screens for turn in screen.turns]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    prose = [*(" ".join(words) for words in VARIED), f"{FIRST_WORD} {FIRST_WORD}"]
    plain = [f" {word}" for word in [*WORDS, *(w for words in VARIED for w in words), *label_words()]]
    said = f"Thought: {TERSE_WORD} {SUBJECT} {SEES} {DECISION_WORD} tab\nAction: click(start_box='(1,2)')"
    return train_tokenizer([*prose, *plain, said])


@pytest.fixture(scope="module")
def blocks() -> tuple[list[Turn], list[Turn]]:
    """The same turns with bare decisions and in the policy's styles."""
    bare = [turn for number in range(3) for turn in turns_of(block(number, shares=ACTING))]
    styled = [turn for number in range(3) for turn in turns_of(block(number, shares=ACTING, styles=DRAWN))]
    return bare, styled


def test_no_free_word_means_anything_else() -> None:
    """Neither a label, nor a word of the expert's, of an instruction or of a decision; and each is in one list only."""
    assert len(WORDS) == len(set(WORDS)) == 96
    expert = {word.lower() for words in VARIED for word in words}
    asked = {word.lower() for task in sim_suite().tasks for word in task.instruction.split()}
    verbs = {"close", "open", "tab", "click", "scroll", "type", "menu", "double", "drag", "done", "pop-up"}
    own = {SUBJECT, SEES, DECISION_WORD, TERSE_WORD}
    assert not set(WORDS) & (set(label_words()) | expert | asked | verbs | own)
    assert not own & (set(label_words()) | expert | asked | verbs)


def test_words_are_drawn_by_their_weights() -> None:
    rng, found = random.Random(0), Counter[str]()
    for _ in range(2_000):
        found.update(free_thought("done", "clock zone", rng).split())
    for words in FREE:
        assert sum(weights(words)) == pytest.approx(1.0)
        for word, weight in zip(words, weights(words), strict=True):
            assert found[word] / 2_000 == pytest.approx(weight, abs=0.035), word  # four standard errors
            assert weight < 0.2  # each counts as the tail


@pytest.mark.parametrize("decision", ["done", "click mute", "close pop-up", "type alpha", "click 25"])
def test_the_decision_is_read_back_from_both_styles(decision: str) -> None:
    free, terse = free_thought(decision, "clock zone", random.Random(1)), terse_thought(decision)
    assert decision_of(free) == decision_of(terse) == decision_of(decision) == decision
    assert is_terse(terse)
    assert not is_terse(free)
    assert "I see clock zone" in free
    assert "clock" not in terse


def test_what_is_seen_covers_the_screen() -> None:
    desktop = SimDesktop(seed=0)
    desktop.setup({"type": "sim", "parameters": {"open": "sound"}})
    assert seen_on(desktop) == f"sound {desktop.inner.tab}"
    desktop.inner.app = None
    assert seen_on(desktop) == "nothing"
    popped = SimDesktop(popup_probability=1.0, seed=0)
    popped.perform([Action("click", start=(8, 8))])
    assert popped.inner.popup is not None
    assert seen_on(popped) == popped.inner.popup.title


def test_only_words_differ_from_the_bare_data_and_hasty_decisions(blocks: tuple[list[Turn], list[Turn]]) -> None:
    hasty = terse_alone = 0
    for bare, styled in zip(*blocks, strict=True):
        assert (bare.instruction, bare.plan, bare.brief) == (styled.instruction, styled.plan, styled.brief)
        assert (bare.last is None) == (styled.last is None)
        if bare.prose:
            assert styled == bare
            continue
        assert styled.last is None or bare.last == decision_of(styled.last)
        grounding = bare.thought == bare.instruction
        if is_terse(styled.thought) and bare.plan is None and not grounding:
            terse_alone += 1
            hasty += decision_of(styled.thought) != bare.thought
        else:
            assert decision_of(styled.thought) == bare.thought
            assert styled.actions == bare.actions
    assert terse_alone > 20
    assert 0.05 < hasty / terse_alone < 0.5  # 0.25, less the clicks anywhere that happen to be right


def test_a_style_is_drawn_per_turn(blocks: tuple[list[Turn], list[Turn]]) -> None:
    for planned, share in ((False, DRAWN.drawn_alone), (True, DRAWN.drawn_planned)):
        turns = [turn for turn in blocks[1] if not turn.prose and (turn.plan is not None) == planned]
        assert len(turns) > 150
        assert sum(is_terse(turn.thought) for turn in turns) / len(turns) == pytest.approx(share, abs=0.08)
        # after a terse thought as often as after a free one
        for before in (False, True):
            after = [
                is_terse(turn.thought) for turn in turns if turn.last is not None and is_terse(turn.last) == before
            ]
            assert sum(after) / len(after) == pytest.approx(share, abs=0.25), (planned, before)


def test_grounding_turns_are_never_hasty() -> None:
    styles = replace(STYLES, drawn_alone=1.0, hasty=1.0)
    for seed in range(10):
        for turn in grounding_screen(seed, 8, styles).turns:
            assert turn.thought == terse_thought(turn.instruction)


def test_a_hasty_turn_does_what_it_says() -> None:
    styles = replace(STYLES, drawn_alone=1.0, hasty=1.0)
    click = ("click bell", (Action("click", start=(8, 8)),))
    given = Turn("turn on mute", "open sound", (Action("click", start=(24, 8)),), last="open clock")
    found = worded(given, "clock zone", "nothing", styles, random.Random(0), lambda: click)
    assert (found.thought, found.actions) == ("just click bell", click[1])
    planned = replace(given, plan="1. Open sound")
    right = worded(
        planned, "clock zone", "nothing", replace(styles, drawn_planned=1.0), random.Random(0), lambda: click
    )
    assert (right.thought, right.actions) == ("just open sound", given.actions)


def test_drawn_words_are_told_from_the_others(
    tokenizer: PreTrainedTokenizerFast, blocks: tuple[list[Turn], list[Turn]]
) -> None:
    targets = WordTargets(tokenizer, STYLES)
    for turn in blocks[1][:150]:
        thought = tokenizer(f" {turn.thought}")["input_ids"]
        numbers = [number for number in targets.positions(turn, thought) if number]
        expected = len(VARIED) if turn.prose else 1 if is_terse(turn.thought) else len(FREE)
        if turn.thought != "The task is done.":
            assert len(numbers) == expected == len(set(numbers)), turn.thought
    screens = block(0, screens=8, shares=ACTING, styles=STYLES)
    batch = pack(screens, tokenizer, drawn=targets)
    drawn = batch.drawn_tokens() > 0
    assert not (drawn & batch.thought_tokens()).any()
    words = {tokenizer.decode([token]).strip() for token in batch.response_tokens()[drawn].tolist()}
    assert words <= {*WORDS, TERSE_WORD, *(word for position in VARIED for word in position)}
    assert not (pack(screens, tokenizer).drawn_tokens() > 0).any()


def test_the_policy_is_not_taught_to_begin_in_the_experts_style(tokenizer: PreTrainedTokenizerFast) -> None:
    """The first word of an expert's thought is learnt after a thought of the expert's only, and all other words are."""
    pixels = SimDesktop().screenshot().pixels
    said, wait = f"{FIRST_WORD} current view", (Action("wait"),)
    expert = Turn("go", said, wait, last=None, prose=True)
    turns = {"opening": expert, "later": replace(expert, last=said), "own": replace(expert, prose=False)}
    targets = WordTargets(tokenizer, STYLES)
    learnt = {
        name: pack([Screen(pixels, (), (turn,))], tokenizer, drawn=targets).response_tokens().tolist()
        for name, turn in turns.items()
    }
    assert learnt["later"] == learnt["own"]
    assert learnt["opening"] == [learnt["own"][0], *learnt["own"][2:]]
    assert tokenizer.decode([learnt["own"][1]]).strip() == FIRST_WORD


def test_the_first_word_has_the_styles_probability(tokenizer: PreTrainedTokenizerFast) -> None:
    targets = WordTargets(tokenizer, STYLES)
    assert targets.weights[1:].sum(-1).tolist() == pytest.approx([1.0] * (len(targets.weights) - 1))
    (terse,) = tokenizer(f" {TERSE_WORD}")["input_ids"]
    for plan, share in ((None, STYLES.alone), ("1. Open sound", STYLES.planned)):
        turn = Turn("turn on mute", terse_thought("click mute"), (), plan)
        first, *rest = targets.positions(turn, tokenizer(f" {turn.thought}")["input_ids"])
        assert rest == [0, 0]
        assert targets.weights[first][targets.ids[first] == terse].sum().item() == pytest.approx(share)


def test_a_policy_with_the_words_distribution_has_no_gradient_whatever_was_drawn(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    targets = WordTargets(tokenizer, STYLES)
    for number in range(1, len(targets.weights)):
        right = torch.full((1, len(tokenizer)), -30.0)
        held = targets.weights[number] > 0
        right[0, targets.ids[number][held]] = targets.weights[number][held].log()
        right.requires_grad_(True)
        position = torch.tensor([number])
        loss = targets.divergence(right.log_softmax(-1), position)
        assert loss.item() == pytest.approx(0.0, abs=1e-5)
        (gradient,) = torch.autograd.grad(loss.sum(), right)
        assert gradient.abs().max() < 1e-5
        even = torch.zeros(1, len(tokenizer)).log_softmax(-1)
        assert targets.divergence(even, position).item() > 1.0
    nowhere = targets.divergence(torch.zeros(1, len(tokenizer)).log_softmax(-1), torch.tensor([0]))
    assert nowhere.item() == 0.0


def test_a_word_of_several_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected one token for 'okay', got \d+"):
        WordTargets(train_tokenizer(["Thought: click mute"]), STYLES)
