"""Past responses are part of later prompts as their sampled token ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from history_rows import ShortPromptPolicy, required
from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import contexts_of, row_list
from bepa_torchrl.experts.rows import plan_free_rows, trace_rows
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.testing import lamp_task, lamp_vector, picture
from osworld_gym.types import PromptContext

STEPS = 5


@pytest.fixture(scope="module")
def policy() -> ShortPromptPolicy:
    return ShortPromptPolicy(max_new_tokens=8)


def assert_extended(prompts: Sequence[torch.Tensor], responses: Sequence[torch.Tensor]) -> None:
    for prompt, response, later in zip(prompts, responses, prompts[1:], strict=False):
        before = torch.cat((prompt, response))
        assert torch.equal(later[: len(before)], before)


def assert_rows_extended(rows: TensorDictBase) -> None:
    episode = row_list(rows)
    assert_extended([row[K.PROMPT_TOKENS] for row in episode], [row[K.RESPONSE_TOKENS] for row in episode])


def finished(drawn: Response, step: int, ends: Sequence[int]) -> torch.Tensor:
    """The response's first tokens; every second one ends with one of the end tokens, the others are cut off."""
    tokens = drawn.tokens[drawn.tokens != ends[0]][: 2 + step]
    return torch.cat((tokens, torch.tensor(ends[step // 2 % len(ends) :][:1]))) if step % 2 else tokens


@pytest.mark.parametrize("seed", range(10))
def test_each_prompt_extends_the_prompt_and_response_before_it(policy: ShortPromptPolicy, seed: int) -> None:
    """At temperature 2, where most responses have another tokenisation than their text."""
    shots, texts, tokens = [picture(seed, (64, 64))], [], []
    prompts: list[Prompt] = []
    for step in range(STEPS):
        context = PromptContext("mute", tuple(shots), tuple(texts), response_tokens=tuple(tokens))
        prompts += required(policy.render([context]))
        (drawn,) = policy.sample(prompts[-1:], [(seed, step)], temperature=2.0)
        ids = finished(drawn, step, policy.renderer.processor.end_token_ids)
        (text,) = policy.renderer.processor.decode_responses([ids.tolist()])
        shots.append(picture(100 * seed + step, (64, 64)))
        texts.append(text)
        tokens.append(tuple(ids.tolist()))
    assert_extended([prompt.tokens for prompt in prompts], [torch.tensor(ids) for ids in tokens])
    again = [tuple(policy.encode_response(text).tolist()) for text in texts]
    assert any(one[: len(other)] != other for one, other in zip(again, tokens, strict=True))
    (from_text,) = required(policy.render([PromptContext("mute", tuple(shots[:STEPS]), tuple(texts[: STEPS - 1]))]))
    assert not torch.equal(from_text.tokens, prompts[-1].tokens)  # what the token ids are for


def test_a_response_is_followed_by_one_end_token(policy: ShortPromptPolicy) -> None:
    """``<|im_end|>`` of the response is the template's; after another end token or none the template's is added."""
    im_end, other = policy.renderer.processor.end_token_ids
    shots = [picture(0, (64, 64)), picture(1, (64, 64))]
    for ids, ends in (((7, im_end), 1), ((7,), 1), ((7, other), 1), ((), 1)):
        (prompt,) = required(policy.render([PromptContext("mute", shots, ["x"], response_tokens=[ids])]))
        (start,) = required(policy.render([PromptContext("mute", shots[:1])]))
        rest = prompt.tokens[len(start.tokens) :].tolist()
        assert rest[: len(ids)] == list(ids)
        assert (prompt.tokens == im_end).sum() == (start.tokens == im_end).sum() + ends + 1  # and the next screenshot's


def test_text_and_its_token_ids_give_the_same_prompt(policy: ShortPromptPolicy) -> None:
    """For a converted expert's text, whose tokens are those of ``encode_response``."""
    text = "Thought: click mute\nAction: click(start_box='<|box_start|>(72,40)<|box_end|>')"
    shots = [picture(0, (64, 64)), picture(1, (64, 64))]
    ids = tuple(policy.encode_response(text).tolist())
    one, other = required(
        policy.render([PromptContext("mute", shots, [text]), PromptContext("mute", shots, [text], None, [ids])])
    )
    assert torch.equal(one.tokens, other.tokens)


def test_the_name_of_the_placeholder_in_a_text_is_text(policy: ShortPromptPolicy) -> None:
    shots = [picture(0, (64, 64)), picture(1, (64, 64))]
    hostile = "\ue000past response\ue001"
    (prompt,) = required(policy.render([PromptContext(hostile, shots, [hostile], None, [(7, 8)])]))
    assert prompt.tokens.tolist().count(7) >= 1
    required(policy.render([PromptContext(hostile, shots, [hostile])]))


def test_token_ids_of_some_responses_are_refused(policy: ShortPromptPolicy) -> None:
    shots = [picture(i, (64, 64)) for i in range(3)]
    with pytest.raises(ValueError, match="token ids are required of all 2 responses or of none, got 1"):
        policy.render([PromptContext("mute", shots, ["a", "b"], None, [(7,)])])


def test_episodes_and_their_plan_free_rows_extend(policy: ShortPromptPolicy) -> None:
    """Played on a desktop: three unparsable responses each, with a plan in the prompt."""
    jobs = [EpisodeJob(lamp_task(i), (3, i), 1, slot=i, plan="1. Press it.") for i in range(3)]
    with lamp_vector(2) as vector:
        results = run_episodes(policy, vector, jobs, temperature=2.0)
    for result in results:
        assert result.rows is not None
        assert len(result.rows) == 3
        assert_rows_extended(result.rows)
        assert_rows_extended(plan_free_rows(policy, result.rows))


def test_rows_of_an_experts_trace_extend(policy: ShortPromptPolicy) -> None:
    pairs = [(picture(i, (64, 64)), f"Thought: step {i}\n  \nAction: wait()") for i in range(3)]
    rows = trace_rows(policy, "task", "mute", pairs)
    assert_rows_extended(rows)
    again = required(policy.render(contexts_of(row_list(rows))))
    assert [p.tokens.tolist() for p in again] == [row[K.PROMPT_TOKENS].tolist() for row in row_list(rows)]


def test_a_template_that_drops_a_response_is_refused(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{%- for m in messages if m['role'] != 'assistant' -%}{{ m['role'] }}{%- endfor -%}"
    monkeypatch.setattr(policy.renderer.processor.tokenizer, "chat_template", template)
    shots = [picture(0, (64, 64)), picture(1, (64, 64))]
    with pytest.raises(ValueError, match="wrote 0 of 1 past responses"):
        policy.render([PromptContext("mute", shots, ["a"], None, [(7,)])])
