"""Every way in which an episode ends, and its reward."""

from __future__ import annotations

import pytest

from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import FailureReason, TaskError
from osworld_gym.tasks.task import Task
from osworld_gym.testing import CALL_USER, CLICK, FINISHED, NONSENSE, WAIT, Fault, ScriptedDesktop, count_task
from osworld_gym.types import StopReason
from osworld_gym.uitars.coords import ImageScaling

INFEASIBLE = Task("impossible", "Fly.", evaluator={"func": "infeasible"})
SEVEN = {"type": "count", "parameters": {"count": 7}}


def begun(task: Task, *faults: Fault, **options: int) -> tuple[Episode, ScriptedDesktop]:
    desktop = ScriptedDesktop(*faults)
    episode = Episode(desktop, EpisodeOptions(**options))
    assert episode.begin(task, seed=3).stop is None
    return episode, desktop


def test_finished_is_verified_on_the_final_state() -> None:
    episode, _ = begun(count_task(2))
    first = episode.act(CLICK)
    assert (first.stop, first.verdict, first.reward) == (None, None, 0.0)
    assert first.screenshot.pixels[0, 0, 0] == 255
    assert first.screenshot.pixels[0, 1, 0] == 3
    episode.act(CLICK)
    last = episode.act(FINISHED)
    assert last.stop is StopReason.finished
    assert last.verdict is not None
    assert last.verdict.success
    assert last.reward == 1.0


def test_finished_too_early_is_worth_nothing() -> None:
    episode, _ = begun(count_task(2))
    episode.act(CLICK)
    last = episode.act(FINISHED)
    assert last.verdict is not None
    assert last.verdict.score == 0.0


def test_setup_runs_before_the_first_frame() -> None:
    desktop = ScriptedDesktop()
    result = Episode(desktop, EpisodeOptions()).begin(count_task(7, config=[SEVEN]), seed=3)
    assert (result.screenshot.pixels[0, :8, 0] == 255).sum() == 7


def test_one_response_is_one_step_and_actions_before_finished_are_performed() -> None:
    episode, desktop = begun(count_task(2), max_steps=5)
    last = episode.act("Thought: all\nAction: click(start_box='(3,4)')\n\nclick(start_box='(3,4)')\n\nfinished()")
    assert last.stop is StopReason.finished
    assert last.reward == 1.0
    assert desktop.log == ["click", "click"]
    assert [action.kind for action in last.actions] == ["click", "click", "finished"]


def test_actions_after_finished_are_dropped() -> None:
    episode, desktop = begun(count_task(1))
    last = episode.act("Action: click(start_box='(3,4)')\n\nfinished()\n\nclick(start_box='(3,4)')")
    assert last.reward == 1.0
    assert desktop.log == ["click"]


def test_max_steps_is_verified() -> None:
    episode, _ = begun(count_task(2), max_steps=2)
    assert episode.act(CLICK).stop is None
    last = episode.act(CLICK)
    assert last.stop is StopReason.max_steps
    assert last.reward == 1.0


def test_max_steps_is_no_success_on_an_infeasible_task() -> None:
    episode, _ = begun(INFEASIBLE, max_steps=1)
    assert episode.act(WAIT).reward == 0.0


@pytest.mark.parametrize(("task", "reward"), [(count_task(0), 0.0), (INFEASIBLE, 1.0)])
def test_call_user_ends_at_the_third_call_as_fail(task: Task, reward: float) -> None:
    episode, _ = begun(task)
    assert episode.act(CALL_USER).stop is None
    assert episode.act(CLICK).stop is None  # calls are counted over the episode, not in a row
    assert episode.act(CALL_USER).stop is None
    last = episode.act(CALL_USER)
    assert last.stop is StopReason.call_user
    assert last.reward == reward


def test_call_user_counts_from_zero_in_the_next_episode() -> None:
    episode, _ = begun(INFEASIBLE, call_user_tolerance=2)
    episode.act(CALL_USER)
    episode.begin(INFEASIBLE, seed=4)
    assert episode.act(CALL_USER).stop is None
    assert episode.act(CALL_USER).stop is StopReason.call_user


def test_three_unparsable_responses_in_a_row_end_it_and_do_nothing() -> None:
    episode, desktop = begun(count_task(1))
    assert episode.act(NONSENSE).parse_error
    assert episode.act(NONSENSE).stop is None
    assert episode.act(CLICK).stop is None  # restarts the streak
    assert episode.act(NONSENSE).stop is None
    assert episode.act(NONSENSE).stop is None
    last = episode.act(NONSENSE)
    assert last.stop is StopReason.parse_error
    assert last.actions == ()
    assert last.reward == 1.0  # the final state is verified: one click
    assert desktop.log == ["click"]


def test_unparsable_responses_are_steps() -> None:
    episode, _ = begun(count_task(1), max_steps=2)
    episode.act(NONSENSE)
    assert episode.act(NONSENSE).stop is StopReason.max_steps


def test_context_full_is_verified_without_a_step() -> None:
    episode, desktop = begun(count_task(1))
    episode.act(CLICK)
    last = episode.end(StopReason.context_full)
    assert (last.stop, last.reward) == (StopReason.context_full, 1.0)
    assert desktop.log == ["click"]


def test_coordinates_reach_the_desktop_in_screen_pixels() -> None:
    desktop = ScriptedDesktop()
    scaling = ImageScaling(factor=28, min_pixels=56 * 56, max_pixels=112 * 112)
    width, height = scaling.model_size((48, 32))
    episode = Episode(desktop, EpisodeOptions(scaling=scaling))
    episode.begin(count_task(1), seed=0)
    result = episode.act(f"Action: click(start_box='({width // 2},{height // 2})')")
    assert desktop.performed[0].start == pytest.approx((24, 16), abs=1)
    assert result.actions[0] == desktop.performed[0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("reset", 1, "never_ready"), FailureReason.never_ready),
        (Fault("setup", 1, "setup_failed"), FailureReason.setup_failed),
        (Fault("screenshot", 1, "torn"), FailureReason.bad_screenshot),
        (Fault("screenshot", 1, "small"), FailureReason.bad_screenshot),
    ],
)
def test_a_failed_begin_hands_out_nothing(fault: Fault, reason: FailureReason) -> None:
    desktop = ScriptedDesktop(fault)
    episode = Episode(desktop, EpisodeOptions())
    result = episode.begin(count_task(7, config=[SEVEN]), seed=3)
    assert (result.stop, result.failure, result.verdict) == (StopReason.env_error, reason, None)
    assert result.screenshot.size == (48, 32)
    with pytest.raises(RuntimeError, match="begin"):
        episode.act(CLICK)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("perform", 2, "died"), FailureReason.died),
        (Fault("screenshot", 3, "torn"), FailureReason.bad_screenshot),
    ],
)
def test_a_desktop_that_fails_in_a_step_is_no_failure_of_the_policy(fault: Fault, reason: FailureReason) -> None:
    episode, _ = begun(count_task(2), fault)
    good = episode.act(CLICK)
    last = episode.act(CLICK)
    assert (last.stop, last.failure, last.verdict) == (StopReason.env_error, reason, None)
    assert last.screenshot is good.screenshot
    assert "failure" in last.info


def test_a_desktop_that_fails_under_the_verifier_is_masked() -> None:
    episode, _ = begun(count_task(0), Fault("read_file", 1, "died"))
    last = episode.act(FINISHED)
    assert (last.stop, last.failure, last.verdict) == (StopReason.env_error, FailureReason.died, None)


def test_a_verifier_that_raises_is_evaluator_failed() -> None:
    episode, _ = begun(count_task(0), Fault("read_file", 1, "bug"))
    last = episode.act(FINISHED)
    assert (last.stop, last.failure) == (StopReason.env_error, FailureReason.evaluator_failed)


def test_a_wrong_task_is_the_callers_error() -> None:
    episode = Episode(ScriptedDesktop(), EpisodeOptions())
    with pytest.raises(TaskError, match="teleport"):
        episode.begin(count_task(1, config=[{"type": "teleport"}]), seed=0)
    episode.begin(Task("bad", "?", evaluator={"func": "no_such_metric", "result": {"type": "rule"}}), seed=0)
    with pytest.raises(TaskError, match="no_such_metric"):
        episode.act(FINISHED)
    with pytest.raises(RuntimeError):
        episode.act(FINISHED)


def test_misuse_is_refused() -> None:
    episode = Episode(ScriptedDesktop(), EpisodeOptions())
    with pytest.raises(RuntimeError):
        episode.act(CLICK)
    episode.begin(count_task(1), seed=0)
    with pytest.raises(ValueError, match="env_error"):
        episode.end(StopReason.env_error)
    with pytest.raises(ValueError, match="max_steps"):
        EpisodeOptions(max_steps=0)
