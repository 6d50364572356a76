"""A desktop exit scores 0 if it repeats at the same step with the same actions; every other exit is masked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.success_rate import evaluate
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan, FinishedEvaluation, episode_outcome
from bepa_torchrl.scale.rollouts.task_queue import FinishedGroup
from bepa_torchrl.testing import DONE, PRESS, LampDesktop, ScriptedPolicy, lamp_task
from osworld_gym.episode import Crash, CrashRecord, EpisodeOptions, blank, crash_of, failed
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Action, StopReason
from osworld_gym.vector import DesktopVector

CLICK = Action("click", start=(4.0, 4.0))


class Fragile(LampDesktop):
    """Exits at the clicks in ``plan``, counted over all desktops of the test, with the reason there."""

    def __init__(self, plan: dict[int, FailureReason], clicks: Callable[[], int]) -> None:
        super().__init__()
        self.plan, self.clicks = plan, clicks

    def perform(self, actions: Sequence[Action]) -> None:
        reason = self.plan.get(self.clicks()) if any(action.kind == "click" for action in actions) else None
        if reason is not None:
            raise DesktopError(reason, "as planned")
        super().perform(actions)


def play(plan: dict[int, FailureReason], *, retries: int = 2, presses: int = 1) -> EpisodeResult:
    """Runs one episode that presses ``presses`` times and then finishes."""
    counter = itertools.count()
    clicks = lambda: next(counter)  # noqa: E731
    policy = ScriptedPolicy(lambda _: True, detour=lambda _: presses - 1)
    with DesktopVector(lambda: Fragile(plan, clicks), 1, EpisodeOptions()) as vector:
        (result,) = run_episodes(policy, vector, [EpisodeJob(lamp_task(0), (0, 0, 0, 0), 7)], retries=retries)
    return result


@pytest.mark.parametrize("reason", [FailureReason.died, FailureReason.bad_screenshot])
def test_twice_at_the_same_step_with_the_same_actions_is_the_policys(reason: FailureReason) -> None:
    result = play({0: reason, 1: reason})
    assert (result.stop, result.success, result.retries) == (StopReason.crashed_desktop, False, 1)
    assert result.failure is reason
    assert result.verdict is not None
    assert result.verdict.score == 0.0
    assert "exited twice at step 0 with the same actions" in result.verdict.problem
    (row,) = row_list(result.rows)
    assert (row[K.RESPONSE], row[K.STOP_REASON], float(row[K.RETURN])) == (PRESS, "crashed_desktop", 0.0)


def test_once_is_the_infrastructures() -> None:
    result = play({0: FailureReason.died})
    assert (result.stop, result.success, result.retries) == (StopReason.finished, True, 1)


def test_without_a_twin_it_is_masked() -> None:
    result = play({0: FailureReason.died}, retries=0)
    assert (result.stop, result.verdict, result.rows) == (StopReason.env_error, None, None)


def test_at_different_steps_it_is_the_infrastructures() -> None:
    """Click 0 of the first attempt, then clicks 1, 2 of the second: its second step."""
    result = play({0: FailureReason.died, 2: FailureReason.died}, presses=2)
    assert (result.stop, result.success, result.retries) == (StopReason.finished, True, 2)
    masked = play({0: FailureReason.died, 2: FailureReason.died}, presses=2, retries=1)
    assert (masked.stop, masked.verdict) == (StopReason.env_error, None)


def test_an_attempt_between_that_failed_otherwise_does_not_hide_it() -> None:
    result = play({0: FailureReason.died, 1: FailureReason.hung, 2: FailureReason.died})
    assert (result.stop, result.retries) == (StopReason.crashed_desktop, 2)


@pytest.mark.parametrize("reason", [FailureReason.hung, FailureReason.never_ready, FailureReason.evaluator_failed])
def test_other_failures_are_masked_however_often_they_come(reason: FailureReason) -> None:
    result = play(dict.fromkeys(range(9), reason))
    assert (result.stop, result.verdict, result.failure) == (StopReason.env_error, None, reason)


def test_what_a_crash_is() -> None:
    exited = failed(blank((8, 8)), DesktopError(FailureReason.died, "gone"))
    assert crash_of(exited, 1, PRESS) == Crash(1, (CLICK,))
    assert crash_of(exited, -1, None) is None  # during the reset
    assert crash_of(exited, 0, "no action") is None
    assert crash_of(exited, 1, DONE) is None  # during the verification
    code = "## Action:\nPress.\n```python\npyautogui.click(x=0, y=0)\n```"
    assert crash_of(exited, 0, code) is None
    found = crash_of(exited, 0, code, "opencua")
    assert found is not None
    assert [action.kind for action in found.actions] == ["click"]


def test_a_record_compares_the_attempts_of_one_episode() -> None:
    record, exited = CrashRecord(), failed(blank((8, 8)), DesktopError(FailureReason.died, "gone"))
    assert record.score("a", exited, 0, PRESS) is exited
    assert record.score("b", exited, 0, PRESS) is exited  # another episode
    assert record.score("a", exited, 1, PRESS) is exited  # another step
    record.forget("b")
    assert record.score("b", exited, 0, PRESS) is exited
    again = record.score("a", exited, 0, PRESS)
    assert (again.stop, again.reward, again.failure) == (StopReason.crashed_desktop, 0.0, FailureReason.died)


def test_an_exit_while_a_full_context_is_verified_is_masked() -> None:
    """The first prompt fits, the second does not; the desktop exits when the result is read, in both attempts."""

    class ExitsWhenRead(LampDesktop):
        def read_file(self, path: str) -> bytes:
            raise DesktopError(FailureReason.died, f"as planned, at {path}")

    policy = ScriptedPolicy(lambda _: True, max_prompt_bytes=20)
    with DesktopVector(ExitsWhenRead, 1, EpisodeOptions()) as vector:
        (result,) = run_episodes(policy, vector, [EpisodeJob(lamp_task(0), (0, 0, 0, 0), 7)], retries=1)
    assert (result.stop, result.verdict, result.retries) == (StopReason.env_error, None, 1)


def test_an_evaluation_counts_a_crash_as_a_failure_and_leaves_out_what_was_masked() -> None:
    """Desktops exit at clicks 0 and 1, the two attempts of the first of three episodes: one success of two, not of one.

    The third episode's desktop is never ready.
    """
    died, never = FailureReason.died, FailureReason.never_ready
    counter = itertools.count()
    clicks = lambda: next(counter)  # noqa: E731
    plan, policy = {0: died, 1: died, 3: never, 4: never}, ScriptedPolicy(lambda _: True)
    results: list[EpisodeResult] = []
    with DesktopVector(lambda: Fragile(plan, clicks), 1, EpisodeOptions()) as vector:
        counted = evaluate(policy, vector, [lamp_task(0)], episodes=3, retries=1, keep=results.extend)
    assert [result.stop.value for result in results] == ["crashed_desktop", "finished", "env_error"]
    assert counted.counts == {"lamp-0": (1, 2)}
    outcomes = tuple(episode_outcome(result, [0]) for result in results)
    group = FinishedGroup(0, [2, 0], 3, outcomes, {}, 0, {})
    finished = FinishedEvaluation.of(EvaluationPlan((lamp_task(0),), 3, 0, 1.0), group)
    assert finished.counts.counts == {"lamp-0": (1, 2)}
    assert (finished.metrics()["episodes"], finished.metrics()["failures"]) == (3.0, 1.0)
