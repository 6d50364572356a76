"""OSWorldEnv: TorchRL's checker, the `_reset` and `_step` masks, failures that affect only their row."""

from __future__ import annotations

import copy
import gc
import pickle
import runpy
import threading
from typing import Any

import numpy as np
import pytest
import torch
from repository import ROOT
from tensordict import NonTensorStack, TensorDictBase
from torchrl.envs import InitTracker, ParallelEnv, SerialEnv, TransformedEnv, check_env_specs

from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import TaskError
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task
from osworld_gym.testing import CALL_USER, CLICK, FINISHED, WAIT, BlockingDesktop, Fault, ScriptedDesktop, count_task
from osworld_gym.torchrl_env import EXAMPLE_ACTION, OSWorldEnv
from osworld_gym.types import Verdict

SUITE = Suite("count", tuple(count_task(i) for i in range(1, 5)), {"train": ["count-1"]})


def make(n: int, *faults: Fault | None, kind: type[ScriptedDesktop] = ScriptedDesktop, **options: object) -> OSWorldEnv:
    """``faults[k]`` are injected in the k-th desktop that is created; row 0's is first, the others in row order."""
    plans = iter(faults)

    def factory() -> ScriptedDesktop:
        fault = next(plans, None)
        return kind(*([fault] if fault else []))

    return OSWorldEnv(factory, n, suite=SUITE, **options)  # type: ignore[arg-type]


def step(env: OSWorldEnv, td: TensorDictBase, *texts: str, live: list[bool] | None = None) -> TensorDictBase:
    td["action"] = NonTensorStack(*texts)
    if live is not None:
        td["_step"] = torch.tensor(live)
    return env.step(td)["next"]


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("observation", ["array", "png"])
@pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])
def test_torchrls_checker_passes(n: int, observation: str, kind: type[ScriptedDesktop]) -> None:
    env = make(n, kind=kind, observation=observation)
    check_env_specs(env)
    env.close()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("observation", ["array", "png"])
def test_torchrls_checker_passes_on_the_simulated_desktop(n: int, observation: str) -> None:
    env = OSWorldEnv(provider="sim", num_envs=n, split="train", observation=observation)  # type: ignore[arg-type]
    check_env_specs(env)
    env.close()


def test_the_example_runs_in_a_stock_collector() -> None:
    example = ROOT / "examples" / "torchrl_collector.py"
    counts = runpy.run_path(str(example))["main"](240)
    # four rows, 60 steps each, 15 steps per episode: no episode ends early, since the policy only clicks
    assert counts["episodes"] == 16
    assert counts["masked"] == 0


def test_each_row_plays_its_own_task_to_its_own_reward() -> None:
    env = make(3)
    td = env.reset(tasks=["count-1", count_task(2), "count-3"], seeds=[5, 6, 7])
    assert list(td["task_id"]) == ["count-1", "count-2", "count-3"]
    assert list(td["instruction"]) == ["Click 1 times.", "Click 2 times.", "Click 3 times."]
    assert td["screenshot"].shape == (3, 3, 32, 48)
    assert td["screenshot"][:, 0, -1, -1].tolist() == [5, 6, 7]
    after = step(env, td, CLICK, CLICK, CLICK)
    assert after["screenshot"][0, :, 0, 0].tolist() == [255, 255, 255]
    assert after["reward"].tolist() == [[0.0], [0.0], [0.0]]
    assert list(after["stop_reason"]) == ["", "", ""]
    last = step(env, after, FINISHED, FINISHED, FINISHED)
    assert last["reward"].tolist() == [[1.0], [0.0], [0.0]]
    assert last["success"].tolist() == [[True], [False], [False]]
    assert list(last["stop_reason"]) == ["finished"] * 3
    assert last["step_count"].tolist() == [[2], [2], [2]]


def test_a_score_below_1_is_known_and_not_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"count-1": 0.5, "count-2": 1.0}
    monkeypatch.setattr("osworld_gym.episode.verify", lambda task, *_, **__: Verdict(scores[task.id]))
    env = make(3)
    after = step(env, env.reset(tasks=["count-1", "count-2", "count-3"], seeds=[5, 6, 7]), FINISHED, FINISHED, CLICK)
    assert after["score"].tolist() == [[0.5], [1.0], [0.0]]
    assert after["success"].tolist() == [[False], [True], [False]]
    assert after["reward"].tolist() == [[0.0], [1.0], [0.0]]


def test_terminated_and_truncated() -> None:
    env = make(3, options=EpisodeOptions(max_steps=1, call_user_tolerance=1))
    after = step(env, env.reset(), FINISHED, CLICK, CALL_USER)
    assert list(after["stop_reason"]) == ["finished", "max_steps", "call_user"]
    assert after["done"].tolist() == [[True]] * 3
    assert after["terminated"].tolist() == [[True], [False], [True]]
    assert after["truncated"].tolist() == [[False], [True], [False]]


def test_rows_outside_the_step_mask_stand_still() -> None:
    env = make(2)
    td = env.reset(tasks=["count-1", "count-1"])
    after = step(env, td, CLICK, CLICK, live=[True, False])
    assert after["step_count"].tolist() == [[1], [0]]
    assert after["screenshot"][:, 0, 0, 0].tolist()[0] == 255
    assert after["screenshot"][1].eq(td["screenshot"][1]).all()


def test_a_finished_row_stays_without_reward_until_it_is_reset() -> None:
    env = make(2)
    td = env.reset(tasks=["count-1", "count-2"])
    td = step(env, td, CLICK, CLICK)
    td = step(env, td, FINISHED, CLICK)
    assert td["reward"].tolist() == [[1.0], [0.0]]
    last = step(env, td, CLICK, FINISHED)
    assert last["reward"].tolist() == [[0.0], [1.0]]
    assert last["step_count"].tolist() == [[2], [3]]
    assert last["done"].tolist() == [[True], [True]]


def test_a_partial_reset_begins_only_its_rows() -> None:
    env = make(2)
    td = step(env, env.reset(tasks=["count-1", "count-2"]), FINISHED, CLICK)
    td["_reset"] = td["done"].clone()
    again = env.reset(td, tasks=["count-4"], seeds=[9])
    assert list(again["task_id"]) == ["count-4", "count-2"]
    assert again["step_count"].tolist() == [[0], [1]]
    assert again["done"].tolist() == [[False], [False]]
    assert again["screenshot"][0, 0, -1, -1] == 9
    assert again["screenshot"][1, 0, 0, 0] == 255


def test_the_task_choice_depends_on_seed_row_and_episode_only() -> None:
    def choices(n: int, seed: int) -> list[list[str]]:
        env = make(n, seed=seed)
        return [list(env.reset()["task_id"]) for _ in range(6)]

    assert choices(3, seed=1) == choices(3, seed=1)
    assert [row[:2] for row in choices(3, seed=1)] == choices(2, seed=1)
    assert choices(3, seed=1) != choices(3, seed=2)
    assert len({task for row in choices(3, seed=1) for task in row}) > 1
    env = make(3, seed=2)
    env.reset()
    env.set_seed(1)
    assert list(env.reset()["task_id"]) == choices(3, seed=1)[0]


def play(env: OSWorldEnv, steps: int, *, reset_at: frozenset[int] = frozenset()) -> list[tuple[str, int, int, int]]:
    """(task, seed, group, slot) of the episodes that finished, in order; row i's episodes take 1 + i % 3 steps."""
    td, ended = env.reset(), []
    for count in range(steps):
        if count in reset_at:
            td = env.reset()
        wanted = [1 + i % 3 for i in range(len(td))]
        texts = [FINISHED if int(n) + 1 >= w else CLICK for n, w in zip(td["step_count"], wanted, strict=True)]
        td = step(env, td, *texts)
        for i in td["done"].reshape(-1).nonzero().reshape(-1).tolist():
            shade = int(td["screenshot"][i, 0, -1, -1])
            ended.append((td["task_id"][i], shade, int(td["group_id"][i]), int(td["slot"][i])))
        if td["done"].any():
            td["_reset"] = td["done"].clone()
            td = env.reset(td)
    return ended


@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_siblings_share_task_and_seed_whichever_rows_run_them(n: int) -> None:
    """Groups of four: each slot once, same task and seed, four tasks per epoch, whichever rows run them."""
    groups: dict[int, list[tuple[str, int, int, int]]] = {}
    for episode in play(make(n, group_size=4, seed=3), 110 // n):
        groups.setdefault(episode[2], []).append(episode)
    whole = {group: members for group, members in groups.items() if len(members) == 4}
    assert len(whole) >= 8
    first_epoch = [whole[g][0][0] for g in range(3 * 2**30, 3 * 2**30 + 4)]
    assert sorted(first_epoch) == [f"count-{i}" for i in range(1, 5)]
    for members in whole.values():
        assert sorted(slot for _, _, _, slot in members) == [0, 1, 2, 3]
        assert len({(task, seed) for task, seed, _, _ in members}) == 1
    reference = {e[2]: e[:2] for e in play(make(2, group_size=4, seed=3), 60)}
    assert all(reference[g] == members[0][:2] for g, members in whole.items() if g in reference)


def test_an_episode_cut_off_by_a_reset_is_run_again() -> None:
    ended = play(make(3, group_size=4, seed=3), 40, reset_at=frozenset({1, 2, 7, 8, 20}))
    episodes = [(group, slot) for _, _, group, slot in ended]
    assert len(episodes) == len(set(episodes))
    first, last = min(episodes)[0], max(episodes)[0]
    assert {(g, s) for g in range(first, last - 1) for s in range(4)} <= set(episodes)


def test_episodes_whose_reset_is_interrupted_are_run_at_the_next_one() -> None:
    interrupts = iter([False] * 3 + [True])

    class Interrupted(ScriptedDesktop):
        def reset(self, seed: int) -> None:
            if next(interrupts, False):
                raise KeyboardInterrupt
            super().reset(seed)

    env = OSWorldEnv(Interrupted, 2, suite=SUITE, group_size=2)
    td = env.reset()
    step(env, td, FINISHED, FINISHED)
    with pytest.raises(KeyboardInterrupt):
        env.reset()  # the second group's: row 0 has begun its episode, row 1 has not
    td = env.reset()
    assert (td["group_id"].flatten().tolist(), td["slot"].flatten().tolist()) == ([1, 1], [0, 1])


def test_a_failed_episode_of_a_group_is_run_again_with_its_seed_and_then_left_out() -> None:
    """One desktop, groups of two; the first three desktops hang: slot 0 has no retry left at its third attempt."""
    faults = [Fault("perform", 1, "hung")] * 3
    env = make(1, *faults, group_size=2, episode_retries=2, options=EpisodeOptions(max_steps=1))
    seen = []
    for _ in range(4):
        td = step(env, env.reset(), CLICK)
        seen.append((int(td["group_id"]), int(td["slot"]), int(td["retries_left"]), bool(td["env_error"])))
    assert seen == [(0, 0, 2, True), (0, 0, 1, True), (0, 0, 0, True), (0, 1, 2, False)]
    # one valid episode is not a group: the same task is requeued
    first = str(td["task_id"][0])
    assert env.reset()["task_id"] == [first]


def ends(env: OSWorldEnv, *attempts: list[str]) -> list[tuple[object, ...]]:
    """(slot, step_count, stop reason, env_error, terminated, reward) after each attempt's responses; one desktop."""
    found = []
    for responses in attempts:
        td = env.reset()
        for text in responses:
            td = step(env, td, text)
        numbers = [td[key].item() for key in ("slot", "step_count", "env_error", "terminated", "reward")]
        found.append((*numbers[:2], td["stop_reason"][0], *numbers[2:]))
    return found


def fragile(*calls: int, reason: str = "died", kind: type[ScriptedDesktop] = ScriptedDesktop) -> OSWorldEnv:
    """Groups of two on one desktop, for count-1; the k-th desktop exits at its ``calls[k]``-th response."""
    faults = [Fault("perform", call, reason) for call in calls]
    return make(1, *faults, kind=kind, group_size=2, split="train", options=EpisodeOptions(max_steps=2))


@pytest.mark.parametrize("reason", ["died", "bad_screenshot"])
@pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])
def test_a_desktop_that_the_same_actions_crash_twice_is_scored_0(kind: type[ScriptedDesktop], reason: str) -> None:
    """The crash is not retried again: the next episode is slot 1's, and nothing is recorded any more."""
    env = fragile(2, 2, reason=reason, kind=kind)
    assert ends(env, [CLICK, CLICK], [CLICK, CLICK], [CLICK, FINISHED]) == [
        (0, 2, "env_error", True, False, 0.0),
        (0, 2, "crashed_desktop", False, True, 0.0),
        (1, 2, "finished", False, True, 1.0),
    ]
    assert len(env._crashes) == 0
    env.close()


@pytest.mark.parametrize(
    ("calls", "second"),
    [
        pytest.param((1, 1), [WAIT], id="other actions"),
        pytest.param((2, 1), [CLICK], id="another step"),
    ],
)
def test_crashes_that_differ_are_the_infrastructures(calls: tuple[int, int], second: list[str]) -> None:
    env = fragile(*calls)
    first, again = ends(env, [CLICK] * calls[0], second)
    assert (first[2], again[2]) == ("env_error", "env_error")


def test_an_attempt_that_a_reset_interrupts_does_not_hide_a_crash() -> None:
    env = fragile(1, 2)  # the second desktop runs the interrupted attempt, too
    assert [end[2] for end in ends(env, [CLICK], [WAIT], [CLICK])] == ["env_error", "", "crashed_desktop"]


def test_a_crash_is_compared_within_a_seed_and_an_episode_only() -> None:
    env = fragile(1, 1)
    assert ends(env, [CLICK])[0][2] == "env_error"
    env.set_seed(0)  # starts over: there is no earlier attempt
    assert ends(env, [CLICK])[0][2] == "env_error"
    alone = make(1, *[Fault("perform", 1, "died")] * 2)  # no groups: nothing is retried
    assert [end[2] for end in ends(alone, [CLICK], [CLICK])] == ["env_error", "env_error"]
    given = make(1, *[Fault("perform", 1, "died")] * 2, group_size=2)
    stops = [step(given, given.reset(tasks=["count-1"], seeds=[1]), CLICK)["stop_reason"][0] for _ in range(2)]
    assert stops == ["env_error", "env_error"]


def test_context_full_ends_the_row_verified_without_its_action() -> None:
    env = make(2)
    td = step(env, env.reset(tasks=["count-1", "count-1"]), CLICK, CLICK)
    td["context_full"] = torch.tensor([[True], [False]])
    after = step(env, td, CLICK, CLICK)
    assert list(after["stop_reason"]) == ["context_full", ""]
    assert after["reward"].tolist() == [[1.0], [0.0]]
    assert after["truncated"].tolist() == [[True], [False]]


@pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])
def test_a_failed_desktop_is_an_env_error_on_its_own_row(kind: type[ScriptedDesktop]) -> None:
    env = make(2, Fault("perform", 1, "died"), kind=kind)
    td = step(env, env.reset(tasks=["count-1", "count-1"]), CLICK, CLICK)
    assert td["env_error"].tolist() == [[True], [False]]
    assert td["truncated"].tolist() == [[True], [False]]
    assert td["terminated"].tolist() == [[False], [False]]
    assert td["reward"].tolist() == [[0.0], [0.0]]
    assert list(td["stop_reason"]) == ["env_error", ""]
    last = step(env, td, CLICK, FINISHED)
    assert last["reward"].tolist() == [[0.0], [1.0]]
    last["_reset"] = torch.tensor([[True], [False]])
    assert env.reset(last, tasks=["count-1"])["env_error"].tolist() == [[False], [False]]
    env.close()


def test_a_hung_desktop_is_an_env_error_on_its_own_row() -> None:
    env = make(2, Fault("perform", 1, "hang"), kind=BlockingDesktop, deadline=1.5)
    td = step(env, env.reset(tasks=["count-1", "count-1"]), CLICK, CLICK)
    assert td["env_error"].tolist() == [[True], [False]]
    env.close()


def test_a_failed_reset_is_tried_again_on_a_fresh_desktop() -> None:
    env = make(1, Fault("reset", 1, "never_ready"), Fault("reset", 1, "died"))
    td = env.reset(tasks=["count-1"])
    assert td["env_error"].tolist() == [[False]]
    assert step(env, step(env, td, CLICK), FINISHED)["reward"].tolist() == [[1.0]]


def test_a_reset_that_fails_for_good_gives_a_row_that_ends_masked() -> None:
    env = make(1, Fault("reset", 1, "never_ready"), reset_retries=0)
    td = env.reset()
    assert td["env_error"].tolist() == [[True]]
    assert td["done"].tolist() == [[False]]
    assert td["screenshot"].sum() == 0
    after = step(env, td, CLICK)
    assert (after["truncated"].item(), after["env_error"].item(), after["reward"].item()) == (True, True, 0.0)
    assert env.reset()["env_error"].tolist() == [[False]]


@pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])
def test_a_wrong_task_is_raised_and_the_environment_lives_on(kind: type[ScriptedDesktop]) -> None:
    env = make(3, kind=kind)
    wrong = count_task(1, config=[{"type": "teleport"}])
    with pytest.raises(TaskError, match="teleport"):
        env.reset(tasks=["count-1", wrong, "count-1"])
    td = env.reset(tasks=["count-1"] * 3)
    assert step(env, td, FINISHED, FINISHED, FINISHED)["done"].all()
    env.close()


def test_a_wrong_evaluator_is_raised_from_step_and_the_environment_lives_on() -> None:
    env = make(2)
    wrong = Task("wrong", "?", evaluator={"func": "no_such_metric", "result": {"type": "rule"}})
    td = env.reset(tasks=[wrong, "count-1"])
    with pytest.raises(TaskError, match="no_such_metric"):
        step(env, td, FINISHED, CLICK)
    td = env.reset(tasks=["count-1", "count-1"])
    assert step(env, step(env, td, CLICK, CLICK), FINISHED, FINISHED)["reward"].tolist() == [[1.0], [1.0]]


def one_row() -> OSWorldEnv:
    """One simulated desktop per worker; groups of two."""
    return OSWorldEnv("sim", 1, split="train", group_size=2)


@pytest.mark.parametrize("buffers", [None, False])
def test_serial_env(buffers: bool | None) -> None:
    env = SerialEnv(2, one_row, use_buffers=buffers)
    check_batched(env)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_parallel_env(method: str) -> None:
    """With its defaults: the specs keep it from using buffers."""
    check_batched(ParallelEnv(2, one_row, mp_start_method=method))


def check_batched(env: SerialEnv | ParallelEnv) -> None:
    """Two workers with different seeds: a rollout, automatic resets, and distinct group ids."""
    env.set_seed(0)
    click = "Thought: look\nAction: click(start_box='(8,8)')"
    rollout = env.rollout(
        17,
        lambda td: td.set("action", NonTensorStack(*[NonTensorStack(click)] * 2)),
        break_when_any_done=False,
    )
    try:
        assert rollout.shape == (2, 1, 17)
        assert rollout["next", "done"][:, 0, 14].all()  # 15 steps per episode
        assert rollout["step_count"][:, 0, 15].tolist() == [[0], [0]]
        groups = rollout["group_id"][:, 0, :, 0]
        assert (groups[0] != groups[1]).all()
        assert rollout["slot"][:, 0, [0, 15], 0].tolist() == [[0, 1], [0, 1]]
    finally:
        env.close()


@pytest.mark.slow
def test_parallel_env_does_without_the_buffers_asked_for() -> None:
    with pytest.warns(UserWarning, match="Turning use_buffers to False"):
        env = ParallelEnv(2, one_row, use_buffers=True, mp_start_method="fork")
    check_batched(env)


@pytest.mark.parametrize("observation", ["array", "png"])
def test_the_specs_state_that_text_has_no_fixed_size(observation: str) -> None:
    """Read by collectors and batched environments; values are one string per row, without the variable dimension."""
    env = make(2, observation=observation)
    wrapped = TransformedEnv(env, InitTracker())
    for each in (env, wrapped):
        assert each._has_dynamic_specs
        check_env_specs(each, return_contiguous=True)
    text = env.observation_spec["instruction"]
    assert (text.shape, text.zero().shape, text.expand(3, 2, -1).rand().shape) == ((2, -1), (2,), (3, 2))
    td = wrapped.reset()
    assert wrapped.observation_spec.is_in(td)
    assert not text.is_in(td["group_id"])
    assert not text.is_in(td.get("instruction")[:1])
    assert env.rand_action()["action"] == EXAMPLE_ACTION


def test_misuse_is_refused() -> None:
    env = make(2)
    with pytest.raises(ValueError, match="tasks: expected one per row being reset, 2, got 1"):
        env.reset(tasks=["count-1"])
    with pytest.raises(TaskError, match="count-9"):
        env.reset(tasks=["count-1", "count-9"])
    with pytest.raises(ValueError, match="pixels"):
        make(1, observation="pixels")
    with pytest.raises(
        ValueError, match=r"unknown provider 'sym' \(did you mean 'sim'\?\); known: container, local, .*sim, vm"
    ):
        OSWorldEnv("sym")
    with pytest.raises(ValueError, match="step requires the key 'action', one response text per row"):
        env.step(env.reset())
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        step(make(1), make(1).reset(), CLICK)
    with pytest.raises(TypeError, match="'action' of row 1 must be a str, got int"):
        env.step(env.reset().set("action", NonTensorStack(CLICK, 3)))
    for size in (0, 2.5, "2", True, torch.tensor(2)):
        with pytest.raises(ValueError, match="group_size: expected an integer >= 1, got"):
            make(1, group_size=size)
    with pytest.raises(ValueError, match="num_envs: expected an integer >= 1, got '2'"):
        OSWorldEnv("sim", "2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"episode_retries: expected an integer >= 0.*, got 1\.5"):
        make(1, episode_retries=1.5)
    with pytest.raises(ValueError, match="seeds without tasks would split a group"):
        make(2, group_size=2).reset(seeds=[1, 2])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"tasks": [3, 4]}, TypeError, "tasks: expected a task's id or a Task for each row being reset, got 3"),
        ({"tasks": [None, None]}, TypeError, "got None"),
        ({"tasks": "count-2"}, TypeError, "tasks: expected a list of one per row being reset, got 'count-2'"),
        ({"seeds": 3}, TypeError, "seeds: expected a list of one per row being reset, got 3"),
        ({"seeds": [0, -1]}, ValueError, "seeds: expected an integer >= 0, got -1"),
        ({"seeds": [0, 1.0]}, TypeError, "seeds: expected an integer >= 0, got 1.0"),
        ({"seeds": ["0", 1]}, TypeError, "seeds: expected an integer >= 0, got '0'"),
    ],
)
def test_what_reset_cannot_use_is_refused(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    env = make(2)
    with pytest.raises(kind, match=message):
        env.reset(**arguments)
    assert not env.reset()["env_error"].any()


@pytest.mark.parametrize("seeds", [torch.tensor([3, 4]), np.array([3, 4])])
def test_seeds_of_tensors_and_arrays_reach_the_desktop_as_int(seeds: Any) -> None:
    """A provider may send its seed as JSON."""
    seen: list[int] = []

    class Recording(ScriptedDesktop):
        def reset(self, seed: int) -> None:
            seen.append(seed)
            super().reset(seed)

    OSWorldEnv(Recording, 2, suite=SUITE).reset(seeds=seeds)
    assert [(seed, type(seed)) for seed in seen] == [(3, int), (4, int)]


def test_seeds_and_retries_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="seed: expected an integer >= 0, got -1"):
        make(1, seed=-1)
    with pytest.raises(ValueError, match="seed: expected an integer >= 0, got -1"):
        make(1).set_seed(-1)
    with pytest.raises(ValueError, match="reset_retries: expected an integer >= 0"):
        make(1, reset_retries=-1)
    with pytest.raises(TypeError, match="must be EpisodeOptions"):
        make(1, options={"max_steps": 3})


@pytest.mark.parametrize("observation", ["array", "png"])
def test_results_are_on_the_device_that_the_environment_was_moved_to(observation: str) -> None:
    """As a collector does with ``device=``; its policy, on the same device, then gets them as they are.

    ``EnvBase.reset`` and ``step`` read whether rows are done, which the device "meta" does not know.
    """
    env = make(2, observation=observation).to("meta")
    start = env._reset()
    start["action"] = NonTensorStack(CLICK, CLICK)
    for td in (start, env._step(start)):
        tensors = [td[key] for key in td.keys(leaves_only=True)]
        assert len(tensors) >= 9
        assert {tensor.device.type for tensor in tensors} == {"meta"}
    check_env_specs(make(2, observation=observation).to("cpu"))


def test_an_environment_that_is_dropped_closes_its_desktops() -> None:
    closed = threading.Event()

    class Watched(BlockingDesktop):
        def close(self) -> None:
            super().close()
            closed.set()

    env = OSWorldEnv(Watched, 1, suite=SUITE)
    env.rollout(2)
    assert not closed.is_set()
    del env
    gc.collect()
    assert closed.wait(30)


def test_a_copy_is_refused_and_a_closed_environment_says_so() -> None:
    env = make(2)
    td = env.reset()
    with pytest.raises(TypeError, match="desktops cannot be copied or pickled; fix: give a worker the function"):
        copy.deepcopy(env)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(env.vector)
    env.close()
    for call in (lambda: step(env, td, CLICK, CLICK), env.reset):
        with pytest.raises(RuntimeError, match="closed: create a new environment"):
            call()


def test_a_stock_rollout_ends_when_every_row_is_done() -> None:
    env = make(2, options=EpisodeOptions(max_steps=3), observation="png")

    def policy(td: TensorDictBase) -> TensorDictBase:
        clicks = [int(instruction.split()[1]) for instruction in td["instruction"]]
        steps = td["step_count"].squeeze(-1).tolist()
        responses = [FINISHED if done >= want else CLICK for done, want in zip(steps, clicks, strict=True)]
        return td.set("action", NonTensorStack(*responses))

    rollout = env.rollout(10, policy, break_when_all_done=True)
    assert rollout["next", "done"][:, -1].all()
    lengths = [int(done.squeeze(-1).float().argmax()) + 1 for done in rollout["next", "done"]]
    wanted = [min(int(text.split()[1]) + 1, 3) for text in rollout[:, 0]["instruction"]]
    assert lengths == wanted
