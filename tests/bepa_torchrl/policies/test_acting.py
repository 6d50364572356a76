"""policy.forward in a stock rollout: prompts, tokens and log-probs equal those of run_episodes."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torchrl.envs import SerialEnv

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.policies.actor_module import EpisodeHistories
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.group_rows import GroupRows
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.assignment import GroupedTasks
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.vector import DesktopVector

OPTIONS = EpisodeOptions(max_steps=3, parse_errors=3)


def make_policy() -> TransformersPolicy:
    options = {"preset": "table", "history": "last_k", "history_images": 2, "max_new_tokens": 6, "seed": 4}
    return TransformersPolicy(small_checkpoint(spread=0.1), **options)


def frame(step: int, text: str = "mute") -> TensorDict:
    """One row of an environment that counts its steps."""
    return TensorDict(
        {
            "instruction": NonTensorStack(text),
            "screenshot_png": NonTensorStack(picture(step)),
            "step_count": torch.tensor([[step]]),
        },
        [1],
    )


def test_a_stock_rollout_is_the_trained_policys_behaviour() -> None:
    """Three steps of two episodes: later prompts hold earlier responses and screenshots."""
    env = OSWorldEnv("sim", 2, split="train", group_size=2, observation="png", options=OPTIONS)
    batch = env.rollout(3, make_policy(), break_when_any_done=False)
    found = row_list(GroupRows(2)(batch))
    env.close()
    assigner = GroupedTasks(sim_suite().split("train"), 0, 2, 2)
    given = [assigner.next(0) for _ in range(2)]
    jobs = [EpisodeJob(a.task, (4, a.group_id, a.slot), a.seed, a.group_id, a.slot) for a in given]
    with DesktopVector(SimDesktop, 2, OPTIONS) as vector:
        results = run_episodes(make_policy(), vector, jobs)
    expected = [row for result in results for row in row_list(result.rows)]
    assert len(found) == len(expected) == 6
    assert [len(row[K.IMAGES]) for row in found] == [1, 2, 2] * 2
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[K.PROMPT_TOKENS].tolist() == theirs[K.PROMPT_TOKENS].tolist()
        assert ours[K.RESPONSE_TOKENS].tolist() == theirs[K.RESPONSE_TOKENS].tolist()
        assert (ours[K.IMAGES], ours[K.RESPONSE]) == (theirs[K.IMAGES], theirs[K.RESPONSE])
        torch.testing.assert_close(ours[K.ROLLOUT_LOG_PROB], theirs[K.ROLLOUT_LOG_PROB], atol=1e-4, rtol=0)


def test_history_starts_over_with_an_episode() -> None:
    policy = make_policy()
    for step in range(2):
        td = policy(frame(step))
    assert len(td[K.IMAGES][0]) == 2
    assert len(policy(frame(0))[K.IMAGES][0]) == 1
    again = frame(1).set("is_init", torch.tensor([[True]])).exclude("step_count")
    assert len(policy(again)[K.IMAGES][0]) == 1


def test_a_finished_row_is_not_sampled() -> None:
    td = make_policy()(frame(0).set("done", torch.tensor([[True]])))
    assert list(td["action"]) == [""]
    assert td[K.RESPONSE_TOKENS][0].shape == (0,)


def test_steps_that_the_policy_has_not_seen_are_refused() -> None:
    policy = make_policy()
    with pytest.raises(RuntimeError, match="is at step 2, but this policy has seen 0 of its steps"):
        policy(frame(2))
    with pytest.raises(ValueError, match=r"requires the key 'is_init' or 'step_count', got neither"):
        policy(frame(0).exclude("step_count"))


@pytest.mark.parametrize("group_size", [1, 2])
def test_workers_with_one_seed_are_named_as_the_cause(group_size: int) -> None:
    """SerialEnv without set_seed: both workers run the same episode, so that their histories would mix."""

    def one_row() -> OSWorldEnv:
        return OSWorldEnv("sim", 1, group_size=group_size, observation="png", options=OPTIONS)

    env, policy = SerialEnv(2, one_row), make_policy()
    with pytest.raises(ValueError, match=r"group_id 0 and slot 0 in rows 0 and 1: .* same seed; call set_seed"):
        env.rollout(2, policy)
    env.set_seed(0)
    assert env.rollout(2, policy, break_when_any_done=False).shape == (2, 1, 2)
    env.close()


def test_histories_are_bounded() -> None:
    histories = EpisodeHistories(least=4)
    for episode in range(20):
        histories.make_room(0)
        histories.observe(episode, b"", first=True, step=0)
    assert len(histories) == 5
    histories.make_room(4)  # eight times the batch: nothing is dropped
    assert len(histories) == 5
