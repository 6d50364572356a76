"""Cloning data from recordings: kinds of turns, and that every response follows from a recording."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sim_recordings import KNOWN, TASKS, recorded

from bepa_torchrl.experts.plan import plan_from_trace
from osworld_gym.types import Action
from recipes.tiny.turns import Screen, Turn
from recipes.tiny_local.cloning import (
    DONE,
    Library,
    batch,
    grounding,
    grounding_batch,
    recoloured,
    sample,
    shifted,
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return recorded(tmp_path_factory.mktemp("recordings"))


def all_turns(library, count=300):
    return [turn for seed in range(count) for turn in sample(library, seed).turns]


def test_samples_follow_from_their_seed(library):
    assert batch(library, 3, 4)[1].turns == sample(library, 13).turns
    assert (batch(library, 3, 4)[1].pixels == sample(library, 13).pixels).all()


def test_grounding_screens_have_their_thought_as_instruction(library):
    screens = grounding_batch(library, 2, 5)
    assert screens[3].turns == grounding(library, 13).turns
    tasks = set()
    for seed in range(60):
        (turn,) = grounding(library, seed).turns
        assert turn.instruction == turn.thought
        assert turn.plan is None
        tasks |= {name for name, traces in library.native.items() for t in traces if turn.thought in plan_words(t)}
    assert tasks == set(library.tasks)


def test_a_known_task_is_asked_for_without_the_plan_too(library):
    more = 0
    for seed in range(120):
        usual, turns = sample(library, seed).turns, sample(library, seed, always_plain=True).turns
        if len(turns) > len(usual):
            # the first turn has the task's own plan, the second one none; the rest is drawn as usual, but one
            more += 1
            assert turns[0] == usual[0]
            assert usual[0].plan is not None
            assert turns[1] == replace(usual[0], plan=None)
    assert more >= 15  # 120 screens: 96 native, 72 of known tasks, 25 of them with a plan


def plan_words(trace):
    return {step.intent for step in trace.steps}


def test_an_instruction_of_an_unknown_task_is_only_answered_by_a_plan(library):
    unknown = {task.instruction for task in TASKS[3:]}
    asked = [turn for turn in all_turns(library) if turn.instruction in unknown]
    assert asked
    assert all(turn.plan is not None for turn in asked)


def test_the_kinds_of_turns_have_about_their_shares(library):
    turns = all_turns(library)
    texts = {task.id: task.instruction for task in TASKS}
    plans = {plan_from_trace(trace): task_id for task_id, traces in library.expert.items() for trace in traces}
    counts = Counter(
        "grounding" if turn.instruction == turn.thought else
        "expert" if turn.thought[0].isupper() else
        "plain" if turn.plan is None else
        "own plan" if texts[plans[turn.plan]] == turn.instruction else "swapped"
        for turn in turns
    )  # fmt: skip
    # 300 screens: 60 expert. Of 240 native ones 3 in 4 are of known tasks: 180 plain turns, 63 of them with the plan,
    # and 180 swapped; 120 of the 60 unknown ones. 1 in 6 of the 300 swapped has its own instruction by chance: 50.
    assert 35 <= counts["expert"] <= 90
    assert 85 <= counts["plain"] <= 150
    assert 200 <= counts["swapped"] <= 300
    assert 80 <= counts["own plan"] <= 150
    assert 140 <= counts["grounding"] <= 230  # the 240, without the last screens of episodes


def test_responses_are_those_of_the_recordings(library):
    steps = {
        (step.intent, step.actions) for traces in library.native.values() for trace in traces for step in trace.steps
    }
    for turn in all_turns(library, 100):
        if not turn.thought[0].isupper():
            assert (turn.thought, turn.actions) in steps | {DONE}


def test_a_library_requires_both_styles_and_known_tasks(library):
    native = [trace for traces in library.native.values() for trace in traces]
    expert = [trace for traces in library.expert.values() for trace in traces]
    with pytest.raises(ValueError, match=rf"'{TASKS[0].id}'.* have only one"):
        Library.of(native, [trace for trace in expert if trace.task_id != TASKS[0].id], KNOWN)
    with pytest.raises(ValueError, match="recordings of known tasks, got none"):
        Library.of(native, expert, ["another"])


def painted(*points: tuple[float, float]) -> Screen:
    """640 x 360 pixels whose colours tell where they are, and one turn with these points."""
    rows, columns = np.mgrid[0:360, 0:640]
    pixels = np.stack([rows % 256, columns % 256, rows // 256 + columns // 256], axis=-1).astype(np.uint8)
    actions = tuple(Action("click", start=point) for point in points)
    return Screen(pixels, (), (Turn("Click.", "click", actions), Turn("Wait.", "wait", (Action("wait"),))))


def test_a_shifted_screen_moves_its_points_with_its_pixels():
    screen = painted((210, 170), (300, 179))
    found = [shifted(screen, seed) for seed in range(200)]
    moved = [s for s in found if s is not screen]
    assert 140 <= len(moved) <= 180  # 8 of 10
    for s in moved:
        for action, before in zip(s.turns[0].actions, screen.turns[0].actions, strict=True):
            (x, y), (x0, y0) = action.start, before.start
            assert (s.pixels[y, x] == screen.pixels[y0, x0]).all()
            assert (x - x0) % 20 == (y - y0) % 20 == 0
            assert 60 <= x < 580
            assert 20 <= y < 340
        assert s.turns[1] == screen.turns[1]
    # x from 70 on, at most 470 for the left point: 21 places; y from 30 on, the lower one at most 339: 16
    assert {s.turns[0].actions[0].start[0] for s in moved} == set(range(70, 471, 20))
    assert {s.turns[0].actions[0].start[1] for s in moved} == set(range(30, 331, 20))


def test_points_that_leave_no_place_are_not_moved():
    screen = painted((10, 10), (630, 350))
    assert all((shifted(screen, seed).pixels == screen.pixels).all() for seed in range(20))


def test_a_batch_is_shifted_on_request(library):
    usual, moved = batch(library, 3, 8), batch(library, 3, 8, shift=True)
    assert [s.turns[0].thought for s in moved] == [s.turns[0].thought for s in usual]
    assert any((one.pixels != other.pixels).any() for one, other in zip(usual, moved, strict=True))


def test_other_colours_keep_what_can_be_told_apart():
    screen = painted((210, 170))
    found = [recoloured(screen, seed) for seed in range(400)]
    changed = [s for s in found if s is not screen]
    assert 160 <= len(changed) <= 240  # half of them
    inverted = 0
    for s in changed:
        assert s.turns is screen.turns
        usual = sorted(screen.pixels[5, 7].tolist()), sorted((255 - screen.pixels[5, 7]).tolist())
        assert sorted(s.pixels[5, 7].tolist()) in usual
        inverted += sorted(s.pixels[5, 7].tolist()) == usual[1]
    assert 0.35 <= inverted / len(changed) <= 0.65
