"""Sampling: seed keys, the inverse CDF, batches, and the sampler against transformers' generate."""

import pytest
import torch

from bepa_torchrl.policies.keyed_sampling import inverse_cdf
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.transformers.sampler import budget_batches
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.types import PromptContext

NEW = 12


@pytest.fixture(scope="module")
def policy():
    return TransformersPolicy(small_checkpoint(), preset="compact", max_new_tokens=NEW, max_prompt_tokens=200)


@pytest.fixture(scope="module")
def prompts(policy):
    words = ("open the trash", "mute", "type hello world and empty the trash now", "open the trash")
    contexts = [PromptContext(word, [picture(i % 3)]) for i, word in enumerate(words)]
    return policy.render(contexts)  # rows 0 and 3: same words, picture 0 both: one prefill


KEYS = [(7, 0, task, 0, 0) for task in range(4)]


def test_inverse_cdf_by_hand():
    # probabilities .2, 0, .3, .5: intervals [0, .2), [.2, .5), [.5, 1)
    logits = torch.tensor([[0.2, 1.0, 0.3, 0.5]]).log()
    logits[:, 1] = -torch.inf
    points = [0.0, 0.19, 0.21, 0.49, 0.51, 1 - 2**-53]
    chosen = inverse_cdf(logits.expand(len(points), -1), torch.tensor(points, dtype=torch.float64))
    assert chosen.tolist() == [0, 0, 2, 2, 3, 3]


def test_the_last_token_with_mass_takes_the_end_of_the_interval():
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert inverse_cdf(logits, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [0]


def test_batches_stay_within_the_budget():
    batches = list(budget_batches([10, 50, 20, 90, 10], budget=100, max_rows=3))
    assert batches == [[3], [1, 2], [0, 4]]  # 90; 2 x 50; 2 x 10
    assert list(budget_batches([10] * 5, budget=1000, max_rows=2)) == [[0, 1], [2, 3], [4]]
    assert list(budget_batches([500], budget=100, max_rows=2)) == [[0]]
    assert list(budget_batches([], budget=100, max_rows=2)) == []


def test_samples_do_not_depend_on_batch_or_order(policy, prompts):
    together = policy.sample(prompts, KEYS)
    alone = [policy.sample([p], [k])[0] for p, k in zip(prompts, KEYS, strict=True)]
    order = [2, 0, 3, 1]
    shuffled = policy.sample([prompts[i] for i in order], [KEYS[i] for i in order])
    for row in range(4):
        assert torch.equal(together[row].tokens, alone[row].tokens)
        torch.testing.assert_close(together[row].log_probs, alone[row].log_probs, atol=1e-4, rtol=0)
        assert torch.equal(together[row].tokens, shuffled[order.index(row)].tokens)
    assert together[0].tokens.tolist() != together[3].tokens.tolist()  # same prompt, another seed key
    again = policy.sample(prompts, [(8, *key[1:]) for key in KEYS])
    assert any(not torch.equal(a.tokens, b.tokens) for a, b in zip(together, again, strict=True))


def test_greedy_equals_generate(policy, prompts):
    """transformers' generate on the full inputs (left padded, mm_token_type_ids): another path to the same tokens."""
    blocked = [[token] for token in policy.sampler.blocked_ids]
    inputs = policy.renderer.processor.model_inputs(prompts)
    generated = policy.model.generate(
        **inputs, do_sample=False, max_new_tokens=NEW, bad_words_ids=blocked, use_cache=True
    )[:, inputs["input_ids"].shape[1] :]
    for response, expected in zip(policy.sample(prompts, KEYS, temperature=0.0), generated.tolist(), strict=True):
        assert response.tokens.tolist() == expected[: len(response.tokens)]


def test_an_end_token_ends_the_row_and_leaves_the_others(policy, prompts, monkeypatch):
    """Tokens that were sampled early now end a row, so rows are dropped from the batch one by one."""
    free = policy.sample(prompts, KEYS)
    ends = frozenset(int(response.tokens[2 + 3 * i]) for i, response in enumerate(free[:3]))
    ends |= policy.sampler.end_token_ids
    monkeypatch.setattr(policy.sampler, "end_token_ids", ends)
    for response, before in zip(policy.sample(prompts, KEYS), free, strict=True):
        tokens = before.tokens.tolist()
        stop = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        assert response.tokens.tolist() == tokens[:stop]
        torch.testing.assert_close(response.log_probs, before.log_probs[:stop], atol=1e-4, rtol=0)


def test_special_tokens_are_never_sampled(policy, prompts):
    """With the image token made the likeliest by far, it is not sampled; its mass is included in the log-probs."""
    image = policy.renderer.processor.image_token_id
    embedding = policy.model.get_input_embeddings().weight
    prompt = prompts[1]
    before = policy.sample([prompt] * 40, [(i,) for i in range(40)], temperature=5.0)
    drawn = {token for response in before for token in response.tokens.tolist()}
    assert image not in drawn
    assert drawn.isdisjoint(policy.sampler.blocked_ids)
    assert image in policy.sampler.blocked_ids
    assert len(drawn) > embedding.shape[0] // 4  # hot enough to reach most of the vocabulary


def test_frequencies_follow_the_distribution(policy, prompts):
    """400 first tokens of one prompt: the most likely token's frequency is its probability (4 sigma)."""
    prompt = prompts[0]
    responses = policy.sample([prompt] * 400, [(3, i) for i in range(400)])
    greedy = policy.sample([prompt], [(0,)], temperature=0.0)[0]
    likeliest, p = int(greedy.tokens[0]), float(greedy.log_probs[0].exp())
    hits = sum(int(response.tokens[0]) == likeliest for response in responses)
    assert abs(hits - 400 * p) < 4 * (400 * p * (1 - p)) ** 0.5 + 1


def test_bad_arguments(policy, prompts):
    with pytest.raises(ValueError, match="temperature"):
        policy.sample(prompts, KEYS, temperature=-1.0)
    with pytest.raises(ValueError, match="one key per prompt"):
        policy.sample(prompts, KEYS[:2])
    assert policy.sample([], []) == []
