"""Self-rollouts in which the policy acts without the plan first; and the record of every attempt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expert_fixtures import sound_trace

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import mark, provenance_of
from bepa_torchrl.data.step_rows import row_list, stack_rows, trained_rows
from bepa_torchrl.experts.attempts import SELFROLL, AttemptFile, table
from bepa_torchrl.experts.plan import plan_hash
from bepa_torchrl.experts.self_rollout import after_handover, self_roll, train_after_handover
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.storage.ledger import Ledger
from bepa_torchrl.testing import DONE, PRESS, ScriptedPolicy, lamp_task, lamp_vector

WAIT = "Thought: look\nAction: wait()"
PLAN = "1. Press it"


class Follower(ScriptedPolicy):
    """Looks at the lamp until it has a plan, then presses it and finishes; keeps which prompts had the plan."""

    def __init__(self) -> None:
        super().__init__(lambda _: False)
        self.planned: list[bool] = []

    def encode_response(self, text: str) -> torch.Tensor:
        return torch.tensor([*text.encode(), 0], dtype=torch.int64)

    def render(self, contexts):
        self.planned += [context.plan is not None for context in contexts]
        self.texts = [self._next(context) for context in contexts]
        return super().render(contexts)

    def sample(self, prompts, keys, *, temperature: float = 1.0):
        texts = self.texts
        responses = super().sample(prompts, keys, temperature=temperature)
        return [replace(response, text=text) for response, text in zip(responses, texts, strict=True)]

    @staticmethod
    def _next(context) -> str:
        if context.plan is None:
            return WAIT
        return DONE if PRESS in context.responses else PRESS


def traces(*numbers: int, expert: str = "agent_s2"):
    return [replace(sound_trace(), task_id=f"lamp-{n}", expert=expert, success=True) for n in numbers]


def test_the_plan_is_there_after_the_hand_over_and_the_steps_before_are_told_apart() -> None:
    policy = Follower()
    with lamp_vector(1) as vector:
        rolled = self_roll(policy, vector, traces(0), [lamp_task(0)], handover=2, plan=lambda _: PLAN)
    assert policy.planned[:4] == [False, False, True, True]
    assert not any(policy.planned[4:])  # the prompts that are trained with
    rows = rolled.entries["lamp-0"].rows
    assert [row[K.RESPONSE] for row in row_list(rows)] == [WAIT, WAIT, PRESS, DONE]
    assert after_handover(rows).tolist() == [False, False, True, True]
    provenance = provenance_of(rows[0])
    assert provenance is not None
    assert (provenance.handover, provenance.attempt, provenance.plan) == (2, 0, plan_hash(PLAN))


def test_only_the_steps_after_the_hand_over_have_a_loss() -> None:
    """In the injected trace, and in fine-tuning; its advantage is that of the whole trace."""
    policy = Follower()
    with lamp_vector(1) as vector:
        rolled = self_roll(policy, vector, traces(0), [lamp_task(0)], handover=2, plan=lambda _: PLAN)
        early = self_roll(policy, vector, traces(1), [lamp_task(1)], plan=lambda _: PLAN)
    cache = TaskTraceCache()
    cache.put("lamp-0", rolled.entries["lamp-0"].rows)
    cache.put("lamp-1", early.entries["lamp-1"].rows)
    marked = train_after_handover(cache)
    assert [bool(row[K.TRAINED]) for row in row_list(marked.get_trace("lamp-0"))] == [False, False, True, True]
    assert [bool(row[K.TRAINED]) for row in row_list(marked.get_trace("lamp-1"))] == [True, True]
    assert [K.TRAINED in row for row in row_list(cache.get_trace("lamp-0"))] == [False] * 4
    jobs = [EpisodeJob(lamp_task(0), (0, 0, 0, slot), 1, 5, slot) for slot in range(3)]
    with lamp_vector(1) as vector:
        failed = run_episodes(ScriptedPolicy(lambda _: False), vector, jobs)
    batch = TraceReplacement(marked)(stack_rows(row for result in failed for row in row_list(result.rows)))
    trained = row_list(trained_rows(batch))
    assert [row[K.RESPONSE] for row in trained if bool(row[K.OFF_POLICY])] == [PRESS, DONE]
    assert (len(batch), len(trained)) == (6, 4)
    assert all(float(row[K.ADVANTAGE]) == pytest.approx(2**0.5, abs=1e-4) for row in trained if bool(row[K.OFF_POLICY]))


def test_a_success_that_never_got_the_plan_is_trained_on_whole() -> None:
    policy = Follower()
    with lamp_vector(1) as vector:
        rolled = self_roll(policy, vector, traces(0), [lamp_task(0)], handover=1, plan=lambda _: PLAN)
    rows = rolled.entries["lamp-0"].rows
    late = replace(provenance_of(rows[0]), handover=9)
    cache = TaskTraceCache()
    cache.put("lamp-0", mark(rows, late))
    assert trained_rows(train_after_handover(cache).get_trace("lamp-0")).shape[0] == len(rows)


def test_without_a_hand_over_every_step_follows_the_plan() -> None:
    policy = Follower()
    with lamp_vector(1) as vector:
        rolled = self_roll(policy, vector, traces(0), [lamp_task(0)], plan=lambda _: PLAN)
        with pytest.raises(ValueError, match="handover must be at least 0, got -1"):
            self_roll(policy, vector, traces(0), [lamp_task(0)], handover=-1)
    assert after_handover(rolled.entries["lamp-0"].rows).tolist() == [True, True]
    rows = rolled.entries["lamp-0"].rows
    for row in row_list(rows):
        row.set_non_tensor(K.PROVENANCE, "")
    with pytest.raises(ValueError, match="without provenance"):
        after_handover(rows)


def test_an_attempt_of_another_hand_over_is_played_again(tmp_path: Path) -> None:
    policy = Follower()

    def roll(handover: int) -> int:
        before = len(policy.planned)
        stages = Stages(Ledger(tmp_path / "ledger"))
        play = stages.episodes("LEVEL-1", rows=lambda result: result.success)
        with lamp_vector(1) as vector:
            tasks = [lamp_task(0)]
            rolled = self_roll(policy, vector, traces(0), tasks, handover=handover, plan=lambda _: PLAN, play=play)
        assert list(rolled.entries) == ["lamp-0"]
        (attempt,) = rolled.attempts
        assert attempt.steps == 2 + handover
        assert attempt.seconds > 0
        return sum(policy.planned[before:])

    assert [roll(0), roll(0), roll(1), roll(1)] == [2, 0, 2, 0]  # prompts with the plan: nothing is played twice


def test_every_attempt_is_a_line_and_counts_in_the_table(tmp_path: Path) -> None:
    """The first expert's plan is useless for lamp 1: both of its tries fail, then the second expert's succeeds."""
    policy = Follower()
    plans = {"agent_s2": "", "gui_owl": PLAN}
    given = [*traces(0, 1, expert="agent_s2"), *traces(1, expert="gui_owl")]

    def plan(trace) -> str:
        return PLAN if trace.task_id == "lamp-0" else plans[trace.expert]

    policy._next = lambda context: WAIT if not context.plan else Follower._next(context)  # type: ignore[method-assign]
    file = AttemptFile(tmp_path)
    with lamp_vector(2) as vector:
        rolled = self_roll(policy, vector, given, [lamp_task(0), lamp_task(1)], tries=2, plan=plan, on_attempt=file.add)
    lines = [json.loads(line) for line in (tmp_path / SELFROLL).read_text().splitlines()]
    keys = ("task", "expert", "try", "verdict", "kept")
    assert [tuple(line[key] for key in keys) for line in lines] == [
        ("lamp-0", "agent_s2", 0, 1.0, True),
        ("lamp-1", "agent_s2", 0, 0.0, False),
        ("lamp-1", "agent_s2", 1, 0.0, False),
        ("lamp-1", "gui_owl", 0, 1.0, True),
    ]
    assert lines[3]["plan_hash"] == plan_hash(PLAN)
    assert (lines[3]["steps"], lines[3]["stop"], lines[3]["failure"]) == (2, "finished", None)
    assert lines[1]["stop"] == "max_steps"
    found = [line.split() for line in table(rolled, 2)]
    assert found[1][:6] == ["agent_s2", "2", "3", "1", "1", "0"]
    assert found[2] == ["gui_owl", "1", "1", "1", "1", "0", "2.0"]
    assert "2 tasks with a trace, 2 self-rolled; 0 traces without a plan" in list(table(rolled, 2))
