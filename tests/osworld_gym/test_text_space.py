"""AnyText, and the environment's texts in Gymnasium's vector environments, with and without shared memory."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from osworld_gym.gymnasium_env import AnyText, OSWorldGymnasiumEnv
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task
from osworld_gym.testing import CLICK, FINISHED, ScriptedDesktop, count_task

TEXTS = ("Click once.", "点击两次。", "🖱️ three\ntimes\t\x00", "ünïcödé \ud800", "")
TASKS = tuple(
    Task(id=f"count-{i}", instruction=text, evaluator=count_task(i).evaluator) for i, text in enumerate(TEXTS[:3], 1)
)
SUITE = Suite("scripts", TASKS, {"train": [task.id for task in TASKS]})
VECTORS = [SyncVectorEnv, AsyncVectorEnv, partial(AsyncVectorEnv, shared_memory=False)]


def make() -> OSWorldGymnasiumEnv:
    return OSWorldGymnasiumEnv(ScriptedDesktop, suite=SUITE)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_any_script_is_in_the_space_and_survives_flattening(text: str) -> None:
    space = AnyText(20)
    assert space.contains(text)
    flat: Any = flatten(space, text)
    assert flatten_space(space).contains(flat)
    assert unflatten(space, flat) == text


def test_the_space_limits_the_length_alone() -> None:
    space = AnyText(3)
    assert "abc" in space
    assert "abcd" not in space
    assert 3 not in space
    assert space.sample() in space
    assert space == AnyText(3) == pickle.loads(pickle.dumps(space))
    assert space != AnyText(4)
    assert space != spaces.Text(3, min_length=0)
    with pytest.raises(ValueError, match="at most 3 characters, got 4; shorten it"):
        flatten(space, "abcd")


@pytest.mark.parametrize("task", [task.id for task in TASKS])
def test_instructions_in_any_script_are_in_the_observation_space(task: str) -> None:
    env = make()
    observation, _ = env.reset(seed=0, options={"task": task})
    assert env.observation_space.contains(observation)
    assert env.action_space.contains("Thought: 点击\nAction: wait()")
    env.close()


def test_gymnasiums_checker_passes_on_instructions_in_any_script() -> None:
    name = "osworld_gym:OSWorld-v0"
    env = gymnasium.make(name, provider=ScriptedDesktop, suite=SUITE, render_mode="rgb_array").unwrapped
    check_env(env, skip_close_check=True)  # the check of double closing requires a spec that is JSON
    env.close()


@pytest.mark.parametrize("vector", VECTORS, ids=["sync", "async", "async without shared memory"])
def test_vector_environments_return_the_current_texts(vector: Any) -> None:
    envs = vector([make, make])
    seen = []
    for first, second in ((0, 1), (2, 0)):
        observations = {}
        for index, task in enumerate((TASKS[first], TASKS[second])):  # both environments are given the same task
            observations[index], _ = envs.reset(seed=index, options={"task": task.id})
            assert observations[index]["instruction"] == (task.instruction,) * 2
            assert envs.observation_space.contains(observations[index])
        seen.append(observations[0]["instruction"])
    assert seen == [(TEXTS[0],) * 2, (TEXTS[2],) * 2]  # earlier observations do not change
    observation, rewards, terminated, *_ = envs.step((CLICK, FINISHED))
    assert observation["instruction"] == (TEXTS[0],) * 2
    assert observation["screenshot"].shape == (2, 32, 48, 3)
    assert rewards.tolist() == [0.0, 0.0]
    assert terminated.tolist() == [False, True]
    envs.close()


def test_without_copies_shared_texts_are_the_current_ones() -> None:
    envs = AsyncVectorEnv([make, make], copy=False)
    first = envs.reset(options={"task": "count-1"})[0]["instruction"]
    assert (first[0], first[:], len(first)) == (TEXTS[0], (TEXTS[0],) * 2, 2)
    envs.reset(options={"task": "count-2"})
    assert list(first) == [TEXTS[1]] * 2
    envs.close()


def test_the_registered_name_works_in_gymnasiums_default_vector() -> None:
    envs: Any = gymnasium.make_vec("osworld_gym:OSWorld-v0", num_envs=2, vectorization_mode="async", provider="sim")
    single = gymnasium.make("osworld_gym:OSWorld-v0", provider="sim")
    observation = envs.reset(seed=[3, 4])[0]
    for index, seed in enumerate((3, 4)):
        expected = single.reset(seed=seed)[0]
        assert observation["instruction"][index] == expected["instruction"]
        np.testing.assert_array_equal(observation["screenshot"][index], expected["screenshot"])
    envs.close()
    single.close()
