"""TraceReplacement and OldLogProb on real episodes with scripted outcomes: refresh, replace, mask, order."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase, lazy_stack

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, ScriptedPolicy, SeedKey, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import gradient_step
from osworld_gym.types import StopReason


def groups(outcomes: dict[int, str], *, policy: Any = None, group: int = 0) -> TensorDictBase:
    """Plays one group per entry: task number → outcomes by slot, ``+`` success, ``-`` failure, ``x`` desktop failure.

    A dead slot is played as a failure and then marked, as the rows of an interrupted episode would be.
    """
    jobs = [
        EpisodeJob(lamp_task(number), (0, group, number, slot), 3, group_id=group + i, slot=slot)
        for i, (number, slots) in enumerate(outcomes.items())
        for slot in range(len(slots))
    ]
    player = policy or ScriptedPolicy(lambda _: False)
    player.wins = lambda key: outcomes[key[2]][key[3]] == "+"
    with lamp_vector(4) as vector:
        results = run_episodes(player, vector, jobs)
    rows = []
    for result in results:
        for row in row_list(result.rows):
            if outcomes[result.job.key[2]][result.job.slot] == "x":
                row.set_non_tensor(K.STOP_REASON, StopReason.env_error.value)
            rows.append(row)
    return stack_rows(rows)


def seed_trace(number: int, *, source: str = "self_rolled", policy: Any = None) -> TensorDictBase:
    """A success of the task from a self-rollout, with a plan in its prompts."""
    job = EpisodeJob(lamp_task(number), (9, 9, number, 0), 1, plan="1. Press it.")
    player = policy or ScriptedPolicy(lambda _: True)
    player.wins = lambda _: True
    with lamp_vector(1) as vector:
        (result,) = run_episodes(player, vector, [job])
    for row in row_list(result.rows):
        row.set_non_tensor(K.SOURCE, source)
        row[K.POLICY_VERSION] = torch.tensor(0)
    return result.rows


def seeded(*numbers: int) -> TaskTraceCache:
    cache = TaskTraceCache()
    for number in numbers:
        cache.put(f"lamp-{number}", seed_trace(number))
    return cache


def table(batch: TensorDictBase) -> list[list[tuple[int, str, float, bool]]]:
    """Per group: (slot, source, advantage rounded, off-policy) of every episode."""
    out = []
    for group in groups_of(batch):
        rows = [episode.rows[0] for episode in group]
        out.append(
            [(int(r[K.SLOT]), r[K.SOURCE], round(float(r[K.ADVANTAGE]), 4), bool(r[K.OFF_POLICY])) for r in rows]
        )
    return out


def test_first_valid_failure_is_replaced_by_the_trace() -> None:
    """Slot 0's desktop failed, so slot 1 is the first valid failure: the group is trace, failure, failure.

    One success among three: A_succ = sqrt(2) = 1.4142, A_fail = -sqrt(1/2) = -0.7071 (eps = 1e-6 is below 4 digits).
    """
    transform = TraceReplacement(seeded(0), refresh=True)
    assert table(transform(groups({0: "x---"}))) == [
        [(1, "self_rolled", 1.4142, True), (2, "on_policy", -0.7071, False), (3, "on_policy", -0.7071, False)]
    ]
    (report,) = transform.reports
    assert (report.valid, report.successes, report.injected, report.replaced_slot) == (3, 0, "self_rolled", 1)


def test_a_single_valid_failure_gets_no_trace() -> None:
    """The trace alone would have advantage 0: nothing is learned of it, so that it is no injection."""
    cache = seeded(0)
    transform = TraceReplacement(cache)
    assert table(transform(groups({0: "x-x"}))) == [[(1, "on_policy", 0.0, False)]]
    (report,) = transform.reports
    assert (report.valid, report.injected, report.replaced_slot) == (1, None, None)
    assert (cache.counts("lamp-0"), cache.metadata("lamp-0").injected) == ((0, 0), 0)
    joined = TraceReplacement(cache, injection="always")(groups({0: "x-x"}))  # LUFFY: two members, which differ
    assert table(joined) == [[(1, "on_policy", -1.0, False), (3, "self_rolled", 1.0, True)]]


@pytest.mark.parametrize(("cache", "outcomes"), [(seeded, "-+"), (seeded, "--"), (TaskTraceCache, "--")])
def test_a_batch_is_finalised_once(cache: Any, outcomes: str) -> None:
    """With a refresh, with an injection, and with neither: the batch itself, and what it became."""
    filled = cache(0) if cache is seeded else cache()
    transform, batch = TraceReplacement(filled), groups({0: outcomes})
    finalised = transform(batch)
    counts = filled.counts("lamp-0")
    for again in (batch, finalised):
        with pytest.raises(ValueError, match=r"as they were sampled, got group 0 .* exactly once"):
            transform(again)
    assert filled.counts("lamp-0") == counts


def test_group_of_eight_gives_the_papers_advantages() -> None:
    """N = 8, k = 1 after replacement: A_succ = sqrt(7) = 2.645751, A_fail = -0.377964, with eps 1e-6 as below."""
    (group,) = list(groups_of(TraceReplacement(seeded(0))(groups({0: "--------"}))))
    values = [float(episode.rows[0][K.ADVANTAGE]) for episode in group]
    assert values == pytest.approx([2.645743] + [-0.377963] * 7, abs=1e-5)
    assert all(row[K.ADVANTAGE].shape == (1, 1) for episode in group for row in episode.rows)
    assert all(float(row[K.ADVANTAGE]) == values[i] for i, episode in enumerate(group) for row in episode.rows)


def test_success_refreshes_and_excludes_replacement() -> None:
    cache = seeded(0)
    transform = TraceReplacement(cache)
    assert table(transform(groups({0: "-+-"}))) == [
        [(0, "on_policy", -0.7071, False), (1, "on_policy", 1.4142, False), (2, "on_policy", -0.7071, False)]
    ]
    assert (transform.reports[0].refreshed, transform.reports[0].injected) == (True, None)
    assert cache.metadata("lamp-0").source == "on_policy"
    assert cache.get_trace("lamp-0")[0][K.SLOT] == 1


def test_static_cache_is_not_refreshed() -> None:
    cache = seeded(0)
    TraceReplacement(cache, refresh=False)(groups({0: "-+-"}))
    assert cache.metadata("lamp-0").source == "self_rolled"


def test_refresh_requires_the_least_number_of_successes() -> None:
    cache = seeded(0, 1)
    transform = TraceReplacement(cache, min_successes=2)
    batch = groups({0: "-+-", 1: "-++"})
    assert [(r.successes, r.refreshed, r.injected) for r in _reports(transform, batch)] == [
        (1, False, None),
        (2, True, None),
    ]
    assert [cache.metadata(f"lamp-{i}").source for i in (0, 1)] == ["self_rolled", "on_policy"]


def test_need_weighs_the_injected_trace_by_the_share_of_failed_groups() -> None:
    """Fail: 1/1; success; fail: 2 of 3 groups. N = 2 has advantages +1 and -1; only the trace's is multiplied."""
    transform = TraceReplacement(seeded(0), weight="need")
    for outcomes, advantages in (("--", (1.0, -1.0)), ("+-", (1.0, -1.0)), ("--", (2 / 3, -1.0))):
        ((first, second),) = table(transform(groups({0: outcomes})))
        assert (first[2], second[2]) == pytest.approx(advantages, abs=1e-4)


@pytest.mark.parametrize(
    ("kept", "advantages"),
    [
        ("all", (3**0.5, -1 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5)),
        ("trace", (3**0.5, 0.0, 0.0, 0.0)),
        ("failures", (0.0, -1 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5)),
    ],
)
def test_a_part_of_a_group_with_an_injected_trace_keeps_its_advantages(kept: str, advantages: tuple[float]) -> None:
    """N = 4, one success: mean 1/4, deviation √3/4, so √3 and -1/√3; groups without an injected trace keep all."""
    transform = TraceReplacement(seeded(0), kept=kept)
    rows = transform(groups({0: "----", 1: "+---"}))
    transform.check_whole_groups(rows)
    injected, own = table(rows)
    assert [episode[2] for episode in injected] == pytest.approx(advantages, abs=1e-4)
    assert [episode[2] for episode in own] == pytest.approx((3**0.5, *[-1 / 3**0.5] * 3), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_successes": 0}, "min_successes: expected an integer >= 1, got 0"),
        ({"min_successes": 1.5}, "min_successes: expected an integer >= 1, got 1.5"),
        ({"advantage": "rloo"}, "advantage must be one of grpo, leave_one_out, maxrl; got 'rloo'"),
        ({"std": "sample"}, "std must be one of population, bessel, none; got 'sample'"),
        ({"eps": -1.0}, "eps must be a finite number >= 0; got -1"),
        ({"weight": "often"}, "weight must be one of one, need; got 'often'"),
        ({"weight": "need", "refresh": False}, "counts refreshes"),
        ({"weight": "need", "min_successes": 2}, "cache.min_successes=2 leaves out"),
        ({"weight": "need", "injection": "always"}, "is for injection=on_failure, got always"),
        ({"kept": "none"}, "kept must be one of all, trace, failures; got 'none'"),
        ({"kept": "trace", "injection": "always"}, "injected_kept=trace is for injection=on_failure, got always"),
        ({"kept": "failures", "weight": "need"}, "that cache.injected_kept=failures sets to 0"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TraceReplacement(seeded(0), **options)


def test_wrong_rows_leave_the_cache_as_it_was() -> None:
    """Groups before a wrong one do not refresh the cache; a single row is no batch, and was dropped without a word."""
    rows, cache = groups({0: "+-", 1: "--"}), TaskTraceCache()
    transform = TraceReplacement(cache)
    for wrong in (row_list(rows)[0], lazy_stack([rows, rows])):
        with pytest.raises(ValueError, match=r"expected rows \[R\], got batch size .*; GroupRows makes rows"):
            transform(wrong)
        with pytest.raises(ValueError, match=r"expected rows \[R\]"):
            OldLogProb(ScriptedLearner(lambda _: False), rows="all")(wrong)
    for row in row_list(rows):
        if int(row[K.GROUP_ID]) == 1 and int(row[K.SLOT]) == 0:
            row.set(K.RETURN, torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="group 1, slot 0: expected a finite return, got nan"):
        transform(rows)
    assert len(cache) == cache.stats()["refreshes"] == 0


def test_total_failure_without_a_trace_stays_and_has_no_advantage() -> None:
    transform = TraceReplacement(seeded(7))
    assert table(transform(groups({0: "---"}))) == [[(slot, "on_policy", 0.0, False) for slot in range(3)]]
    assert transform.reports[0].injected is None


def test_total_success_has_no_advantage_and_no_nan() -> None:
    assert table(TraceReplacement(seeded())(groups({0: "+++"}))) == [[(s, "on_policy", 0.0, False) for s in range(3)]]


def test_refresh_is_seen_by_a_later_group_of_the_same_iteration_but_not_by_an_earlier_one() -> None:
    cache = TaskTraceCache()
    transform = TraceReplacement(cache)
    later = stack_rows([*row_list(groups({0: "+-"})), *row_list(groups({0: "--"}, group=1))])
    assert [[row[1:] for row in group] for group in table(transform(later))] == [
        [("on_policy", 1.0, False), ("on_policy", -1.0, False)],
        [("on_policy", 1.0, True), ("on_policy", -1.0, False)],
    ]
    earlier = stack_rows([*row_list(groups({1: "--"})), *row_list(groups({1: "+-"}, group=1))])
    assert [report.injected for report in _reports(transform, earlier)] == [None, None]
    assert cache.contains("lamp-1")


def _reports(transform: TraceReplacement, batch: TensorDictBase) -> list[Any]:
    transform(batch)
    return transform.reports


def test_injected_trace_never_refreshes_the_cache_and_is_counted() -> None:
    cache = seeded(0)
    transform = TraceReplacement(cache)
    for count in (1, 2):
        transform(groups({0: "--"}))
        assert (cache.metadata("lamp-0").source, cache.metadata("lamp-0").injected) == ("self_rolled", count)
    trace = cache.get_trace("lamp-0")
    assert K.ADVANTAGE not in trace[0]


def test_group_of_failed_desktops_is_left_out() -> None:
    assert table(TraceReplacement(seeded(0))(groups({0: "xx", 1: "-+"})))[0][0][1] == "on_policy"
    assert len(table(TraceReplacement(seeded(0))(groups({0: "xx", 1: "-+"})))) == 1


def test_luffy_adds_the_trace_always() -> None:
    """Three rollouts and the trace: 2 of 4 succeed, so A = +1 and -1; without a trace it is plain GRPO."""
    transform = TraceReplacement(seeded(0), injection="always", refresh=False)
    rows = table(transform(groups({0: "-+-", 1: "--"})))
    assert rows[0] == [
        (0, "on_policy", -1.0, False),
        (1, "on_policy", 1.0, False),
        (2, "on_policy", -1.0, False),
        (3, "self_rolled", 1.0, True),
    ]
    assert rows[1] == [(0, "on_policy", 0.0, False), (1, "on_policy", 0.0, False)]


def test_rl_sft_adds_the_trace_to_the_group_without_advantage() -> None:
    rows = table(TraceReplacement(seeded(0), injection="additional", refresh=False)(groups({0: "+-"})))
    assert rows == [[(0, "on_policy", 1.0, False), (1, "on_policy", -1.0, False), (2, "self_rolled", 0.0, True)]]


def test_bessel_and_no_std() -> None:
    """2 of 4 succeed: 0.5 / (sqrt(1/3)) = 0.8660 with Bessel's correction, 0.5 without any division."""
    for std, value in (("bessel", 0.8660), ("none", 0.5)):
        (group,) = table(TraceReplacement(None, injection="never", refresh=False, std=std)(groups({0: "++--"})))
        assert [abs(row[2]) for row in group] == [value] * 4


@pytest.mark.parametrize(("kind", "success", "failure"), [("leave_one_out", 1.0, -1 / 3), ("maxrl", 3.0, -1.0)])
def test_an_injected_trace_is_a_member_as_any_other(kind: str, success: float, failure: float) -> None:
    """One success among four: 1 - 0 and 0 - 1/3; with MaxRL (1 - 1/4) / (1/4) and -1, injected or sampled."""
    transform = TraceReplacement(seeded(0), advantage=kind)
    batch = transform(groups({0: "----"}))
    (group,) = table(batch)
    assert [row[2] for row in group] == pytest.approx([success, failure, failure, failure], abs=1e-4)
    assert [row[3] for row in group] == [True, False, False, False]
    transform.check_whole_groups(batch)
    (group,) = table(TraceReplacement(seeded(0), advantage=kind)(groups({0: "-+--"})))
    assert [row[2] for row in group] == pytest.approx([failure, success, failure, failure], abs=1e-4)


def test_replacement_without_a_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="injection=on_failure with refresh=False requires a cache"):
        TraceReplacement(None, refresh=False)


def test_injected_rows_get_plan_free_prompts_and_old_log_probs() -> None:
    policy = ScriptedPolicy(lambda _: False)
    batch = TraceReplacement(seeded(0))(groups({0: "--"}))
    injected, failed = (episode.rows for episode in next(groups_of(batch)))
    assert b"1. Press it." in bytes(injected[0][K.PROMPT_TOKENS].tolist())
    assert all(math.isnan(v) for v in injected[0][K.OLD_LOG_PROB].tolist())
    OldLogProb(policy)(batch)
    assert bytes(injected[0][K.PROMPT_TOKENS].tolist()) == b"Switch on lamp 0"
    assert bytes(injected[1][K.PROMPT_TOKENS].tolist()) == b"Switch on lamp 0" + injected[0][K.RESPONSE].encode()
    assert injected[0][K.IMAGES] == (injected[0][K.SCREENSHOT],)
    assert injected[0][K.OLD_LOG_PROB].tolist() == [-0.25] * 7
    assert injected[0][K.ROLLOUT_LOG_PROB].tolist() == [-0.5] * 7
    assert failed[0][K.OLD_LOG_PROB].tolist() == [-0.5] * 7
    OldLogProb(policy, rows="all", max_tokens=200)(batch)
    assert failed[0][K.OLD_LOG_PROB].tolist() == [-0.25] * 7


def test_trace_that_does_not_fit_the_model_is_named() -> None:
    batch = TraceReplacement(seeded(0))(groups({0: "--"}))
    with pytest.raises(ValueError, match="trace of task 'lamp-0' does not fit the model at step 1"):
        OldLogProb(ScriptedPolicy(lambda _: False, max_prompt_bytes=30))(batch)


def test_ratio_of_an_injected_trace_is_one_at_the_first_step() -> None:
    """A real model: the trace was sampled with a plan, its old log-probs are those of the plan-free prompt."""
    learner = ScriptedLearner(lambda _: False)
    cache = TaskTraceCache()
    cache.put("lamp-0", seed_trace(0, policy=learner))
    batch = OldLogProb(learner)(TraceReplacement(cache)(groups({0: "---"}, policy=learner)))
    row = next(groups_of(batch))[0].rows[0]
    assert not torch.allclose(row[K.OLD_LOG_PROB], row[K.ROLLOUT_LOG_PROB], atol=1e-3)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.0)
    output = gradient_step(BEPALoss(learner), optimizer, batch)
    assert output["ratio_mean_off_policy"] == pytest.approx(1.0, abs=1e-5)
    assert output["ratio_max_off_policy"] == pytest.approx(1.0, abs=1e-4)
    assert output["units_off_policy"] > 0


def test_cache_fills_and_replaces_over_iterations_at_the_success_rate() -> None:
    """A policy that succeeds at task 0 in iteration 0 only, at task 1 never, at task 2 in every slot 1.

    Iteration 0 refreshes tasks 0 and 2; afterwards task 0 fails totally and its own trace comes back; task 1 never
    has one.
    """

    def wins(key: SeedKey) -> bool:
        _, iteration, task, slot = key
        return (task == 0 and iteration == 0 and slot == 2) or (task == 2 and slot == 1)

    replacement = TraceReplacement(TaskTraceCache())
    env = LampEnv(lamp_vector(4))
    collector = GroupRolloutCollector(
        env, ScriptedPolicy(wins), [lamp_task(i) for i in range(3)], groups=3, group_size=4, postproc=replacement
    )
    seen = []
    for _, batch in zip(range(3), collector, strict=False):
        reports = sorted(replacement.reports, key=lambda report: report.task_id)
        seen.append([(report.refreshed, report.injected) for report in reports])
        assert sum(episode.reward for group in groups_of(batch) for episode in group) == 2.0
    assert seen[0] == [(True, None), (False, None), (True, None)]
    assert seen[1] == seen[2] == [(False, "on_policy"), (False, None), (True, None)]
    collector.shutdown()
