"""The share of responses that begin with a text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.starts import responses_of, share_starting, start_shares
from bepa_torchrl.testing import DONE, PRESS, ScriptedPolicy, lamp_task, lamp_vector


def test_shares_by_hand() -> None:
    """Two episodes: press and done, done."""
    jobs = [EpisodeJob(lamp_task(0), (0, 1, 0, slot), 3, 0, slot) for slot in range(2)]
    with lamp_vector(2) as vector:
        results = run_episodes(ScriptedPolicy(lambda key: key[3] == 0), vector, jobs)
    responses = responses_of(results)
    assert sorted(responses) == sorted([PRESS, DONE, DONE])
    assert share_starting(responses, "Thought: press") == pytest.approx(1 / 3)
    assert start_shares(responses, {"press": "Thought: press", "all": "Thought"}, "eval") == {
        "eval/starts_press": pytest.approx(1 / 3),
        "eval/starts_all": 1.0,
    }


def test_replayed_responses_are_not_the_policys() -> None:
    """Press was replayed: only done is a response of the policy."""
    with lamp_vector(1) as vector:
        (result,) = run_episodes(ScriptedPolicy(lambda _: True), vector, [EpisodeJob(lamp_task(0), (0, 1, 0, 0), 3)])
    assert responses_of([result]) == [PRESS, DONE]
    assert responses_of([replace(result, replayed=1)]) == [DONE]


def test_without_a_response_there_is_no_metric() -> None:
    assert share_starting([], "Thought") == 0.0
    assert start_shares([], {"all": "Thought"}, "cache") == {}
    assert start_shares(["Thought"], {}, "cache") == {}
