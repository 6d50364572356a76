"""The Gymnasium environment: registration, Gymnasium's checker, failures of the infrastructure."""

from __future__ import annotations

import gc
import runpy
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from repository import ROOT

from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.gymnasium_env import OSWorldGymnasiumEnv
from osworld_gym.tasks.suite import Suite
from osworld_gym.testing import CLICK, FINISHED, NONSENSE, BlockingDesktop, Fault, ScriptedDesktop, count_task
from osworld_gym.types import Verdict

SUITE = Suite("count", tuple(count_task(i) for i in range(1, 5)), {"train": ["count-1"], "held_out": ["count-2"]})


def make(*faults: Fault, **options: object) -> OSWorldGymnasiumEnv:
    return OSWorldGymnasiumEnv(lambda: ScriptedDesktop(*faults), suite=SUITE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])
def test_gymnasiums_checker_passes(kind: type[ScriptedDesktop]) -> None:
    env = gymnasium.make(
        "osworld_gym:OSWorld-v0", provider=kind, suite=SUITE, split="train", render_mode="rgb_array"
    ).unwrapped
    check_env(env, skip_close_check=True)  # the check of double closing requires a spec that is JSON
    env.close()
    env.close()


def test_gymnasiums_checker_passes_on_the_simulated_desktop() -> None:
    env = gymnasium.make("osworld_gym:OSWorld-v0", provider="sim", split="train", render_mode="rgb_array")
    assert env.observation_space["screenshot"].shape == (128, 128, 3)
    check_env(env.unwrapped)


def test_the_example_runs() -> None:
    example = ROOT / "examples" / "gymnasium_loop.py"
    endings = runpy.run_path(str(example))["main"](3)
    assert [info["stop_reason"] in ("finished", "max_steps") for info in endings] == [True] * 3


def test_an_episode_in_a_plain_loop() -> None:
    env = make(split="held_out")
    observation, info = env.reset(seed=1)
    assert observation["instruction"] == "Click 2 times."
    assert observation["screenshot"].shape == (32, 48, 3)
    assert (info["task_id"], info["stop_reason"], info["env_error"]) == ("count-2", "", False)
    assert env.step(CLICK)[1:4] == (0.0, False, False)
    env.step(CLICK)
    _, reward, terminated, truncated, info = env.step(FINISHED)
    assert (reward, terminated, truncated, info["stop_reason"], info["success"]) == (1.0, True, False, "finished", True)
    env.close()


def test_a_score_below_1_is_known_and_not_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osworld_gym.episode.verify", lambda *_, **__: Verdict(0.5))
    env = make(split="held_out")
    assert env.reset(seed=1)[1]["score"] == 0.0
    assert env.step(CLICK)[4]["score"] == 0.0
    _, reward, _, _, info = env.step(FINISHED)
    assert (reward, info["score"], info["success"]) == (0.0, 0.5, False)
    env.close()


def test_a_step_before_the_first_reset_names_reset() -> None:
    env = make()
    with pytest.raises(RuntimeError, match=r"no episode is running: call reset\(\) first"):
        env.step(CLICK)


def test_the_step_limit_truncates() -> None:
    env = make(split="train", options=EpisodeOptions(max_steps=1))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(CLICK)
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, False, True, "max_steps")


def test_gymnasiums_own_limit_cuts_off_unverified() -> None:
    env = gymnasium.make("osworld_gym:OSWorld-v0", provider=ScriptedDesktop, suite=SUITE, max_episode_steps=1)
    env.reset(seed=0, options={"task": "count-1"})
    _, reward, terminated, truncated, info = env.step(CLICK)
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "")


def test_the_seed_fixes_task_and_screen() -> None:
    first, second = make(), make()
    seen = []
    for seed in range(8):
        (a, info_a), (b, info_b) = first.reset(seed=seed), second.reset(seed=seed)
        assert info_a == info_b
        np.testing.assert_array_equal(a["screenshot"], b["screenshot"])
        seen.append((info_a["task_id"], a["screenshot"][-1, -1, 0]))
    assert len({task for task, _ in seen}) > 1
    assert len({shade for _, shade in seen}) > 1


def test_a_task_can_be_named() -> None:
    env = make()
    assert env.reset(options={"task": "count-3"})[1]["task_id"] == "count-3"
    assert env.reset(options={"task": count_task(9)})[0]["instruction"] == "Click 9 times."
    with pytest.raises(TaskError, match="count-99"):
        env.reset(options={"task": "count-99"})
    with pytest.raises(ValueError, match="tusk"):
        env.reset(options={"tusk": "count-3"})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"options": {"task": 3}}, TypeError, r"options\[.task.\] must be a task's id or a Task, got 3; leave it out"),
        ({"options": {"task": None}}, TypeError, "must be a task's id or a Task, got None"),
        ({"options": {"task": "count-9"}}, TaskError, "no task 'count-9' in suite 'count'"),
        ({"options": {3: 1, "tusk": "x"}}, ValueError, "reset has no option 3, tusk; it has: task"),
        ({"options": ["task"]}, TypeError, r"options must be a mapping, as .*, or None; got \['task'\]"),
        ({"options": "task"}, TypeError, "options must be a mapping"),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0, or None; got -1"),
        ({"seed": 1.5}, TypeError, "seed must be an integer >= 0, or None; got 1.5"),
        ({"seed": True}, TypeError, "seed must be an integer"),
    ],
)
def test_what_reset_cannot_use_is_refused(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    env = make()
    with pytest.raises(kind, match=message):
        env.reset(**arguments)
    env.reset(seed=np.int64(3), options={"task": "count-2"})  # type: ignore[arg-type]
    env.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"reset_retries": -1}, ValueError, "reset_retries: expected an integer >= 0"),
        ({"options": {"max_steps": 3}}, TypeError, r"must be EpisodeOptions, got \{'max_steps': 3\}; fix"),
        ({"options": {}}, TypeError, "must be EpisodeOptions"),
        ({"deadline": float("nan")}, ValueError, "deadline > 0 s"),
        ({"deadline": "60"}, TypeError, "deadline must be a number of seconds, got '60'"),
        ({"provider": "sim", "provider_options": [("tiles", (8, 8))]}, TypeError, "provider_options must be a mapping"),
        ({"provider": lambda: None}, TypeError, "expected a provider that returns a Desktop, got None; return it"),
        ({"split": None}, TypeError, "split must be a name, got None; fix, for every task: split='all'"),
        ({"suite": SUITE.tasks}, TypeError, r"suite must be a Suite, .*Suite\("),
        ({"suite": lambda: SUITE}, TypeError, r"fix, for a function that returns one: suite=function\(\)"),
        ({"provider": ScriptedDesktop()}, TypeError, "fix, for an object that is a desktop: provider=lambda: desktop"),
    ],
)
def test_what_the_environment_cannot_use_is_refused(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        OSWorldGymnasiumEnv(**{"provider": ScriptedDesktop, "suite": SUITE, **arguments})


@pytest.mark.parametrize("limit", [2.5, float("nan"), "3", 0, True])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_steps: expected an integer >= 1, got"):
        EpisodeOptions(max_steps=limit)


@pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])
def test_a_new_desktop_with_another_screen_is_an_error_not_an_observation(kind: type[ScriptedDesktop]) -> None:
    class Wider(kind):  # type: ignore[misc,valid-type]
        screen_size = (64, 32)

    made = iter([kind(Fault("perform", 1, "died"))])
    env = OSWorldGymnasiumEnv(lambda: next(made, None) or Wider(), suite=SUITE)
    env.reset(seed=0)
    assert env.step(CLICK)[4]["env_error"]
    with pytest.raises(DesktopError, match=r"a screen of \(48, 32\) pixels, as the first desktop's, got \(64, 32\)"):
        env.reset()
    env.close()


def test_an_unparsable_response_is_reported() -> None:
    env = make()
    env.reset(seed=0)
    assert env.step(NONSENSE)[4]["parse_error"]


def test_an_action_that_is_not_text_is_refused() -> None:
    """A mistake in the caller's code is no response of the policy, which would be scored."""
    env = make()
    env.reset(seed=0)
    for action in (3, None, [CLICK]):
        with pytest.raises(TypeError, match="must be a str, the policy's response, got"):
            env.step(action)  # type: ignore[arg-type]
    assert not env.step(CLICK)[4]["parse_error"]


def test_a_failed_desktop_truncates_with_its_reason_and_the_next_reset_works() -> None:
    env = make(Fault("perform", 1, "died"))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(CLICK)
    assert (reward, terminated, truncated, info["env_error"]) == (0.0, False, True, True)
    assert info["failure"].startswith("died: ")
    assert env.reset(seed=0)[1]["env_error"] is False


def test_an_interrupted_step_leaves_an_environment_that_can_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    env = OSWorldGymnasiumEnv(BlockingDesktop, suite=SUITE)
    env.reset(seed=0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env.vector, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(CLICK)
    env.reset(seed=0)
    assert env.step(FINISHED)[1:4] == (0.0, True, False)  # not the result of the click
    env.close()


def test_an_environment_that_is_dropped_closes_its_desktop() -> None:
    closed = threading.Event()

    class Watched(BlockingDesktop):
        def close(self) -> None:
            super().close()
            closed.set()

    env = OSWorldGymnasiumEnv(Watched, suite=SUITE)
    env.reset(seed=0)
    assert not closed.is_set()
    del env
    gc.collect()
    assert closed.wait(30)


def test_a_reset_that_fails_for_good_raises() -> None:
    env = make(Fault("reset", 1, "never_ready"), reset_retries=1)
    with pytest.raises(DesktopError, match=r"^never_ready: planned"):
        env.reset(seed=0)


def test_a_reset_is_tried_again_on_a_fresh_desktop() -> None:
    made: list[ScriptedDesktop] = []

    def factory() -> ScriptedDesktop:
        made.append(ScriptedDesktop(*([Fault("reset", 1, "never_ready")] if not made else [])))
        return made[-1]

    env = OSWorldGymnasiumEnv(factory, suite=SUITE)
    env.reset(seed=0)
    assert [desktop.closed for desktop in made] == [1, 0]


def test_bad_names_are_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'sym'.*local.*sim"):
        gymnasium.make("osworld_gym:OSWorld-v0", provider="sym")
    with pytest.raises(TaskError, match=r"'sym'.*local.*sim"):
        OSWorldGymnasiumEnv(ScriptedDesktop, suite="sym")
    with pytest.raises(TaskError, match=r"'tests'.*all, train, held_out"):
        make(split="tests")
    with pytest.raises(TaskError, match="name one with suite="):
        OSWorldGymnasiumEnv(ScriptedDesktop)


def test_importing_the_package_registers_the_name_without_torch() -> None:
    code = (
        "import sys, gymnasium, osworld_gym; assert 'torch' not in sys.modules; gymnasium.spec('OSWorld-v0');"
        "import osworld_gym.gymnasium_env; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
