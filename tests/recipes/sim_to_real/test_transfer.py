"""Transfer from a twin to the real desktop: the arithmetic, the twin's tasks, and the settings of both trainings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bepa_torchrl.evaluation.success_rate import Evaluation
from bepa_torchrl.experts import load_traces
from bepa_torchrl.testing.scripted import DONE, PRESS, LampDesktop, ScriptedPolicy, lamp_task
from osworld_gym.desktops.recorded import RecordedDesktop
from osworld_gym.desktops.recorded.graph import Recording, State
from osworld_gym.desktops.recorded.recorder import Recorder
from osworld_gym.desktops.registry import PROVIDERS
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.suites.registry import osworld_suite
from osworld_gym.tasks.suites.varied.suite import varied_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action
from recipes.sim_to_real import twin as twin_module
from recipes.sim_to_real.__main__ import best, parser, trials, variants
from recipes.sim_to_real.transfer import report, transfer
from recipes.sim_to_real.twin import Effort, build_twin, claim_trainings, counts, twin_task
from recipes.study.runner import Run

TASKS = ["a", "b"]
RECORDED = {"tasks": 2.0, "states": 30.0, "actions": 70.0, "solved": 8.0, "repeated": 40.0, "differing": 3.0,
            "other_starts": 2.0}  # fmt: skip


def evaluation(a: int, b: int) -> Evaluation:
    return Evaluation({"a": (a, 4), "b": (b, 4)})


def found(after_real: tuple[int, int] = (4, 2)) -> dict:
    real = {"base": evaluation(1, 1), "after_real": evaluation(*after_real), "after_twin": evaluation(3, 2)}
    return transfer(real, {"base": evaluation(2, 2), "after_twin": evaluation(4, 4)}, TASKS)


def test_ratios_are_those_of_success_and_of_gains_on_the_real_desktops() -> None:
    """Base 2 of 8, after the twin 5 of 8, after the real desktops 6 of 8: gains of 3 and 4."""
    one = found()
    assert one["success"]["real"]["after_twin"]["mean"] == pytest.approx(5 / 8)
    assert one["gain_twin"]["mean"] == pytest.approx(3 / 8)
    assert one["gain_real"]["mean"] == pytest.approx(4 / 8)
    assert one["ratio"] == pytest.approx(5 / 6)
    assert one["gain_ratio"] == pytest.approx(3 / 4)
    assert one["gain_twin"]["low"] < 3 / 8 < one["gain_twin"]["high"]
    text = "\n".join(report(one, RECORDED))
    assert "3 of 40 repeated actions led to another screen than recorded" in text
    assert "2 episodes of a recorded seed began with another screen" in text
    assert "success after twin / after real: 83 %; of the gains: 75 %" in text


def test_no_ratio_of_gains_without_a_gain_on_the_real_desktops() -> None:
    one = found(after_real=(1, 1))
    assert one["gain_ratio"] is None
    assert "of the gains: –" in report(one, RECORDED)[-1]


def test_the_trial_with_the_highest_success_on_the_twin_is_used() -> None:
    results: Any = [SimpleNamespace(counts={"sampled": {"a": [won, 4], "b": [2, 4]}}) for won in (1, 3, 3)]
    assert best(results) == 1
    options = parser().parse_args(["--trial", "optimizer.lr=1e-4", "--trial", "optimizer.lr=3e-4", "loss.anchor=0.1"])
    first, second = ({name: Run(each, 0) for name, each in both.items()} for both in trials(options))
    assert [runs["twin"].name for runs in (first, second)] == ["trial-1-0", "trial-2-0"]
    for name in ("twin", "real"):
        settings = second[name].settings()
        assert (settings.optimizer.lr, settings.loss.anchor) == (3e-4, 0.1)
        assert first[name].settings().optimizer.lr == 1e-4
    tried = {"trials": [{"settings": ["optimizer.lr=1e-4"], "success": 0.25}]}
    assert "tried on the twin: optimizer.lr=1e-4: 25.0 %" in report(found() | tried, RECORDED)


def test_a_twins_task_is_solved_where_the_verifier_said_so(tmp_path: Path) -> None:
    task = varied_suite().split("train")[0]
    twin = twin_task(task)
    assert (twin.id, twin.instruction, twin.tags) == (task.id, task.instruction, task.tags)
    assert twin.oracle is None
    path = tmp_path / "examples" / twin.domain / f"{twin.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(twin.to_json()))
    assert osworld_suite(tmp_path).task(task.id).content_hash == twin.content_hash


def test_what_was_recorded_is_not_recorded_again(tmp_path: Path) -> None:
    """With every recording there, no desktop and no policy is needed: only the suite is written."""
    task = varied_suite().split("train")[0]
    states = [State("0" * 32, 0.0, {"x": 1, "y": 0}), State("1" * 32, 1.0)]
    Recording((640, 360), {7: states}).save(tmp_path / "recordings" / f"{task.id}.json")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / f"{task.id}.json").write_text('{"repeated": 5, "differing": 1}')
    recorded = build_twin(tmp_path, None, [task], None, Effort(), pytest.fail)  # type: ignore[arg-type]
    assert recorded == counts(tmp_path, [task]) == {
        "tasks": 1, "states": 2, "actions": 2, "solved": 1, "repeated": 5, "differing": 1,
        "other_starts": 0,
    }  # fmt: skip
    assert osworld_suite(tmp_path / "suite").task(task.id).evaluator["func"] == "sim_state"


def test_a_verifier_that_changes_the_desktop_is_refused(tmp_path: Path) -> None:
    task = Task("t", "i", evaluator={"func": "f", "result": {"type": "r"}, "postconfig": [{"type": "sleep"}]})
    with pytest.raises(ValueError, match="its verifier changes the desktop"):
        build_twin(tmp_path, None, [task], None, Effort(), print)  # type: ignore[arg-type]


def test_both_trainings_have_the_same_settings_but_for_the_desktops(tmp_path: Path) -> None:
    both = variants(parser().parse_args(["--work", str(tmp_path), "--algo", "grpo", "--iterations", "5"]))
    real, twin = (Run(both[name], 0).settings() for name in ("real", "twin"))
    assert (real.env.provider, twin.env.provider) == ("local", "recorded")
    assert dict(twin.env.options) == {"width": 640, "height": 360, "folder": str(tmp_path / "twin")}
    assert (real.env.train_limit, twin.env.train_limit, twin.train.iterations) == (24, 24, 5)
    for part in ("algo", "train", "optimizer", "collect", "loss", "eval", "policy"):
        assert getattr(real, part) == getattr(twin, part)


def test_an_earlier_recording_can_be_added_to(tmp_path: Path) -> None:
    known = Recording((64, 64), {0: [State("0" * 32, 0.0)]})
    assert Recorder(tmp_path, (64, 64), known).recording is known


class PressOnce:
    """An oracle that switches the lamp on."""

    def __init__(self, *_: object) -> None:
        self.pressed = False

    def next_step(self, desktop: object) -> ExpertStep | None:
        assert isinstance(desktop, LampDesktop), "the oracle looks at the desktop inside"
        if self.pressed:
            return None
        self.pressed = True
        click = (Action("click", start=(4.0, 4.0)),)
        return ExpertStep("lamp", "press", None, "agent.click()", "pyautogui.click(4, 4)", "press the lamp", click)


def test_a_twin_is_built_from_oracles_and_policy_and_plays_like_the_desktop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "lamp", LampDesktop)
    monkeypatch.setattr(twin_module, "make_oracle", PressOnce)
    policy = ScriptedPolicy(lambda key: key[-1] % 2 == 0)
    monkeypatch.setattr(policy, "image_scaling", None, raising=False)  # it is its own renderer
    env = SimpleNamespace(provider="lamp", options={}, max_steps=4, desktops=2, deadline=30.0)
    lines: list[str] = []
    tasks = [lamp_task(0), lamp_task(1)]
    found = build_twin(tmp_path, SimpleNamespace(env=env), tasks, policy, Effort(2, 4), lines.append)  # type: ignore[arg-type]
    assert lines == [f"lamp-{n}: 4 states, the policy solved 4 of 8 episodes" for n in (0, 1)]
    assert (found["tasks"], found["states"], found["actions"], found["solved"]) == (2, 8, 4, 4)
    assert found["differing"] == 0 < found["repeated"]
    suite = osworld_suite(tmp_path / "suite")
    episode = Episode(RecordedDesktop(str(tmp_path), 8, 8), EpisodeOptions())
    for texts, solved in (((PRESS, DONE), True), ((DONE,), False)):
        episode.begin(suite.task("lamp-1"), 5)
        last = [episode.act(text) for text in texts][-1]
        assert last.verdict is not None
        assert last.verdict.success is solved
    again = SimpleNamespace(env=env)
    assert build_twin(tmp_path, again, tasks, policy, Effort(2, 4), pytest.fail) == found  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lamp-0 was recorded with .*'rollouts': 4.* got .*'rollouts': 8"):
        build_twin(tmp_path, again, tasks, policy, Effort(2, 8), pytest.fail)  # type: ignore[arg-type]
    claim_trainings(tmp_path, tmp_path / "work", tasks)
    claim_trainings(tmp_path, tmp_path / "work", tasks)
    states = [State("0" * 32, 0.0)]
    Recording((8, 8), {7: states}).save(tmp_path / "recordings" / "lamp-1.json")  # recorded again
    with pytest.raises(ValueError, match="its trainings and results are of other recordings"):
        claim_trainings(tmp_path, tmp_path / "work", tasks)
    build_twin(tmp_path, again, tasks[:1], policy, Effort(2, 4), pytest.fail)  # type: ignore[arg-type]
    assert [task.id for task in osworld_suite(tmp_path / "suite").tasks] == ["lamp-0"]
    traces = load_traces(tmp_path / "experts")
    assert [(trace.task_id, trace.success) for trace in traces] == [("lamp-0", True), ("lamp-1", True)]
