"""Every simulated task scores 0 initially, 0 for doing nothing or for side effects, 1 after either oracle."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable

import pytest
from sim_words import THOUGHT_VERBS, vocabulary

from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import TaskError
from osworld_gym.tasks.evaluation.metrics.sim import sim_state
from osworld_gym.tasks.oracles.sim.oracle import SimOracle
from osworld_gym.tasks.suites.sim.suite import SPLIT_SIZES, cloning_tasks, sim_suite
from osworld_gym.tasks.suites.sim.templates import TEMPLATES
from osworld_gym.tasks.task import Task
from osworld_gym.testing import ScriptedDesktop
from osworld_gym.types import Action
from osworld_gym.uitars.pyautogui import from_pyautogui

SUITE = sim_suite()


def score(task: Task, desktop: SimDesktop) -> float:
    expected = task.evaluator["expected"]["rules"]
    return sim_state(desktop.read_file(task.evaluator["result"]["path"]), expected)


def begin(task: Task, desktop: SimDesktop, seed: int) -> None:
    desktop.reset(seed)
    for step in task.config:
        desktop.setup(step)


def solve(task: Task, desktop: SimDesktop, style: str, limit: int):
    """Plays the oracle until it is done; returns its steps."""
    oracle, steps = SimOracle(task, style), []
    while (step := oracle.next_step(desktop)) is not None and len(steps) < limit:
        steps.append(step)
        desktop.perform(step.actions)
    return steps


def test_pools_and_splits():
    assert len(TEMPLATES) >= 24
    assert len({tag for task in SUITE.tasks for tag in task.tags if tag.startswith("template:")}) >= 24
    assert len(SUITE.tasks) >= 90
    assert len({task.instruction for task in SUITE.tasks}) == len(SUITE.tasks)
    count = {split: Counter(task.tags[0] for task in SUITE.split(split)) for split in SPLIT_SIZES}
    assert count == {
        "train": {"known": 32, "unknown": 32},
        "held_out": {"known": 32, "unknown": 32},
        "validation": {"known": 16, "unknown": 16},
    }
    split_ids = [task.id for split in SPLIT_SIZES for task in SUITE.split(split)]
    assert len(split_ids) == len(set(split_ids))
    trained = {task.tags[1] for task in SUITE.split("train") if "unknown" in task.tags}
    assert not trained & {"template:secure_host", "template:archive", "template:copy_file", "template:restore_file"}
    assert all("known" in task.tags for task in cloning_tasks())


def test_tasks_are_osworld_json():
    for task in SUITE.tasks:
        again = Task.from_json(task.to_json())
        assert again.content_hash == task.content_hash


def test_cloning_never_asks_for_an_unknown_setting():
    asked = {name for task in cloning_tasks() for goal in task.oracle["goals"] for name in goal.get("values", ())}
    for task in SUITE.tasks:
        names = {name for goal in task.oracle["goals"] for name in goal.get("values", ())}
        if "unknown" in task.tags and names and task.domain != "files":
            assert names - asked, task.id


@pytest.mark.parametrize("style", ["expert", "native"])
def test_fresh_is_0_and_the_oracle_earns_1_within_15_steps(style):
    desktop = SimDesktop(popup_probability=0.04)
    lengths = []
    for number, task in enumerate(SUITE.tasks):
        for seed in (number, number + 1000, number + 2000):
            begin(task, desktop, seed)
            assert score(task, desktop) == 0.0, task.id
            desktop.perform([Action("wait")])
            assert score(task, desktop) == 0.0, task.id
            steps = solve(task, desktop, style, limit=15)
            assert score(task, desktop) == 1.0, (task.id, seed, [step.intent for step in steps])
            lengths.append(len(steps))
    assert 3 < sum(lengths) / len(lengths) < 6
    assert min(lengths) >= 1


def test_the_experts_plan_is_the_same_whatever_is_open():
    """So a plan from one screen is valid on another; only finding a file in a long list depends on the screen."""
    desktop = SimDesktop(popup_probability=0.0)
    for task in SUITE.tasks:
        plans = set()
        for seed in range(5):
            begin(task, desktop, seed)
            intents = [step.intent for step in solve(task, desktop, "expert", limit=15)]
            plans.add(tuple(intent for intent in intents if not intent.startswith("Find ")))
        assert len(plans) == 1, plans


@pytest.mark.parametrize("style", ["expert", "native"])
@pytest.mark.parametrize("options", [{"popup_probability": 0.4}, {"tiles": (12, 9)}, {"shuffle_labels": True}])
def test_the_oracle_copes_with_popups_other_screens_and_shuffled_labels(style, options):
    desktop = SimDesktop(**options)
    for seed, task in enumerate(SUITE.tasks):
        begin(task, desktop, seed)
        steps = solve(task, desktop, style, limit=60)
        assert score(task, desktop) == 1.0, (task.id, seed, [step.intent for step in steps])


@pytest.mark.parametrize("style", ["expert", "native"])
def test_the_oracle_recovers_from_random_actions(style):
    """From any state, the goal is reached; side effects of the random actions keep the score at 0."""
    desktop, rng = SimDesktop(popup_probability=0.04), random.Random(0)
    for seed, task in enumerate(SUITE.tasks):
        if task.domain == "files":
            continue  # a renamed or erased file may be unrecoverable
        begin(task, desktop, seed)
        for _ in range(6):
            kind = rng.choice(["click", "right_single", "left_double", "type", "hotkey"])
            point = rng.uniform(0, 128), rng.uniform(0, 128)
            desktop.perform([Action(kind, start=point, content="final", key=rng.choice(["super", "tab", "space"]))])
        files = sorted(desktop.state()["files"])
        solve(task, desktop, style, limit=60)
        wanted = {name: value for goal in task.oracle["goals"] for name, value in goal.get("values", {}).items()}
        settings = desktop.state()["settings"]
        assert {name: settings[name] for name in wanted} == wanted, task.id
        assert sorted(desktop.state()["files"]) == files


def test_native_habits_are_one_primitive_and_a_phrase_of_visible_words():
    desktop, words = SimDesktop(), set(vocabulary())
    for seed, task in enumerate(SUITE.tasks):
        begin(task, desktop, seed)
        oracle = SimOracle(task, "native")
        for _ in range(15):
            step = oracle.next_step(desktop)
            if step is None:
                break
            (action,) = step.actions
            verb, word = step.intent.split()
            assert verb in THOUGHT_VERBS
            labels = {element.label: element.box for element in desktop.elements()}
            if verb in ("open", "tab", "click", "menu", "double", "drag"):
                assert word in labels, step.intent
            elif verb == "type":
                assert word in words
            assert action.kind != "hotkey"
            desktop.perform(step.actions)


def test_expert_habits_are_foreign_and_its_plan_names_labels_only():
    desktop = SimDesktop(popup_probability=0.0)
    task = next(task for task in SUITE.tasks if task.instruction == "turn on mute")
    begin(task, desktop, 11)
    steps = solve(task, desktop, "expert", limit=15)
    assert [step.intent for step in steps] == ["Open sound", "Go to tab volume", "Turn on mute"]
    assert [a.kind for a in steps[0].actions] == ["hotkey", "type"]
    assert steps[0].call == "agent.open('sound')"
    for section in ("(Previous action verification)", "(Screenshot Analysis)", "(Next Action)", "(Grounded Action)"):
        assert section in steps[0].plan
    assert steps[0].reflection is None
    assert steps[-1].reflection is not None
    for task in SUITE.tasks:
        begin(task, desktop, 12)
        for step in solve(task, desktop, "expert", limit=15):
            kinds = {action.kind for action in step.actions}
            assert kinds <= {"hotkey", "type", "drag"}
            assert not set("0123456789") & set(step.intent) or step.intent.split()[-1].isdigit()


def test_side_effects_in_addition_to_the_goal_are_not_rewarded():
    desktop = SimDesktop(popup_probability=0.0)
    task = next(task for task in SUITE.tasks if task.instruction == "turn on mute")
    begin(task, desktop, 0)
    solve(task, desktop, "native", limit=15)
    assert score(task, desktop) == 1.0
    desktop.perform([Action("type", content="boost\n")])
    assert desktop.state()["changed"] == ["boost", "mute"]
    assert score(task, desktop) == 0.0


def test_random_clicking_is_hardly_ever_rewarded():
    desktop, rng, won = SimDesktop(), random.Random(0), 0
    tasks = SUITE.split("train")
    for episode in range(300):
        task = tasks[episode % len(tasks)]
        begin(task, desktop, episode)
        for _ in range(15):
            place = rng.choice(desktop.elements()).centre
            desktop.perform([Action(rng.choice(["click", "click", "right_single", "left_double"]), start=place)])
        won += score(task, desktop) == 1.0
    assert won <= 6  # 2 %


def test_bad_oracle_input():
    task = SUITE.tasks[0]
    with pytest.raises(ValueError, match="unknown oracle style 'fast'"):
        SimOracle(task, "fast")
    with pytest.raises(TaskError, match="goals"):
        SimOracle(Task("x", "do", oracle={"type": "sim"}))
    with pytest.raises(TaskError, match="unknown goal"):
        SimOracle(Task("x", "do", oracle={"type": "sim", "goals": [{"kind": "dance"}]}))
    oracle = SimOracle(Task("x", "do", oracle={"type": "sim", "goals": [{"kind": "set", "values": {"mutex": True}}]}))
    with pytest.raises(TaskError, match="task 'x': oracle: no setting 'mutex'; known: access, "):
        oracle.next_step(SimDesktop())
    with pytest.raises(
        TaskError, match=r"task 'x': oracle.type 'sim' requires .*, got ScriptedDesktop; fix: provider sim"
    ):
        oracle.next_step(ScriptedDesktop())


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ("mute", "unknown goal 'mute'"),
        ({"kind": "set", "valuse": {}}, "requires values {setting: value}"),
        ({"kind": "set", "values": ["mute"]}, "requires values {setting: value}"),
        ({"kind": "rename", "file": "map"}, "requires file, name"),
        ({"kind": "mark", "mark": "star"}, "requires mark, item"),
        ({"kind": "open"}, "requires file"),
        ({"kind": "set", "values": {"mute": "on"}}, "'mute': expected (True, False), got 'on'"),
        ({"kind": "set", "values": {"level": 25}}, "'level': expected ('25', "),
        ({"kind": "set", "values": {"city": "atlantis"}}, "'city': expected "),
        ({"kind": "set", "values": {"subject": 5}}, "'subject': expected a text"),
        ({"kind": "mark", "mark": "heart", "item": "anna"}, "no mark 'heart'; known: archive, star"),
        ({"kind": "move", "file": "map", "folder": "none"}, "no folder 'none'; known: docs, music, pics"),
    ],
)
def test_a_wrong_goal_is_a_task_error(goal, said):
    with pytest.raises(TaskError, match=re.escape(said)):
        SimOracle(Task("x", "do", oracle={"type": "sim", "goals": [goal]})).next_step(SimDesktop())


def test_metric_by_hand():
    state = b'{"settings": {"mute": true, "level": "25"}, "changed": ["mute"], "files": {"a": ["docs"]}}'

    def holds(path, op, value):
        return sim_state(state, [{"path": path, "op": op, "value": value}])

    assert holds(["settings", "mute"], "eq", True) == 1.0
    assert holds(["settings", "mute"], "eq", 1) == 0.0  # another type
    assert holds(["settings", "nosuch"], "eq", None) == 0.0
    assert holds(["settings", "nosuch"], "ne", "x") == 0.0
    assert holds(["settings", "level"], "ne", "50") == 1.0
    assert holds(["files"], "contains", "a") == 1.0
    assert holds(["files"], "lacks", "b") == 1.0
    assert holds(["files"], "lacks", "a") == 0.0
    assert holds(["changed"], "subset", ["mute", "level"]) == 1.0
    assert holds(["changed"], "subset", []) == 0.0
    both = [{"path": ["changed"], "op": "eq", "value": ["mute"]}, {"path": ["files"], "op": "eq", "value": {}}]
    assert sim_state(state, {"rules": both}) == 0.0
    with pytest.raises(ValueError, match="at least one"):
        sim_state(state, [])
    with pytest.raises(ValueError, match="unknown op"):
        sim_state(state, [{"path": [], "op": "like", "value": 1}])


def typed(actions: Iterable[Action]) -> str:
    """The text and enter keys of the actions, in order."""
    text = {"type": lambda a: a.content, "hotkey": lambda a: "\n" if a.key == "enter" else ""}
    return "".join(text[action.kind](action) for action in actions if action.kind in text)


def test_the_code_of_every_expert_step_is_what_its_actions_do() -> None:
    """Parsing the pyautogui source gives the same text and enter keys as the performed actions."""
    for task in SUITE.tasks:
        desktop = SimDesktop()
        begin(task, desktop, 3)
        oracle = SimOracle(task, "expert")
        while (step := oracle.next_step(desktop)) is not None:
            code = from_pyautogui(step.pyautogui)
            assert typed(code) == typed(step.actions), (task.id, step.pyautogui)
            desktop.perform(step.actions)
