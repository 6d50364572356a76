"""Cloning data from recordings: kinds of turns, and that every response follows from a recording."""

from collections import Counter
from pathlib import Path

import pytest

from bepa_torchrl.experts.plan import plan_from_trace
from bepa_torchrl.experts.recording import Episode, load_recordings, record_all
from bepa_torchrl.tiny_local.cloning import DONE, Library, batch, grounding, sample
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.suites.sim.suite import sim_suite

TRAIN = sim_suite().split("train")
TASKS = [*[t for t in TRAIN if "known" in t.tags][:3], *[t for t in TRAIN if "unknown" in t.tags][:3]]
KNOWN = [task.id for task in TASKS[:3]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return recorded(tmp_path_factory.mktemp("recordings"))


def recorded(folder: Path) -> Library:
    episodes = [Episode(task, style, seed) for task in TASKS for style in ("native", "expert") for seed in (0, 1)]
    assert record_all(folder, episodes, SimDesktop, desktops=2).episodes == len(episodes)
    traces = list(load_recordings(folder, episodes, SimDesktop().screen_size))
    styles = [[t for t in traces if t.expert.startswith(style)] for style in ("native", "expert")]
    return Library.of(*styles, KNOWN)


def first_turns(library, count=600):
    return [sample(library, seed).turns[0] for seed in range(count)]


def test_samples_follow_from_their_seed(library):
    assert batch(library, 3, 4)[1].turns == sample(library, 13).turns
    assert (batch(library, 3, 4)[1].pixels == sample(library, 13).pixels).all()


def test_grounding_screens_have_their_thought_as_instruction(library):
    screens = batch(library, 2, 5, grounded=True)
    assert screens[3].turns == grounding(library, 13).turns
    tasks = set()
    for seed in range(60):
        (turn,) = grounding(library, seed).turns
        assert turn.instruction == turn.thought
        assert turn.plan is None
        tasks |= {name for name, traces in library.native.items() for t in traces if turn.thought in plan_words(t)}
    assert tasks == set(library.tasks)


def plan_words(trace):
    return {step.intent for step in trace.steps}


def test_an_instruction_of_an_unknown_task_is_only_answered_by_a_plan(library):
    unknown = {task.instruction for task in TASKS[3:]}
    asked = [turn for turn in first_turns(library) if turn.instruction in unknown]
    assert asked
    assert all(turn.plan is not None for turn in asked)


def test_the_kinds_of_turns_have_about_their_shares(library):
    turns = first_turns(library)
    texts = {task.id: task.instruction for task in TASKS}
    plans = {plan_from_trace(trace): task_id for task_id, traces in library.expert.items() for trace in traces}
    counts = Counter(
        "expert" if turn.thought[0].isupper() else
        "plain" if turn.plan is None else
        "own plan" if texts[plans[turn.plan]] == turn.instruction else "swapped"
        for turn in turns
    )  # fmt: skip
    # 600 turns: 15 % expert; of the others 45 % swapped, of which 1 in 6 has its own instruction by chance
    assert 60 <= counts["expert"] <= 120
    assert 180 <= counts["swapped"] <= 270
    assert 100 <= counts["plain"] <= 200
    assert counts["own plan"] >= 70


def test_responses_are_those_of_the_recordings(library):
    steps = {
        (step.intent, step.actions) for traces in library.native.values() for trace in traces for step in trace.steps
    }
    for turn in first_turns(library, 200):
        if not turn.thought[0].isupper():
            assert (turn.thought, turn.actions) in steps | {DONE}


def test_a_library_requires_both_styles_and_known_tasks(library):
    native = [trace for traces in library.native.values() for trace in traces]
    expert = [trace for traces in library.expert.values() for trace in traces]
    with pytest.raises(ValueError, match=rf"'{TASKS[0].id}'.* have only one"):
        Library.of(native, [trace for trace in expert if trace.task_id != TASKS[0].id], KNOWN)
    with pytest.raises(ValueError, match="recordings of known tasks, got none"):
        Library.of(native, expert, ["another"])
