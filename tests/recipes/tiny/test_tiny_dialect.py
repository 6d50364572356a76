"""The expert's dialect: the prefix is part of prompt and response, the share counts responses, sets are as defined."""

from __future__ import annotations

import pytest
import torch

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.divergence import token_log_probs
from bepa_torchrl.experts.conversion import convert
from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.experts.self_rollout import self_roll
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.sim.suite import KNOWN, cloning_tasks, sim_suite
from osworld_gym.types import PromptContext
from osworld_gym.vector import DesktopVector
from recipes.tiny.dialect import EXPERT_START, PrefixedPolicy, share_in_dialect
from recipes.tiny.divergence import SETS, divergence, trace_sets
from recipes.tiny.evaluate import play, success_rate


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    return load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)


def test_every_response_starts_with_the_prefix_and_the_rest_follows_from_it(policy: TransformersPolicy) -> None:
    prefixed = PrefixedPolicy(policy, EXPERT_START)
    context = PromptContext("turn on mute", [SimDesktop().screenshot().png])
    [plain], [longer] = policy.renderer.render([context]), prefixed.renderer.render([context])
    assert plain is not None
    assert longer is not None
    extra = longer.tokens[len(plain.tokens) :]
    assert torch.equal(longer.tokens[: len(plain.tokens)], plain.tokens)
    assert torch.equal(extra, policy.encode_response(EXPERT_START)[:-1])
    [response] = prefixed.sample([longer], [(1, 2)], temperature=0)
    [rest] = policy.sample([longer], [(1, 2)], temperature=0)
    assert response.text == EXPERT_START + rest.text
    assert torch.equal(response.tokens, rest.tokens)


def test_the_expert_starts_every_converted_thought_with_the_dialects_first_words() -> None:
    for number, task in enumerate(cloning_tasks()[::7]):
        trace = record_expert(SimDesktop(), task, number)
        assert all(text.startswith(f"{EXPERT_START} ") for _, text in convert(trace))


def test_the_share_counts_all_responses(policy: TransformersPolicy) -> None:
    tasks = [task for task in sim_suite().split("train") if KNOWN in task.tags][:2]
    assert share_in_dialect(play(PrefixedPolicy(policy, EXPERT_START), tasks, episodes=1, seed=0)) == 1.0
    assert share_in_dialect([]) == 0.0


def test_the_sets_are_what_the_module_states(policy: TransformersPolicy) -> None:
    tasks = [task for task in sim_suite().split("train") if KNOWN in task.tags][:4]
    rollouts = play(policy, tasks, episodes=2, seed=0)
    traces = [record_expert(SimDesktop(), task, i) for i, task in enumerate(tasks)]
    vector = DesktopVector(SimDesktop, 4, EpisodeOptions(scaling=policy.image_scaling))
    selfrolled = self_roll(policy, vector, traces, tasks, seed=0, tries=2)
    vector.close()
    assert selfrolled.entries
    sets = trace_sets(policy, traces, [selfrolled], rollouts)
    assert tuple(sets) == SETS
    assert len(sets["raw"]) == sum(len(trace.steps) for trace in traces)
    assert len(sets["converted"]) == sum(len(convert(trace)) for trace in traces)
    solved = {result.job.task.id for result in rollouts if result.success}
    for row in sets["level2"]:
        own = row[K.TASK_ID] in solved
        assert row[K.SOURCE] == (K.Source.on_policy if own else K.Source.self_rolled)
    found = divergence(policy, sets)
    assert found["on_policy"]["js"] == 0
    assert found["converted"]["tail"] > found["on_policy"]["tail"]
    assert found["converted"]["tokens"] == token_log_probs(policy, sets["converted"]).numel()
    assert 0 <= success_rate(rollouts) <= 1
    # the sampler's own log-probs are those that the scorer gives
    sampled = torch.cat([row[K.ROLLOUT_LOG_PROB] for result in rollouts for row in row_list(result.rows)])
    torch.testing.assert_close(token_log_probs(policy, sets["on_policy"]), sampled, atol=1e-4, rtol=1e-4)
