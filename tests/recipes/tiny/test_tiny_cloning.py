"""The cloning data: deterministic by seed, unknown tasks on shuffled desks only, all responses parse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bepa_torchrl.experts.conversion import LAST_THOUGHT
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.oracles.sim.expert_prose import FIRST_WORD
from osworld_gym.tasks.suites.sim.suite import UNKNOWN, cloning_tasks, sim_suite
from osworld_gym.types import Action
from osworld_gym.uitars.format import format_response
from osworld_gym.uitars.parse import parse
from recipes.tiny.cloning import ACTING, FINISHING, READING, Desk, Shares, block
from recipes.tiny.grounding import VERBS, grounding_screen, label_words
from recipes.tiny.turns import Screen

DESKS = [Desk(seed) for seed in range(40)]


@pytest.fixture(scope="module")
def episodes() -> list[tuple[Desk, list[Screen]]]:
    return [(desk, desk.episode(8)) for desk in DESKS]


def test_unknown_tasks_are_only_asked_on_shuffled_desks_with_a_plan(episodes: list[tuple[Desk, list[Screen]]]) -> None:
    known = {task.instruction for task in cloning_tasks()}
    unknown = {task.instruction for task in sim_suite().tasks if UNKNOWN in task.tags} - known
    asked_unknown = 0
    for desk, screens in episodes:
        for turn in (turn for screen in screens for turn in screen.turns):
            if not desk.shuffled:
                assert turn.instruction in known
            elif turn.instruction in unknown:
                asked_unknown += 1
                assert turn.plan is not None
                assert turn.plan.startswith("1. ")
    assert asked_unknown > 50
    assert 5 <= sum(desk.shuffled for desk in DESKS) <= 25


def test_the_shares_decide_what_desks_are_made_of() -> None:
    """200 desks: within four standard deviations, at most 0.14."""
    for shares in (READING, ACTING, FINISHING):
        desks = [Desk(seed, shares) for seed in range(200)]
        assert sum(desk.shuffled for desk in desks) / 200 == pytest.approx(shares.shuffled, abs=0.14)
        assert sum(desk.expert for desk in desks) / 200 == pytest.approx(shares.expert, abs=0.14)
        long = 0.34 if shares.long is None else shares.long  # 33 of the 97 tasks of plain desks, 67 of all 199
        assert sum(desk._long(desk.tasks[0]) for desk in desks) / 200 == pytest.approx(long, abs=0.14)
    plain = [Desk(seed, Shares(shuffled=0.0, expert=0.0, planned=1.0)) for seed in range(5)]
    assert all(turn.plan for desk in plain for screen in desk.episode(1) for turn in screen.turns[:1])


def test_every_response_parses_back(episodes: list[tuple[Desk, list[Screen]]]) -> None:
    for _, screens in episodes:
        for turn in (turn for screen in screens for turn in screen.turns):
            parsed = parse(format_response(turn.thought, turn.actions))
            assert parsed.thought == turn.thought
            # the parser may have another name for a key ("win" for "super")
            found, given = ([replace(action, key=None) for action in each] for each in (parsed.actions, turn.actions))
            assert found == given


def test_an_episode_ends_with_done(episodes: list[tuple[Desk, list[Screen]]]) -> None:
    ends = [screens[-1].turns[0].thought for _, screens in episodes]
    assert ends.count("done") + ends.count(LAST_THOUGHT) >= 36  # random clicks may use up the 15 steps
    firsts = [screens[0].turns[0] for desk, screens in episodes if not desk.expert]
    assert all(turn.last is None and turn.thought != "done" for turn in firsts)


def test_the_expert_acts_on_known_tasks_without_a_plan_and_keeps_to_its_dialect() -> None:
    played = [(desk, desk.episode(8)) for desk in map(Desk, range(200)) if desk.expert]
    known = {task.instruction for task in cloning_tasks()}
    assert 10 <= len(played) <= 60
    opened = 0
    for desk, screens in played:
        assert not desk.shuffled
        turns = [turn for screen in screens for turn in screen.turns]
        assert len(turns) == len(screens)
        assert all(turn.prose and turn.plan is None and turn.instruction in known for turn in turns)
        assert all(turn.thought.startswith(f"{FIRST_WORD} ") for turn in turns)
        assert all(turn.last is None or turn.last.startswith(f"{FIRST_WORD} ") for turn in turns)
        opened += turns[0].last is None
        assert all(turn.last is not None for turn in turns[1:])
    assert 0 < opened < len(played) / 2  # most first steps are the native oracle's


def test_a_fork_is_independent() -> None:
    desktop = SimDesktop(seed=3)
    before = desktop.screenshot().pixels
    twin = desktop.fork()
    assert (twin.screenshot().pixels == before).all()
    twin.setup({"type": "sim", "parameters": {"open": "sound"}})
    twin.perform([Action("click", start=(8, 8))])
    assert (desktop.screenshot().pixels == before).all()
    assert not (twin.screenshot().pixels == before).all()


def test_the_same_number_gives_the_same_block() -> None:
    one, two, other = block(3, screens=8), block(3, screens=8), block(4, screens=8)
    assert [screen.turns for screen in one] == [screen.turns for screen in two]
    assert all((a.pixels == b.pixels).all() for a, b in zip(one, two, strict=True))
    assert [screen.turns for screen in one] != [screen.turns for screen in other]


def test_grounding_points_at_the_label() -> None:
    for seed in range(20):
        screen = grounding_screen(seed, 8)
        places = dict(screen.labels)
        for turn in screen.turns:
            verb, label = turn.instruction.split()
            assert turn.actions[0].kind == VERBS[verb]
            assert turn.actions[0].start is not None
            x, y = turn.actions[0].start
            assert places[label] == y // 16 * 8 + x // 16


def test_label_words_cover_what_a_desktop_shows() -> None:
    words = set(label_words())
    for seed in range(30):
        shown = {element.label for element in SimDesktop(seed=seed).elements()}
        assert shown <= words, shown - words
