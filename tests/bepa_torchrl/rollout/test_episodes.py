"""run_episodes: every job once, only waiting episodes are sampled, failures are retried and never scored."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.testing import DONE, PRESS, LampDesktop, ScriptedPolicy, lamp_task, lamp_vector
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import FailureReason, TaskError
from osworld_gym.testing.scripted_desktop import ScriptedDesktop, count_task
from osworld_gym.types import StopReason
from osworld_gym.vector import DesktopVector


def jobs_of(count: int, *, group: int = 4, plan: str | None = None) -> list[EpisodeJob]:
    return [
        EpisodeJob(lamp_task(i // group), (0, 0, i // group, i % group), 7 + i // group, i // group, i % group, plan)
        for i in range(count)
    ]


def test_results_come_in_job_order_with_the_outcome_of_their_job() -> None:
    policy = ScriptedPolicy(lambda key: key[3] == 1)
    with lamp_vector(3) as vector:
        results = run_episodes(policy, vector, jobs_of(8))
    assert [r.job.slot for r in results] == [0, 1, 2, 3] * 2
    assert [r.success for r in results] == [False, True, False, False] * 2
    assert all(r.stop is StopReason.finished and r.failure is None for r in results)
    assert [r.rows.shape[0] for r in results] == [1, 2, 1, 1] * 2


def test_policy_sees_active_episodes_only() -> None:
    """Four desktops, slots 1..3 end after one response: the second call has only the remaining episode."""
    policy = ScriptedPolicy(lambda key: key[3] == 0)
    with lamp_vector(4) as vector:
        run_episodes(policy, vector, jobs_of(4))
    assert policy.batches == [4, 1]
    assert policy.seed_keys == [(0, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (0, 0, 0, 3, 0), (0, 0, 0, 0, 1)]


def test_free_desktop_gets_the_next_job_at_once() -> None:
    """Two desktops, eight one-response episodes: never a call with one row only."""
    policy = ScriptedPolicy(lambda _: False)
    with lamp_vector(2) as vector:
        run_episodes(policy, vector, jobs_of(8))
    assert policy.batches == [2, 2, 2, 2]


def test_desktops_can_be_used_again_after_an_error() -> None:
    """The first task is wrong: the results of the other desktops are there, and nobody has received them."""
    jobs = [replace(job, task=count_task(0)) for job in jobs_of(4)]
    wrong = replace(jobs[0], task=count_task(0, config=[{"type": "unknown"}]))
    policy = ScriptedPolicy(lambda _: False)
    with DesktopVector(ScriptedDesktop, 3) as vector:
        with pytest.raises(TaskError, match="unknown setup step"):
            run_episodes(policy, vector, [wrong, *jobs])
        assert [result.stop for result in run_episodes(policy, vector, jobs)] == [StopReason.finished] * 4


def test_rows_hold_what_the_keys_promise() -> None:
    policy = ScriptedPolicy(lambda _: True)
    policy.version = 3
    with lamp_vector(1) as vector:
        (result,) = run_episodes(policy, vector, jobs_of(1))
    first, second = row_list(result.rows)
    assert (first[K.TASK_ID], first[K.INSTRUCTION], first[K.SOURCE]) == ("lamp-0", "Switch on lamp 0", "on_policy")
    assert (first[K.RESPONSE], second[K.RESPONSE]) == (PRESS, DONE)
    assert first[K.IMAGES] == (first[K.SCREENSHOT],)
    assert first[K.SCREENSHOT] != second[K.SCREENSHOT]
    assert (first[K.STOP_REASON], int(first[K.POLICY_VERSION]), int(first[K.N_STEPS])) == ("finished", 3, 2)
    assert first[K.RETURN].tolist() == [1.0]
    assert first[K.RETURN].shape == (1,)
    assert first[K.OFF_POLICY].tolist() == [False]
    assert [int(r[K.STEP]) for r in (first, second)] == [0, 1]
    assert first[K.PROMPT_TOKENS].tolist() == list(b"Switch on lamp 0")
    assert second[K.PROMPT_TOKENS].tolist() == list(b"Switch on lamp 0" + PRESS.encode())
    torch.testing.assert_close(first[K.OLD_LOG_PROB], first[K.ROLLOUT_LOG_PROB])


def test_planned_rows_are_self_rolled_and_their_old_log_probs_unknown() -> None:
    policy = ScriptedPolicy(lambda _: True)
    with lamp_vector(1) as vector:
        (result,) = run_episodes(policy, vector, jobs_of(1, plan="1. Press it."))
    row = row_list(result.rows)[0]
    assert row[K.SOURCE] == "self_rolled"
    assert row[K.INSTRUCTION] == "Switch on lamp 0"
    assert bytes(row[K.PROMPT_TOKENS].tolist()) == b"Switch on lamp 0\n\n1. Press it."
    assert torch.isnan(row[K.OLD_LOG_PROB]).all()
    assert not torch.isnan(row[K.ROLLOUT_LOG_PROB]).any()


def test_failed_desktop_is_replaced_and_the_episode_restarted_with_its_seed() -> None:
    seeds: list[int] = []
    clicks = itertools.count()

    class Watched(LampDesktop):
        def reset(self, seed: int) -> None:
            seeds.append(seed)
            super().reset(seed)

    policy = ScriptedPolicy(lambda _: True)
    with DesktopVector(lambda: Watched(lambda: next(clicks) == 0), 1, EpisodeOptions()) as vector:
        (result,) = run_episodes(policy, vector, jobs_of(1))
    assert result.success
    assert (result.retries, result.failure) == (1, None)
    assert seeds == [7, 7]
    assert policy.seed_keys == [(0, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1)]


def test_permanent_failure_is_recorded_and_affects_no_other_episode() -> None:
    jobs = [EpisodeJob(lamp_task(0, infected=True), (0, 0, 0, 0), 1), EpisodeJob(lamp_task(1), (0, 0, 1, 0), 1)]
    with lamp_vector(2) as vector:
        broken, fine = run_episodes(ScriptedPolicy(lambda _: True), vector, jobs, retries=1)
    assert (broken.rows, broken.verdict, broken.stop) == (None, None, StopReason.env_error)
    assert (broken.failure, broken.retries) == (FailureReason.setup_failed, 1)
    assert broken.failures == (FailureReason.setup_failed,) * 2
    assert fine.success
    assert (fine.retries, fine.failures) == (0, ())


@pytest.mark.parametrize(("max_prompt_bytes", "steps"), [(20, 1), (5, 0)])
def test_prompt_that_does_not_fit_ends_the_episode_verified(max_prompt_bytes: int, steps: int) -> None:
    """The instruction has 16 bytes: with at most 20 the second prompt is too long, with 5 the first."""
    with lamp_vector(1) as vector:
        (result,) = run_episodes(ScriptedPolicy(lambda _: True, max_prompt_bytes=max_prompt_bytes), vector, jobs_of(1))
    assert result.stop is StopReason.context_full
    assert result.success == (steps == 1)
    assert (0 if result.rows is None else result.rows.shape[0]) == steps


def test_step_limit_is_verified() -> None:
    with lamp_vector(1, max_steps=2) as vector:
        (result,) = run_episodes(ScriptedPolicy(lambda _: True, detour=lambda _: 9), vector, jobs_of(1))
    assert (result.stop, result.success) == (StopReason.max_steps, True)
