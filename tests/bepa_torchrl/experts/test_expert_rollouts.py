"""Recording oracles, rows from traces, self-rollouts with plans, on the lamp and the simulated desktop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from expert_fixtures import sound_trace

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experts import (
    ExpertTrace,
    Manifest,
    TraceError,
    check_disjoint,
    convert,
    expert_only,
    load_trace,
    plan_free_rows,
    plan_from_trace,
    record_expert,
    save_trace,
    self_roll,
    split_pool,
    task_hashes,
    trace_rows,
)
from bepa_torchrl.experts.attempts import table
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.testing import DONE, PRESS, LampDesktop, ScriptedPolicy, lamp_task, lamp_vector
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import FailureReason, TaskError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.types import Action, PromptContext, StopReason, Verdict
from osworld_gym.vector import DesktopVector


class LampOracle:
    """Presses until the lamp is on; with ``presses`` 0 finishes at once."""

    def __init__(self, presses: int = 1) -> None:
        self.presses = presses

    def next_step(self, desktop: Desktop) -> ExpertStep | None:
        assert desktop.screen_size == (8, 8)
        if self.presses == 0:
            return None
        self.presses -= 1
        code = "pyautogui.click(4, 4, clicks=1, button='left')"
        action = Action("click", start=(4.0, 4.0))
        return ExpertStep(
            "Light", "The lamp is off. Press it.", None, "agent.click('lamp')", code, "Press it", (action,)
        )


class Policy(ScriptedPolicy):
    """Solves the task with certain plans in its prompt; otherwise finishes at once."""

    def __init__(self, likes: str = "Press", *, max_prompt_bytes: int = 10_000, words: str = "press the lamp") -> None:
        super().__init__(lambda _: False, max_prompt_bytes=max_prompt_bytes)
        self.likes, self.words = likes, words

    def encode_response(self, text: str) -> torch.Tensor:
        return torch.tensor([*text.encode(), 0], dtype=torch.int64)

    def sample(self, prompts, keys, *, temperature: float = 1.0):
        responses = super().sample(prompts, keys, temperature=temperature)
        follow = [self.likes in bytes(prompt.tokens.tolist()).decode() for prompt in prompts]
        press = PRESS.replace("press the lamp", self.words)
        return [
            replace(response, text=press if follow[i] and keys[i][-1] == 0 else DONE)
            for i, response in enumerate(responses)
        ]


def lamp_trace(number: int, expert: str = "lamp_expert", *, presses: int = 1) -> ExpertTrace:
    with LampDesktop() as desktop:
        return record_expert(desktop, lamp_task(number), 3, oracle=LampOracle(presses), name=expert)


def test_recording_verifies_and_keeps_every_screen() -> None:
    trace = lamp_trace(1)
    assert (trace.success, trace.env_seed, trace.expert, len(trace.steps)) == (True, 3, "lamp_expert", 1)
    assert trace.screenshots[0] != trace.final_screenshot
    assert trace.screen_size == (8, 8)
    assert not lamp_trace(1, presses=0).success
    with LampDesktop() as desktop, pytest.raises(TaskError, match="no oracle"):
        record_expert(desktop, lamp_task(1), 3)
    assert len(lamp_trace(1, presses=99).steps) == 50


def test_a_converted_recording_replays_to_success() -> None:
    """Record, save, load, convert: the responses solve the task when a policy replays them."""
    pairs = convert(lamp_trace(1))
    with lamp_vector(1) as vector:
        (result,) = run_episodes(Replay([text for _, text in pairs]), vector, [EpisodeJob(lamp_task(1), (0,), 3)])
    assert result.success
    assert [row[K.RESPONSE] for row in row_list(result.rows)] == [text for _, text in pairs]


class Replay(Policy):
    """Returns the given responses in order."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self.texts = texts

    def sample(self, prompts, keys, *, temperature: float = 1.0):
        responses = ScriptedPolicy.sample(self, prompts, keys, temperature=temperature)
        return [replace(response, text=self.texts[key[-1]]) for response, key in zip(responses, keys, strict=True)]


def test_rows_of_a_converted_trace() -> None:
    policy, trace = Policy(), sound_trace()
    pairs = convert(trace)
    rows = row_list(trace_rows(policy, trace.task_id, trace.instruction, pairs, group_id=2, slot=3))
    assert len(rows) == len(pairs) == 6
    for t, (row, (png, text)) in enumerate(zip(rows, pairs, strict=True)):
        assert (row[K.SCREENSHOT], row[K.RESPONSE], row[K.SOURCE]) == (png, text, "converted")
        assert (int(row[K.STEP]), int(row[K.N_STEPS]), int(row[K.GROUP_ID]), int(row[K.SLOT])) == (t, 6, 2, 3)
        assert row[K.RESPONSE_TOKENS].tolist() == [*text.encode(), 0]
        assert torch.isnan(row[K.OLD_LOG_PROB]).all()
        assert torch.isnan(row[K.ROLLOUT_LOG_PROB]).all()
        assert row[K.OLD_LOG_PROB].shape == row[K.RESPONSE_TOKENS].shape
        assert row[K.STOP_REASON] == StopReason.finished.value
        assert float(row[K.RETURN]) == 1.0
    assert bytes(rows[1][K.PROMPT_TOKENS].tolist()).decode() == trace.instruction + pairs[0][1]
    assert all(isinstance(context, PromptContext) and context.plan is None for context in policy.rendered)


def test_a_self_rollout_that_crashed_its_desktop_is_an_attempt_and_not_lost() -> None:
    def play(_policy, _vector, jobs, **_options):
        crashed = EpisodeResult(jobs[0], None, StopReason.crashed_desktop, Verdict(0.0), FailureReason.died, steps=4)
        return [crashed, EpisodeResult(jobs[1], None, StopReason.env_error, None, FailureReason.died)]

    with lamp_vector(1) as vector:
        tasks = [lamp_task(1), lamp_task(2)]
        rolled = self_roll(Policy(), vector, [lamp_trace(1), lamp_trace(2)], tasks, plan=lambda _: "1. Look", play=play)
    assert (rolled.episodes, rolled.failures) == (1, 1)
    # tasks, tries, successes, kept, lost, mean steps
    assert list(table(rolled, 2))[1].split() == ["lamp_expert", "2", "2", "0", "0", "1", "4.0"]


def test_a_trace_that_does_not_fit_or_is_empty_is_refused() -> None:
    pairs = convert(sound_trace())
    with pytest.raises(TraceError, match="prompt of step 1 does not fit"):
        trace_rows(Policy(max_prompt_bytes=40), "t", "short", pairs)
    with pytest.raises(TraceError, match="no response"):
        trace_rows(Policy(), "t", "i", [])


def test_self_rolls_are_plan_free_and_keep_the_sampled_tokens() -> None:
    policy = Policy("2. Press it")
    policy.version = 4
    plans = {"lamp-1": "1. Look\n2. Press it", "lamp-2": "1. Look"}
    tasks = [lamp_task(i) for i in range(4)]
    traces = [lamp_trace(1), lamp_trace(2), lamp_trace(3, presses=0), lamp_trace(9)]
    with lamp_vector(2) as vector:
        rolled = self_roll(policy, vector, traces, tasks, plan=lambda trace: plans[trace.task_id])
    assert list(rolled.entries) == ["lamp-1"]  # 2: its plan does not help; 3: the expert failed; 9: not a task here
    assert (rolled.episodes, rolled.failures, rolled.leaking) == (2, 0, 0)
    entry = rolled.entries["lamp-1"]
    rows = row_list(entry.rows)
    assert [row[K.SOURCE] for row in rows] == ["self_rolled"] * 2
    prompts = [bytes(row[K.PROMPT_TOKENS].tolist()).decode() for row in rows]
    assert prompts == ["Switch on lamp 1", "Switch on lamp 1" + PRESS]
    assert all(torch.isnan(row[K.OLD_LOG_PROB]).all() for row in rows)
    assert all((row[K.ROLLOUT_LOG_PROB] == -0.5).all() for row in rows)
    assert [len(row[K.RESPONSE_TOKENS]) for row in rows] == [7, 7]
    assert int(rows[0][K.POLICY_VERSION]) == 4
    asked = [context for context in policy.rendered if context.plan is not None]
    assert {context.plan for context in asked} == set(plans.values())


def test_hybrid_takes_the_first_expert_whose_self_roll_succeeded() -> None:
    traces = [lamp_trace(0, "s2"), lamp_trace(1, "s2"), lamp_trace(0, "owl"), lamp_trace(1, "owl")]
    helps = {("lamp-0", "s2"), ("lamp-0", "owl"), ("lamp-1", "owl")}
    with lamp_vector(2) as vector:
        rolled = self_roll(
            Policy("Press"),
            vector,
            traces,
            [lamp_task(0), lamp_task(1)],
            tries=2,
            plan=lambda t: "1. Press" if (t.task_id, t.expert) in helps else "1. Look",
        )
    assert {task: entry.expert for task, entry in rolled.entries.items()} == {"lamp-0": "s2", "lamp-1": "owl"}
    assert rolled.episodes == 4  # one by s2 for lamp-0; two by s2 for lamp-1, then one by owl


@pytest.mark.parametrize(("budget", "solved", "episodes"), [(1, 1, 1), (3, 2, 3), (9, 2, 9)])
def test_a_budget_is_spent_on_open_tasks(budget: int, solved: int, episodes: int) -> None:
    """Tasks 0 and 1 succeed at the first attempt, 2 and 3 never."""
    traces, tasks = [lamp_trace(i) for i in range(4)], [lamp_task(i) for i in range(4)]
    with lamp_vector(2) as vector:
        rolled = self_roll(
            Policy("Press"),
            vector,
            traces,
            tasks,
            budget=budget,
            plan=lambda t: "1. Press" if t.task_id in ("lamp-0", "lamp-1") else "1. Look",
        )
    assert (len(rolled.entries), rolled.episodes) == (solved, episodes)


def test_leaks_are_counted_and_can_be_refused() -> None:
    policy = Policy(words="according to the plan I press")
    arguments = ([lamp_trace(0)], [lamp_task(0)])
    with lamp_vector(1) as vector:
        kept = self_roll(policy, vector, *arguments)
        refused = self_roll(policy, vector, *arguments, max_leak=0.4)
    assert (kept.entries["lamp-0"].leak, kept.leak_rate, kept.leaking) == (0.5, 0.5, 0)  # one of two thoughts
    assert (dict(refused.entries), refused.leaking, refused.leak_rate) == ({}, 1, 0.5)
    with pytest.raises(ValueError, match="tries must be at least 1"), lamp_vector(1) as vector:
        self_roll(policy, vector, *arguments, tries=0)
    with pytest.raises(ValueError, match="budget must be at least 1"), lamp_vector(1) as vector:
        self_roll(policy, vector, *arguments, budget=0)


def test_plan_free_rows_refuse_what_does_not_fit() -> None:
    rows = trace_rows(Policy(), "t", "i", convert(sound_trace()))
    with pytest.raises(TraceError, match="step 0 does not fit"):
        plan_free_rows(Policy(max_prompt_bytes=0), rows)


def test_a_trace_without_a_plan_is_left_out_and_counted() -> None:
    trace = lamp_trace(0)
    bare = replace(trace, steps=tuple(replace(step, intent="") for step in trace.steps))
    with lamp_vector(1) as vector:
        rolled = self_roll(Policy(), vector, [bare, trace], [lamp_task(0)])
    assert (rolled.unplanned, list(rolled.entries), rolled.episodes) == (1, ["lamp-0"], 1)


def test_manifest_survives_and_notices_a_changed_task(tmp_path) -> None:
    tasks = tuple(lamp_task(i) for i in range(4))
    manifest = Manifest(
        task_hashes(tasks),
        train=("lamp-0", "lamp-1", "lamp-2"),
        held_out=("lamp-3",),
        expert=("lamp-0", "lamp-1", "lamp-3"),
        converted=("lamp-0",),
        self_rolled=("lamp-0", "lamp-1"),
        base_solved=("lamp-1", "lamp-2"),
    )
    assert manifest.expert_only == ("lamp-0",) == expert_only(["lamp-0", "lamp-1"], {"lamp-1"})
    assert manifest.counts["expert"] == 3
    path = tmp_path / "runs" / "manifest.json"
    manifest.save(path)
    assert Manifest.load(path) == manifest
    manifest.check(Suite("lamps", tasks, {}))
    changed = (replace(tasks[0], instruction="Switch off"), *tasks[1:])
    with pytest.raises(TraceError, match="'lamp-0' of suite 'lamps' has changed"):
        manifest.check(Suite("lamps", changed, {}))
    with pytest.raises(TraceError, match="is missing"):
        manifest.check(Suite("lamps", tasks[1:], {}))
    with pytest.raises(TraceError, match="share 1 tasks: lamp-0"):
        replace(manifest, held_out=("lamp-0",))
    with pytest.raises(TraceError, match="without a hash: lamp-9"):
        replace(manifest, expert=("lamp-9",))
    path.write_text('{"schema": "other"}')
    with pytest.raises(TraceError, match="expected schema"):
        Manifest.load(path)


def test_cache_and_held_out_are_disjoint() -> None:
    check_disjoint(["a", "b"], ["c"])
    with pytest.raises(TraceError, match="the cache and the held-out split share 2 tasks: a, b"):
        check_disjoint(["b", "a", "c"], ["a", "b"])


def test_pool_split_is_fixed_by_the_seed() -> None:
    tasks = [lamp_task(i) for i in range(40)]
    pool = [task.id for task in tasks[:20]]
    train, held_out = split_pool(tasks, pool, seed=1)
    assert len(set(train) & set(pool)) == 16  # 80 % of 20
    assert len(set(train) - set(pool)) == 8
    assert sorted([*train, *held_out]) == sorted(task.id for task in tasks)
    assert split_pool(tasks, pool[::-1], seed=1) == (train, held_out)
    assert split_pool(tasks, pool, seed=2) != (train, held_out)
    with pytest.raises(TraceError, match="unknown tasks: x"):
        split_pool(tasks, ["x"], seed=1)


def test_simulated_experts_record_convert_and_replay(tmp_path) -> None:
    """The simulated suite's own experts: recorded, stored, converted; the responses, played blind, solve the task.

    A blind replay on the same seed is exact, pop-ups included: the desktop is deterministic.
    """
    tasks = sim_suite().split("train")
    for number, task in enumerate(tasks):
        with SimDesktop() as desktop:
            trace = record_expert(desktop, task, number)
        assert trace.success, task.id
        assert load_trace(save_trace(trace, tmp_path)) == trace
        assert "pop-up" not in plan_from_trace(trace)
        texts = [text for _, text in convert(trace)]
        with DesktopVector(SimDesktop, 1, EpisodeOptions(max_steps=30)) as vector:
            (result,) = run_episodes(Replay(texts), vector, [EpisodeJob(task, (0,), number)])
        assert result.success, (task.id, texts)
