"""Prefix replay: the controller by hand, the replay on lamps, what is trained, and a resumed or asynchronous run."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import Provenance, mark
from bepa_torchrl.data.step_rows import groups_of, row_list, trained_rows
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_cache, make_trainer
from bepa_torchrl.experiment.record_lines import trained_line
from bepa_torchrl.functional import group_advantage
from bepa_torchrl.methods import Method, SeedSource, method_named
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.prefix import PrefixLengths, check_replayable, next_length, prefix_metrics
from bepa_torchrl.rollout.replay import Prefix, mean_hash, same_screen
from bepa_torchrl.testing import DONE, PRESS, LampEnv, ScriptedLearner, ScriptedPolicy, SeedKey, lamp_task, lamp_vector
from osworld_gym.types import StopReason, Verdict

SEED = 77  #: of the desktop on which the traces were played


def never(_: SeedKey) -> bool:
    """Every rollout says that it is done at once: it succeeds only if the lamp was switched on before."""
    return False


def success(task: int) -> Any:
    """A success of two steps, PRESS and DONE, on the desktop SEED, as self-rolling keeps it."""
    job = EpisodeJob(lamp_task(task), (0, 0, task, 0), SEED)
    with lamp_vector(1) as vector:
        (result,) = run_episodes(ScriptedPolicy(lambda _: True), vector, [job])
    assert [row[K.RESPONSE] for row in row_list(result.rows)] == [PRESS, DONE]
    return mark(result.rows, Provenance("oracle", env_seed=SEED))


def cache_of(*tasks: int) -> TaskTraceCache:
    cache = TaskTraceCache()
    for task in tasks:
        cache.put(f"lamp-{task}", success(task))
    return cache


# --- the length -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "rate", "length", "gain", "expected"),
    [
        (0, 0.0, 8, 1.0, 4),  # 0 + 1 · 1/2 · 8
        (4, 0.0, 8, 1.0, 7),  # 8, at most L - 1
        (7, 1.0, 8, 1.0, 3),
        (3, 1.0, 8, 1.0, 0),  # -1
        (4, 0.5, 8, 1.0, 4),
        (4, 0.25, 8, 1.0, 6),
        (4, 0.625, 8, 0.5, 4),  # -0.5 is rounded up, to 0
        (4, 0.375, 8, 0.5, 5),  # 0.5 is rounded up
        (3, 2 / 5, 5, 1.0, 4),  # 1/10 of 5 is a half, too: three of eight rollouts were masked
        (3, 4 / 5, 5, 1.0, 2),  # -3/10 of 5 is -1.5, rounded up to -1
        (0, 0.0, 1, 1.0, 0),  # a trace of one step has no prefix
    ],
)
def test_the_next_length_by_hand(k: int, rate: float, length: int, gain: float, expected: int) -> None:
    assert next_length(k, rate, length, gain=gain) == expected


def result_of(won: bool, *, replayed: int = 0, mismatch: bool = False, prefix: Prefix | None = None) -> EpisodeResult:
    job = EpisodeJob(lamp_task(0), (0, 0, 0, 0), 1, prefix=prefix)
    verdict = Verdict(float(won))
    return EpisodeResult(job, None, StopReason.finished, verdict, replayed=replayed, mismatch=mismatch)


def test_a_success_without_a_prefix_ends_prefixes_for_good() -> None:
    lengths = PrefixLengths(cache_of(0))
    assert lengths.prefix("lamp-0") is None
    lengths.note([result_of(False)] * 4)
    prefix = lengths.prefix("lamp-0")
    assert prefix is not None
    assert (prefix.steps, prefix.env_seed, prefix.texts) == (1, SEED, (PRESS,))
    lengths.note([result_of(True, replayed=1, prefix=prefix), result_of(False, replayed=1, prefix=prefix)])
    assert lengths.prefix("lamp-0") == prefix  # half of them: it stays
    again = PrefixLengths(lengths.cache)
    again.load_state_dict(json.loads(json.dumps(lengths.state_dict())))
    assert again.prefix("lamp-0") == prefix
    for each in (lengths, again):
        each.note([result_of(True), result_of(False)])
        each.note([result_of(False)] * 4)
        assert each.prefix("lamp-0") is None


def test_a_mismatch_shortens_later_prefixes() -> None:
    lengths = PrefixLengths(cache_of(0))
    lengths.note([result_of(False)] * 2)
    prefix = lengths.prefix("lamp-0")
    lengths.note([result_of(False, replayed=1, mismatch=True, prefix=prefix)] * 2)
    assert lengths.prefix("lamp-0") is None
    lengths.note([result_of(False)] * 2)
    assert lengths.prefix("lamp-0") is None


def test_a_trace_that_does_not_state_its_desktop_is_not_replayed() -> None:
    cache = TaskTraceCache()
    cache.put("lamp-0", mark(success(0), Provenance("oracle")))
    lengths = PrefixLengths(cache)
    lengths.note([result_of(False)] * 2)
    assert lengths.prefix("lamp-0") is None
    other = PrefixLengths(TaskTraceCache())
    other.note([result_of(False)] * 2)
    assert other.prefix("lamp-0") is None
    with pytest.raises(ValueError, match="gain must be above 0, got 0"):
        PrefixLengths(cache, gain=0.0)


def test_a_self_rolled_trace_of_an_earlier_version_is_refused() -> None:
    """Its task would be trained by GRPO without a word; a converted trace never is replayed."""
    cache = cache_of(0, 1)
    assert check_replayable(cache, "X") == 2
    cache.put("lamp-2", mark(success(2), Provenance("oracle")))  # converted
    assert check_replayable(cache, "X") == 2
    cache.put("lamp-1", mark(success(1), Provenance("oracle", attempt=0)))
    with pytest.raises(
        ValueError, match=r"1 of the 3 traces of X do not state the seed .* \(first 'lamp-1'\).*selfroll"
    ):
        check_replayable(cache, "X")
    cache.put("lamp-1", mark_nothing(success(1)))
    with pytest.raises(ValueError, match="first 'lamp-1'"):
        check_replayable(cache, "X")
    assert check_replayable(TaskTraceCache(), "X") == 0


def mark_nothing(rows: Any) -> Any:
    """The rows without a provenance."""
    for row in row_list(rows):
        row.set_non_tensor(K.PROVENANCE, "")
    return rows


# --- screens ----------------------------------------------------------------------------------------------------------


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def test_screens_are_compared_by_their_mean_hash() -> None:
    """The left half is bright. A caret of 4 × 16 pixels is the same screen; another window, or a darker one, is not."""
    screen = np.zeros((160, 160))
    screen[:, :80] = 200
    caret, window, dark = screen.copy(), screen.copy(), screen * 0.5
    caret[40:56, 100:104] = 255
    window[20:100, 90:150] = 255
    found = mean_hash(png(screen))
    assert found == "ff00" * 16 + "64"  # 100
    assert same_screen(found, mean_hash(png(caret)))
    assert not same_screen(found, mean_hash(png(window)))
    assert not same_screen(found, mean_hash(png(dark)))


def test_a_prefix_is_json() -> None:
    prefix = PrefixLengths(cache_of(0))
    prefix.note([result_of(False)])
    made = prefix.prefix("lamp-0")
    assert made is not None
    assert Prefix.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(ValueError, match=r"k \+ 1 screens; got 1 responses, 1 and 1"):
        Prefix.from_json(made.to_json() | {"screens": ["00"]})


# --- the replay -------------------------------------------------------------------------------------------------------


def play(prefix: Prefix) -> EpisodeResult:
    job = EpisodeJob(lamp_task(0), (0, 0, 0, 0), prefix.env_seed, prefix=prefix)
    with lamp_vector(1) as vector:
        return run_episodes(ScriptedPolicy(never), vector, [job])[0]


def prefix_of_lamp() -> Prefix:
    lengths = PrefixLengths(cache_of(0))
    lengths.note([result_of(False)])
    prefix = lengths.prefix("lamp-0")
    assert prefix is not None
    return prefix


def test_the_policy_goes_on_from_the_replayed_screen() -> None:
    result = play(prefix_of_lamp())
    assert (result.success, result.replayed, result.mismatch, result.steps) == (True, 1, False, 2)
    first, second = row_list(result.rows)
    assert (first[K.RESPONSE], second[K.RESPONSE]) == (PRESS, DONE)
    assert bool(torch.isnan(first[K.ROLLOUT_LOG_PROB]).all())
    assert not bool(torch.isnan(second[K.ROLLOUT_LOG_PROB]).any())
    assert [int(row[K.STEP]) for row in (first, second)] == [0, 1]


@pytest.mark.parametrize(("screen", "replayed", "won"), [(0, 0, False), (1, 1, True)])
def test_the_policy_acts_from_a_screen_that_is_not_the_stored_one(screen: int, replayed: int, won: bool) -> None:
    """Before the replayed click, or after it."""
    prefix = prefix_of_lamp()
    screens = [each if i != screen else mean_hash(png(np.full((8, 8), 222))) for i, each in enumerate(prefix.screens)]
    result = play(Prefix(prefix.env_seed, prefix.texts, prefix.tokens, tuple(screens)))
    assert (result.mismatch, result.replayed, result.success) == (True, replayed, won)
    metrics = prefix_metrics([result])
    assert (metrics["prefix_mismatches"], metrics["replayed_steps"]) == (1.0, float(replayed))


def test_an_episode_that_ends_in_its_replay_has_no_rows() -> None:
    prefix = prefix_of_lamp()
    ends = Prefix(prefix.env_seed, (DONE,), prefix.tokens, prefix.screens)
    result = play(ends)
    assert result.rows is None
    assert (result.replayed, result.mismatch, result.success) == (1, True, False)


# --- training ---------------------------------------------------------------------------------------------------------


def trainer_of(folder: Path | None = None, *, iterations: int = 4) -> Any:
    size = ["collect.groups=2", "collect.group_size=3", f"train.iterations={iterations}", "train.save_every=1"]
    settings = load_config(["algo=prefix", "compare=[]", *size])
    algo, policy = method_named("prefix"), ScriptedLearner(never)
    tasks = [lamp_task(i) for i in range(2)]
    cache = make_cache(settings, algo, cache_of(0))
    return make_trainer(settings, algo, policy, LampEnv(lamp_vector(4)), tasks, cache, checkpoints=folder)


def test_only_continuations_are_trained_and_counted() -> None:
    """Task 0 has a trace: k goes 0, 1 (all pass), 0, 1. Task 1 has none. Denominators are over continuations."""
    trainer = trainer_of()
    lengths = []
    for batch in islice(trainer.collector, 4):
        metrics = trainer.collector.last.metrics()
        lengths.append((metrics.get("prefix_episodes"), metrics.get("prefix_steps"), metrics["success"]))
        groups = {group[0].task_id: group for group in groups_of(batch)}
        rows = trained_rows(batch)
        loss = trainer.loss_module
        if "prefix_steps" in metrics:
            members = groups["lamp-0"]
            assert [len(episode.rows) for episode in members] == [2, 2, 2]
            assert all(episode.rows[0][K.SCREENSHOT] == members[0].rows[0][K.SCREENSHOT] for episode in members)
            assert [bool(row[K.TRAINED]) for row in members[0].rows] == [False, True]
            assert trained_line(1, members[0].rows)["replayed_steps"] == 1
            assert len(rows) == len(batch) - 3
            tokens = sum(len(episode.rows[1][K.RESPONSE_TOKENS]) for episode in members)
            assert float(loss.denominators(rows)[0]) == 2.0 * tokens
            assert metrics["prefix_mismatches"] == 0.0
            assert metrics["success_unprefixed"] == 0.0
            advantages = group_advantage(torch.tensor([1.0, 1.0, 1.0]))
            assert [float(episode.rows[1][K.ADVANTAGE]) for episode in members] == advantages.tolist()
        else:
            assert rows is batch
    assert lengths == [(None, None, 0.0), (3.0, 1.0, 0.5), (None, None, 0.0), (3.0, 1.0, 0.5)]
    trainer.collector.shutdown()


def test_the_trainer_steps_on_the_continuations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(iterations=2)
    seen = []
    step = trainer.stepper.step

    def noted(own: Any, rows: Any) -> Any:
        seen.append([bool(row[K.TRAINED]) for row in row_list(rows)])
        return step(own, rows)

    monkeypatch.setattr(trainer.stepper, "step", noted)
    trainer.train()
    assert [len(each) for each in seen] == [6, 6]  # in the second iteration there are 9 rows
    assert all(all(each) for each in seen)


def test_a_resumed_run_goes_on_with_its_prefixes(tmp_path: Path) -> None:
    first = trainer_of(tmp_path, iterations=1)
    first.train()
    second = trainer_of(tmp_path, iterations=2)
    second.resume()
    assert second.collector.prefixes.prefix("lamp-0").steps == 1
    second.train()
    assert second.metrics["collect/prefix_steps"] == 1.0


def test_a_method_with_prefixes_keeps_its_traces() -> None:
    with pytest.raises(ValueError, match="prefix=True requires seed_source=self_rolled"):
        Method("own", "", SeedSource.self_rolled, refresh=True, prefix=True)
    with pytest.raises(ValueError, match="prefix=True requires"):
        Method("own", "", SeedSource.converted, prefix=True)


def test_evaluations_and_other_methods_have_no_prefix() -> None:
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(1)), ScriptedPolicy(never), [lamp_task(0)], groups=1, group_size=2
    )
    batch = next(iter(collector))
    assert K.TRAINED not in row_list(batch)[0]
    assert "prefixes" not in collector.state_dict()
    collector.shutdown()
