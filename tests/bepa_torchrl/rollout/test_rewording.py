"""A refresh of one part of a cached trace: words or actions, with responses written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.rollout.rewording import Rewording, same_actions
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import DONE, PRESS, ScriptedPolicy, SeedKey, lamp_task, lamp_vector
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling

CLICK = "click(start_box='<|box_start|>({x},4)<|box_end|>')"


def saying(thought: str, *, x: int = 4) -> str:
    return f"Thought: {thought}\nAction: {CLICK.format(x=x)}"


class Talker(ScriptedPolicy):
    """Episodes as scripted; the responses of a rewording are what ``says`` returns for (step, try)."""

    version = 7
    image_scaling = ImageScaling(factor=8, min_pixels=64, max_pixels=64)  # the lamp's 8 × 8 pixels as they are

    def __init__(self, wins: Callable[[SeedKey], bool], says: Callable[[int, int], str] = lambda *_: DONE) -> None:
        super().__init__(wins)
        self.says, self.talks = says, False

    def encode_response(self, text: str) -> Tensor:
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    def sample(self, prompts: Sequence[Prompt], keys: Sequence[SeedKey], *, temperature: float = 1.0) -> list[Response]:
        if not self.talks:
            return super().sample(prompts, keys, temperature=temperature)
        texts = [self.says(key[-2], key[-1]) for key in keys]
        return [Response(text, self.encode_response(text), torch.zeros(len(text.encode()))) for text in texts]


def played(outcomes: str, *, plan: str | None = None, detour: int = 0, group: int = 5) -> TensorDictBase:
    """Rows of a group on lamp 0: ``+`` success, ``-`` failure; a success takes ``detour`` clicks more."""
    policy = Talker(lambda key: outcomes[key[3]] == "+")
    policy.detour = lambda _: detour
    jobs = [EpisodeJob(lamp_task(0), (0, 1, 0, slot), 3, group, slot, plan) for slot in range(len(outcomes))]
    with lamp_vector(2) as vector:
        results = run_episodes(policy, vector, jobs)
    return stack_rows(row for result in results for row in row_list(result.rows))


def seeded() -> TaskTraceCache:
    """A cache with LEVEL-1's trace of lamp 0: press, done."""
    rows = played("+", plan="1. Press it.", group=0)
    for row in row_list(rows):
        row.set_non_tensor(K.SOURCE, "self_rolled")
        row.set_non_tensor(K.PROVENANCE, "the expert's")
        row.set(K.POLICY_VERSION, torch.tensor(0))
    cache = TaskTraceCache()
    cache.put("lamp-0", rows)
    return cache


def rewording(part: str, says: Callable[[int, int], str], **options: object) -> Rewording:
    policy = Talker(lambda _: False, says)
    policy.talks = True
    found = Rewording(policy, part, protocol="uitars", seed=3, plans={"lamp-0": "PLAN"}, **options)  # type: ignore[arg-type]
    return found


def responses(trace: TensorDictBase) -> list[str]:
    return [str(row[K.RESPONSE]) for row in row_list(trace)]


def test_words_are_new_and_actions_the_cached_ones() -> None:
    """Step 0: the second try acts as the trace does; step 1: none does, so that its response stays."""
    cache = seeded()
    before = cache.get_trace("lamp-0")

    def says(step: int, number: int) -> str:
        return saying("elsewhere", x=1) if number == 0 else saying(f"well, press it, {step} {number}")

    words = rewording("wording", says)
    transform = TraceReplacement(cache, rewording=words)
    transform(played("+-", detour=2))
    trace = cache.get_trace("lamp-0")
    assert responses(before) == [PRESS, DONE]
    assert responses(trace) == [saying("well, press it, 0 1"), DONE]
    (report,) = transform.reports
    assert (report.refreshed, report.reworded) == (True, 0.5)
    assert cache.counts("lamp-0") == (0, 1)
    found = cache.metadata("lamp-0")
    assert (found.source, found.policy_version, found.steps, found.provenance) == ("self_rolled", 7, 2, "the expert's")
    assert [row[K.SCREENSHOT] for row in row_list(trace)] == [row[K.SCREENSHOT] for row in row_list(before)]
    first, second = row_list(trace)
    assert bytes(first[K.RESPONSE_TOKENS].tolist()).decode() == saying("well, press it, 0 1")
    assert bytes(second[K.PROMPT_TOKENS].tolist()).decode() == "Switch on lamp 0" + saying("well, press it, 0 1")
    for row in (first, second):
        assert row[K.ROLLOUT_LOG_PROB].isnan().all()
        assert row[K.ROLLOUT_LOG_PROB].shape == row[K.OLD_LOG_PROB].shape == row[K.RESPONSE_TOKENS].shape
    assert all(context.plan is None for context in words.policy.rendered)  # type: ignore[attr-defined]


def test_actions_are_the_new_successs_and_words_those_with_the_plan() -> None:
    """The success has three clicks; its words are sampled with the plan in the prompt and trained without."""
    cache = seeded()
    actions = rewording("actions", lambda step, _: saying(f"just press {step}") if step < 2 else "unreadable")
    transform = TraceReplacement(cache, rewording=actions)
    transform(played("-+", detour=1))
    trace = cache.get_trace("lamp-0")
    assert responses(trace) == [saying("just press 0"), saying("just press 1"), DONE]
    assert transform.reports[0].reworded == pytest.approx(2 / 3)
    found = cache.metadata("lamp-0")
    assert (found.source, found.policy_version, found.provenance) == ("on_policy", 7, "")
    plans = [context.plan for context in actions.policy.rendered]  # type: ignore[attr-defined]
    assert plans == ["PLAN", "PLAN", "PLAN", None, None, None]  # the last three: the prompts of training
    assert b"PLAN" not in bytes(row_list(trace)[2][K.PROMPT_TOKENS].tolist())
    # as an injected trace it is a copy of the rollout whose actions it has, scored by the current policy
    (group,) = [OldLogProb(actions.policy)(transform(played("--", group=6)))]
    injected = [row for row in row_list(group) if bool(row[K.OFF_POLICY])]
    assert [row[K.COPIED_FROM] for row in injected] == ["5-1"] * 3
    assert {(int(row[K.GROUP_ID]), int(row[K.SLOT])) for row in injected} == {(6, 0)}
    assert all(float(row[K.OLD_LOG_PROB].mean()) == -0.25 for row in injected)


def test_without_a_cached_trace_the_success_itself_enters() -> None:
    cache = TaskTraceCache()
    transform = TraceReplacement(cache, rewording=rewording("wording", lambda *_: saying("never read")))
    transform(played("+"))
    assert responses(cache.get_trace("lamp-0")) == [PRESS, DONE]
    assert (transform.reports[0].refreshed, transform.reports[0].reworded) == (True, None)
    assert cache.metadata("lamp-0").source == "on_policy"


def test_a_trace_that_no_longer_fits_stays_whole() -> None:
    cache = seeded()
    words = rewording("wording", lambda step, _: saying("a" * 100) if step == 0 else DONE)
    words.policy.max_prompt_bytes = 120  # type: ignore[attr-defined]
    transform = TraceReplacement(cache, rewording=words)
    transform(played("+"))
    assert responses(cache.get_trace("lamp-0")) == [PRESS, DONE]
    assert transform.reports[0].reworded == 0.0


def test_a_trace_without_a_new_thought_is_as_old_as_before() -> None:
    """The cached words were sampled by version 0, and so they say: ``cache/staleness`` is theirs."""
    cache = seeded()
    transform = TraceReplacement(cache, rewording=rewording("wording", lambda *_: saying("elsewhere", x=1)))
    transform(played("+"))
    assert transform.reports[0].reworded == 0.0
    assert cache.metadata("lamp-0").policy_version == 0
    assert not cache.get_trace("lamp-0")[0][K.ROLLOUT_LOG_PROB].isnan().any()


def test_responses_depend_on_seed_group_step_and_try_only(tmp_path: Path) -> None:
    """So a resumed run writes the same traces; the saved cache gives them back."""
    keys: list[list[SeedKey]] = []
    for _ in range(2):
        cache, words = seeded(), rewording("wording", lambda step, number: saying(f"{step} {number}"), tries=2)
        asked: list[SeedKey] = []
        sample = words.policy.sample
        words.policy.sample = lambda prompts, of, *, temperature=1.0, asked=asked, sample=sample: (  # type: ignore[method-assign,misc]
            asked.extend(of) or sample(prompts, of, temperature=temperature)
        )
        TraceReplacement(cache, rewording=words)(played("+"))
        keys.append(asked)
    assert keys[0] == keys[1]
    assert [key[1:] for key in keys[0]] == [(5, 0, 0), (5, 0, 1), (5, 1, 0), (5, 1, 1)]
    cache.dumps(tmp_path / "cache")
    again = TaskTraceCache()
    again.loads(tmp_path / "cache")
    assert responses(again.get_trace("lamp-0")) == [saying("0 0"), DONE]
    assert again.get_trace("lamp-0")[0][K.ROLLOUT_LOG_PROB].isnan().all()


def test_the_paper_refresh_is_unchanged_and_the_chosen_success_is_the_one_that_enters() -> None:
    cache = TaskTraceCache(seed=2)
    batch = played("++++")
    for row in row_list(batch):
        row.set(K.PROMPT_TOKENS, torch.tensor([int(row[K.SLOT])]))
    traces = [stack_rows(row for row in row_list(batch) if int(row[K.SLOT]) == slot) for slot in range(4)]
    slots = []
    for _ in range(6):
        chosen = cache.chosen("lamp-0", traces)
        cache.refresh("lamp-0", traces)
        assert torch.equal(chosen[0][K.PROMPT_TOKENS], cache.get_trace("lamp-0")[0][K.PROMPT_TOKENS])
        slots.append(int(chosen[0][K.SLOT]))
    assert len(set(slots)) > 1
    with pytest.raises(ValueError, match="rule=all puts every success"):
        TaskTraceCache(rule="all").chosen("lamp-0", traces)


def test_what_cannot_be_reworded_is_refused() -> None:
    words = rewording("wording", lambda *_: DONE)
    for options in ({"refresh": False, "injection": "on_failure"}, {"cache": TaskTraceCache(rule="all")}):
        given = {"cache": TaskTraceCache(), **options}
        with pytest.raises(ValueError, match="refresh=wording is for methods that refresh one trace per task"):
            TraceReplacement(given.pop("cache"), rewording=words, **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="part must be one of wording, actions; got 'trace'"):
        rewording("trace", lambda *_: DONE)
    with pytest.raises(ValueError, match="tries: expected an integer >= 1, got 0"):
        rewording("wording", lambda *_: DONE, tries=0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Action("click", (10.0, 10.0)), Action("click", (12.0, 11.0)), True),  # 2 % of 100 and of 50
        (Action("click", (10.0, 10.0)), Action("click", (13.0, 10.0)), False),
        (Action("click", (10.0, 10.0)), Action("click", (10.0, 12.0)), False),
        (Action("click", (10.0, 10.0)), Action("click"), False),
        (Action("click", (10.0, 10.0)), Action("left_double", (10.0, 10.0)), False),
        (Action("drag", (1.0, 1.0), (9.0, 9.0)), Action("drag", (1.0, 1.0), (40.0, 9.0)), False),
        (Action("type", content="a"), Action("type", content="b"), False),
        (Action("hotkey", key="ctrl c"), Action("hotkey", key="ctrl c"), True),
    ],
)
def test_same_actions_by_hand(one: Action, other: Action, same: bool) -> None:
    """On a screen of 100 × 50 pixels that the model sees as it is."""
    scaling = ImageScaling(factor=1, min_pixels=1, max_pixels=10_000)
    assert same_actions([one], [other], scaling, (100, 50)) == same
    assert not same_actions([one, one], [other], scaling, (100, 50))


def test_points_in_fractions_are_compared_on_the_screen() -> None:
    scaling = ImageScaling(relative=1000)
    near, far = Action("click", (520.0, 500.0)), Action("click", (521.0, 500.0))
    assert same_actions([Action("click", (500.0, 500.0))], [near], scaling, (1920, 1080))
    assert not same_actions([Action("click", (500.0, 500.0))], [far], scaling, (1920, 1080))
