"""Expert rows with a real Qwen2.5-VL: the policy renders, encodes and scores responses that it did not sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from bepa_torchrl.analysis.figures.scored import raw_turns, worker_turns
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.divergence import turn_log_probs
from bepa_torchrl.experts import (
    convert,
    plan_free_rows,
    plan_from_trace,
    raw_pairs,
    record_expert,
    save_trace,
    self_roll,
    trace_rows,
)
from bepa_torchrl.experts.raw_text import raw_response
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import small_checkpoint
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.vector import DesktopVector


def test_converted_and_raw_rows_can_be_scored() -> None:
    policy = TransformersPolicy(small_checkpoint(), preset="compact")
    task = sim_suite().split("train")[0]
    with SimDesktop() as desktop:
        trace = record_expert(desktop, task, 1)
    for source, pairs in (
        (K.Source.converted, convert(trace, policy.image_scaling)),
        (K.Source.raw_expert, raw_pairs(trace)),
    ):
        rows = trace_rows(policy, task.id, task.instruction, pairs, source=source)
        assert row_list(rows)[0][K.SOURCE] == source.value
        dist = policy.get_dist(rows)
        assert dist.mask.sum(-1).tolist() == [len(row[K.RESPONSE_TOKENS]) for row in row_list(rows)]
        assert torch.isfinite(dist.log_probs).all()
        ends = policy.renderer.processor.end_token_ids
        assert all(int(row[K.RESPONSE_TOKENS][-1]) == ends[0] for row in row_list(rows))
    # the prompt of a row does not depend on who responds: the same tokens come back from the plan-free rebuild
    rebuilt = plan_free_rows(policy, rows)
    for old, new in zip(row_list(rows), row_list(rebuilt), strict=True):
        assert torch.equal(old[K.PROMPT_TOKENS], new[K.PROMPT_TOKENS])


def test_raw_traces_of_agent_s2_are_single_turns_under_its_worker_s_prompt(tmp_path: Path) -> None:
    """Paper, appendix on S2's raw traces: no step before is in the prompt, and there is one screenshot."""
    policy = TransformersPolicy(small_checkpoint(), preset="compact", max_prompt_tokens=3000)
    with SimDesktop() as desktop:
        trace = record_expert(desktop, sim_suite().split("train")[0], 1)
    turns = worker_turns(policy.renderer, trace)
    assert len(turns) == len(trace.steps) > 1
    decode = policy.renderer.processor.tokenizer.decode
    for step, (prompt, tokens) in zip(trace.steps, turns, strict=True):
        assert len(prompt.images) == 1
        text = decode(prompt.tokens)
        assert f"executing the current subtask:\n`{step.subtask}`" in text
        assert step.plan not in text
        assert torch.equal(tokens, policy.renderer.encode_response(raw_response(step)))
    scored = turn_log_probs(policy, turns)
    one = policy.response_log_probs([turns[1][0]], [turns[1][1]])[0][0]
    first = len(turns[0][1])
    assert torch.allclose(scored[first : first + len(one)], one, atol=1e-5)
    assert len(scored) == sum(len(tokens) for _, tokens in turns)
    # only Agent S2 has a worker; a trace of another expert keeps the policy's own prompts, with the steps before
    other = replace(trace, expert="other", steps=tuple(replace(step, response=step.plan) for step in trace.steps))
    for each in (trace, other):
        save_trace(each, tmp_path)
    for worker, expected in ((True, len(turns)), (False, 0)):
        kept, left_out = raw_turns(tmp_path, policy, [trace.task_id], worker=worker)
        assert not left_out
        found = [decode(prompt.tokens) for prompt, _ in kept]
        assert len(found) == 2 * len(turns)
        assert sum("executing the current subtask" in text for text in found) == expected
    assert raw_turns(tmp_path, policy, ["another task"], worker=True) == ([], {})
    policy.renderer.max_prompt_tokens = 1
    assert worker_turns(policy.renderer, trace) == []
    lacking = replace(trace, expert="lacking", screenshots=(b"", *trace.screenshots[1:]))
    save_trace(lacking, tmp_path)
    steps = len(turns)
    whole, single = "of a trace with a step beyond the policy's context", "beyond the policy's context"
    without = {"of a trace without all screenshots": steps}
    assert raw_turns(tmp_path, policy, None, worker=False) == ([], {whole: 2 * steps, **without})
    assert raw_turns(tmp_path, policy, None, worker=True) == ([], {single: steps, whole: steps, **without})


def test_a_random_policy_self_rolls_nothing_and_reports_it() -> None:
    policy = TransformersPolicy(small_checkpoint(), preset="compact", max_new_tokens=8)
    task = sim_suite().split("train")[0]
    with SimDesktop() as desktop:
        trace = record_expert(desktop, task, 1)
    with DesktopVector(SimDesktop, 1, EpisodeOptions(max_steps=3)) as vector:
        rolled = self_roll(policy, vector, [trace], [task])
    assert (dict(rolled.entries), rolled.episodes, rolled.leak_rate) == ({}, 1, 0.0)
    assert plan_from_trace(trace).startswith("1. ")
