"""GroupRows: its rows equal those of GroupRolloutCollector for any batch size of the stock collector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import Compose, InitTracker, SerialEnv, TransformedEnv

from bepa_torchrl import BEPALoss, GroupRolloutCollector, GroupRows, TaskTraceCache, TraceReplacement
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.policies.actor_module import ActingModule
from bepa_torchrl.rollout.episodes import EpisodeJob
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.testing import (
    LampDesktop,
    LampEnv,
    ScriptedLearner,
    ScriptedPolicy,
    SeedKey,
    lamp_task,
    lamp_vector,
    summary,
)
from osworld_gym.assignment import GroupedTasks
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suite import Suite
from osworld_gym.torchrl_env import OSWorldEnv

TASKS = tuple(lamp_task(i) for i in range(4))
SIZE = 3


def wins(key: SeedKey) -> bool:
    """Group 0 has no success, group 1 one, group 2 only successes, and so on."""
    return key[2] < key[1] % 4


def detour(key: SeedKey) -> int:
    """Lengths differ within a group, so that groups interleave."""
    return (key[1] + 2 * key[2]) % 3


def scripted() -> ScriptedPolicy:
    return ScriptedPolicy(wins, detour=detour)


def lamp_env(num: int, *, seed: int = 0, **options: Any) -> OSWorldEnv:
    settings: dict[str, Any] = {"make": LampDesktop, "tasks": TASKS, "observation": "png", "group_size": SIZE} | options
    suite = Suite("lamps", settings.pop("tasks"), {})
    return OSWorldEnv(
        settings.pop("make"), num, suite=suite, options=EpisodeOptions(max_steps=5), seed=seed, **settings
    )


def collected(env: Any, policy: Any, postproc: Any, frames: int, batches: int) -> Iterator[TensorDictBase]:
    """The batches of a stock collector."""
    collector = Collector(
        env,
        policy,
        frames_per_batch=frames,
        total_frames=frames * batches,
        auto_register_policy_transforms=True,
        postproc=postproc,
    )
    yield from collector
    collector.shutdown()


def stock_rows(env: Any, policy: Any, postproc: Any, *, frames: int, groups: int) -> list[TensorDictBase]:
    """Every row of the first ``groups`` groups, from a stock collector with batches of ``frames`` steps."""
    rows: list[TensorDictBase] = []
    for batch in collected(env, policy, postproc, frames, 200):
        rows += row_list(batch)
        if set(range(groups)) < {int(row[K.GROUP_ID]) for row in rows}:
            break
    rows.sort(key=lambda row: (int(row[K.GROUP_ID]), int(row[K.SLOT]), int(row[K.STEP])))
    return [row for row in rows if int(row[K.GROUP_ID]) < groups]


class SameEpisodes(GroupRolloutCollector):
    """GroupRolloutCollector on the episodes that an environment of ``seed`` starts."""

    def _jobs(self, number: int) -> list[EpisodeJob]:
        del number
        if not hasattr(self, "assigner"):
            self.assigner = GroupedTasks(TASKS, self.rollout_seeds.seed, self.group_size, 2)
        given = [self.assigner.next(0) for _ in range(self.group_size)]
        return [EpisodeJob(a.task, (0, a.group_id, a.slot), a.seed, a.group_id, a.slot) for a in given]


def reference_rows(
    policy: Any, *, groups: int, postproc: Any = None, breaks: Callable[[], bool] = lambda: False
) -> TensorDictBase:
    """One batch of ``groups`` groups; ``breaks`` is called at each click."""
    collector = SameEpisodes(
        LampEnv(lamp_vector(3, breaks=breaks)), policy, TASKS * 3, groups=groups, group_size=SIZE, postproc=postproc
    )
    batch = next(iter(collector))
    collector.shutdown()
    return batch


def contents(rows: Sequence[TensorDictBase]) -> list[tuple[Any, ...]]:
    """Every entry of every row."""
    strings = (K.TASK_ID, K.INSTRUCTION, K.SOURCE, K.STOP_REASON, K.RESPONSE, K.SCREENSHOT, K.IMAGES)
    tensors = (K.GROUP_ID, K.SLOT, K.STEP, K.N_STEPS, K.POLICY_VERSION, K.RETURN, K.OFF_POLICY)
    ragged = (K.PROMPT_TOKENS, K.RESPONSE_TOKENS, K.ROLLOUT_LOG_PROB, K.OLD_LOG_PROB)
    return [(*(row[k] for k in strings), *(row[k].tolist() for k in (*tensors, *ragged))) for row in rows]


@pytest.mark.parametrize(("num", "frames"), [(1, 7), (3, 3), (4, 20), (5, 35), (8, 64)])
def test_rows_are_those_of_the_group_collector_however_the_batches_are_cut(num: int, frames: int) -> None:
    """From one desktop to more than a group's size; episodes span batches, batches contain several groups."""
    expected = reference_rows(scripted(), groups=6)
    env = lamp_env(num)
    found = stock_rows(env, ActingModule(scripted()), GroupRows(SIZE), frames=frames, groups=6)
    assert summary(stack_rows(found)) == summary(expected)
    assert contents(found) == contents(row_list(expected))


@pytest.mark.parametrize("observation", ["png", "array"])
def test_pixels_and_png_give_the_same_rows(observation: str) -> None:
    expected = reference_rows(scripted(), groups=2)
    env = lamp_env(2, observation=observation)
    assert contents(stock_rows(env, ActingModule(scripted()), GroupRows(SIZE), frames=8, groups=2)) == contents(
        row_list(expected)
    )


def test_with_transforms_and_in_workers() -> None:
    """TransformedEnv(InitTracker); SerialEnv of one-desktop workers, batch [2, 1, T]: groups of both seeds."""
    expected = contents(row_list(reference_rows(scripted(), groups=3)))
    env = TransformedEnv(lamp_env(3), InitTracker())
    assert contents(stock_rows(env, ActingModule(scripted()), GroupRows(SIZE), frames=9, groups=3)) == expected
    workers = SerialEnv(2, [lambda: lamp_env(1, seed=0), lambda: lamp_env(1, seed=7)])
    group_rows = GroupRows(SIZE)
    rows = [row for batch in collected(workers, ActingModule(scripted()), group_rows, 16, 4) for row in row_list(batch)]
    assert {int(row[K.GROUP_ID]) >> 30 for row in rows} == {0, 7}
    first = [row for row in rows if int(row[K.GROUP_ID]) < 3]
    assert contents(first) == expected[: len(first)]


def learner_loss(rows: TensorDictBase, policy: ScriptedLearner) -> float:
    loss = BEPALoss(policy)
    rows.set(K.DENOMINATOR, loss.denominators(rows))
    return float(loss(rows).loss_objective.detach())


def test_advantages_and_loss_are_those_of_the_group_collector() -> None:
    """A small real model. Group 0 fails, its first rollout is replaced by a trace; advantages and loss agree."""
    policy = ScriptedLearner(lambda key: key[2] < key[1])
    traced = reference_rows(ScriptedLearner(lambda _: True), groups=1)
    trace = stack_rows(next(groups_of(traced))[0].rows)

    def chain() -> list[Any]:
        cache = TaskTraceCache(max_tasks=8)
        cache.put("lamp-2", trace.clone())
        return [TraceReplacement(cache), OldLogProb(policy)]

    expected = reference_rows(policy, groups=2, postproc=Compose(*chain()))
    assert [bool(row[K.OFF_POLICY]) for row in row_list(expected)].count(True) == 2
    found = stack_rows(
        stock_rows(lamp_env(4), ActingModule(policy), Compose(GroupRows(SIZE), *chain()), frames=12, groups=2)
    )
    assert summary(found) == summary(expected)
    for ours, theirs in zip(row_list(found), row_list(expected), strict=True):
        torch.testing.assert_close(ours[K.ADVANTAGE], theirs[K.ADVANTAGE])
        torch.testing.assert_close(ours[K.OLD_LOG_PROB], theirs[K.OLD_LOG_PROB], atol=1e-4, rtol=0)
    assert {round(float(row[K.ADVANTAGE]), 3) for row in row_list(found)} == {-0.707, 1.414}  # one success of three
    assert learner_loss(found, policy) == pytest.approx(learner_loss(expected, policy), abs=1e-5)
    assert abs(learner_loss(found, policy)) > 1e-3


def test_a_failed_desktop_is_retried_and_left_out_after_all_retries() -> None:
    """The 2nd click breaks its desktop once: the same rows. Task 1 never starts: its groups are dropped and counted."""
    clicks = itertools.count(1)
    env = lamp_env(2, make=lambda: LampDesktop(lambda: next(clicks) == 2))
    found = stock_rows(env, ActingModule(scripted()), GroupRows(SIZE), frames=10, groups=3)
    assert contents(found) == contents(row_list(reference_rows(scripted(), groups=3)))
    tasks = (lamp_task(0), lamp_task(1, infected=True))
    group_rows = GroupRows(SIZE)
    env = lamp_env(2, tasks=tasks, reset_retries=0, episode_retries=0)
    found = [r for b in collected(env, ActingModule(scripted()), group_rows, 10, 8) for r in row_list(b)]
    assert {row[K.TASK_ID] for row in found} == {"lamp-0"}
    assert group_rows.dropped_groups >= 2


def test_what_the_policy_breaks_is_scored_0_and_kept() -> None:
    """Only slot 0 clicks; its first two clicks break their desktops: one row with reward 0 in a group of three."""

    def crashing() -> Callable[[], bool]:
        clicks = itertools.count(1)
        return lambda: next(clicks) <= 2

    policy = ScriptedPolicy(lambda key: key[2] == 0)
    breaks = crashing()
    found = stock_rows(
        lamp_env(2, make=lambda: LampDesktop(breaks)), ActingModule(policy), GroupRows(3), frames=8, groups=1
    )
    assert [(row[K.STOP_REASON], float(row[K.RETURN])) for row in found] == [
        ("crashed_desktop", 0.0),
        ("finished", 0.0),
        ("finished", 0.0),
    ]
    assert contents(found) == contents(row_list(reference_rows(policy, groups=1, breaks=crashing())))


def test_a_prompt_that_does_not_fit_ends_the_episode_verified() -> None:
    """The first prompt alone fits: one row per episode, verified; winners have pressed the lamp by then."""
    policy = ScriptedPolicy(lambda _: True, max_prompt_bytes=20)
    found = stock_rows(lamp_env(2), ActingModule(policy), GroupRows(SIZE), frames=6, groups=2)
    assert [row[K.STOP_REASON] for row in found] == ["context_full"] * 6
    assert [float(row[K.RETURN]) for row in found] == [1.0] * 6


def test_an_update_between_batches_is_recorded_per_step() -> None:
    policy = ScriptedPolicy(lambda _: True, detour=lambda _: 2)
    iterator = collected(lamp_env(3), ActingModule(policy), GroupRows(SIZE), 6, 2)
    assert next(iterator).shape == (0,)  # two steps each: no group is complete
    policy.version = 1
    batch = next(iterator)
    assert [int(row[K.POLICY_VERSION]) for row in row_list(batch)] == [0, 0, 1, 1] * 3


def test_misuse_is_refused_with_the_fix() -> None:
    for size in (1, 2.5, "3", True):
        with pytest.raises(ValueError, match="group_size: expected an integer >= 2, since one episode has no baseline"):
            GroupRows(size)  # type: ignore[arg-type]
    pressing = ActingModule(ScriptedPolicy(lambda _: True, detour=lambda _: 2))
    batch = lamp_env(2).rollout(4, pressing, break_when_any_done=False)
    with pytest.raises(ValueError, match=r"without the step before it: pass every batch"):
        GroupRows(SIZE)(batch[:, 1:])
    with pytest.raises(ValueError, match="give the environment and GroupRows the same group_size"):
        GroupRows(2)(lamp_env(4).rollout(5, ActingModule(scripted()), break_when_any_done=False))
    with pytest.raises(ValueError, match=r"requires \['group_id'\], which OSWorldEnv\(group_size=\.\.\.\) writes"):
        GroupRows(SIZE)(batch.exclude("group_id"))
    with pytest.raises(ValueError, match=r"requires \[\('tokens', 'prompt'\).*the policy's forward writes"):
        GroupRows(SIZE)(batch.exclude("tokens"))
    with pytest.raises(ValueError, match=r"requires \['text'\], which the policy's forward as its action_key writes"):
        GroupRows(SIZE, action_key="text")(batch)
    with pytest.raises(ValueError, match=r"requires \[\('next', 'done'\), .*which OSWorldEnv"):
        GroupRows(SIZE)(batch.exclude("next"))  # its episodes would never end
    with pytest.raises(ValueError, match="requires 'screenshot_png' or 'screenshot'; got"):
        GroupRows(SIZE)(batch.exclude("screenshot_png"))


def test_buffers_are_off_by_default_and_forcing_them_names_the_setting() -> None:
    """Also through transforms and in workers; preallocated buffers drop the policy's tokens."""
    workers = SerialEnv(2, [lambda: lamp_env(1, seed=0), lambda: lamp_env(1, seed=7)])
    for env in (lamp_env(2), TransformedEnv(lamp_env(2), InitTracker()), workers):
        assert not stock_collector(env, use_buffers=None)._use_buffers
    forced = stock_collector(lamp_env(2), use_buffers=True)
    with pytest.raises(ValueError, match=r"the policy's forward writes; got .*: pass use_buffers=False to the coll"):
        next(iter(forced))
    forced.shutdown()


def stock_collector(env: Any, use_buffers: bool | None) -> Collector:
    return Collector(
        env,
        ActingModule(scripted()),
        frames_per_batch=6,
        total_frames=6,
        use_buffers=use_buffers,
        auto_register_policy_transforms=True,
        postproc=GroupRows(SIZE),
    )


def test_two_workers_of_one_seed_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    group_rows = GroupRows(SIZE)
    for _ in range(2):
        group_rows(lamp_env(1).rollout(30, ActingModule(scripted()), break_when_any_done=False))
    assert "do two workers share a seed?" in caplog.text
