"""TransformersPolicy against the plain model, and with TorchRL's losses and collectors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack
from torchrl.data import LazyStackStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives.llm import GRPOLoss
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from bepa_torchrl.data import keys
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.policies.tensordict_io import response_rows
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.types import PromptContext, Screenshot

WORDS = ("open the trash", "mute", "type hello world and empty the trash now")


def make_policy(**options):
    return TransformersPolicy(small_checkpoint(), preset="compact", max_new_tokens=10, **options)


@pytest.fixture(scope="module")
def policy():
    return make_policy()


@pytest.fixture(scope="module")
def prompts(policy):
    return policy.render([PromptContext(word, [picture(i)]) for i, word in enumerate(WORDS)])


@pytest.fixture(scope="module")
def responses(policy):
    """Responses of different lengths with fixed tokens."""
    texts = ("Thought: open\nAction: wait()", "mute", "Thought: click mute\nAction: finished(content='done')")
    tokens = [policy.encode_response(text) for text in texts]
    return [Response(text, t, torch.zeros(len(t))) for text, t in zip(texts, tokens, strict=True)]


def plain_log_probs(policy, prompt, response):
    """Log-probs from transformers' forward on the whole sequence, with full logits."""
    inputs = policy.renderer.processor.model_inputs([Prompt(torch.cat((prompt.tokens, response)), prompt.images)])
    logits = policy.model(**inputs).logits[0, len(prompt.tokens) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, response[:, None]).squeeze(-1)


def test_is_a_rollout_policy(policy):
    assert isinstance(policy, Policy)


def test_get_dist_equals_the_plain_forward(policy, prompts, responses):
    dist = policy.get_dist(response_rows(prompts, responses))
    lengths = [len(response.tokens) for response in responses]
    assert dist.log_probs.shape == dist.mask.shape == (3, max(lengths))
    assert dist.mask.sum(-1).tolist() == lengths
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        expected = plain_log_probs(policy, prompt, response.tokens)
        torch.testing.assert_close(dist.log_probs[row, -lengths[row] :], expected, atol=1e-4, rtol=0)
        assert (dist.log_probs[row, : -lengths[row] or None] == 0).all() or lengths[row] == max(lengths)


def test_sampled_log_probs_are_those_of_get_dist(policy, prompts):
    sampled = policy.sample(prompts, [(1, i) for i in range(3)])
    log_probs = policy.log_prob(response_rows(prompts, sampled))
    for row, response in enumerate(sampled):
        torch.testing.assert_close(log_probs[row, -len(response.tokens) :], response.log_probs, atol=1e-4, rtol=0)


def test_at_temperature_two_old_and_new_log_probs_are_of_the_sampled_distribution(policy, prompts):
    """Without the temperature in the scorer the ratios of an unchanged policy were far from 1."""
    keys_of_rows = [(3, 0, 0, i, 0) for i in range(len(prompts))]
    hot = policy.sample(prompts, keys_of_rows, temperature=2.0)
    tokens = [response.tokens for response in hot]
    cold, _ = policy.response_log_probs(prompts, tokens)
    policy.temperature = 2.0
    try:
        scored, _ = policy.response_log_probs(prompts, tokens)
    finally:
        policy.temperature = 1.0
    for response, same, other in zip(hot, scored, cold, strict=True):
        torch.testing.assert_close(response.log_probs, same.detach(), atol=1e-4, rtol=1e-4)
        assert (response.log_probs - other).abs().max() > 0.05


def test_padding_and_batch_size_change_nothing(policy, prompts, responses):
    together = policy.get_dist(response_rows(prompts, responses))
    small = make_policy(max_batch_tokens=1)  # one row per forward
    apart = small.get_dist(response_rows(prompts, responses))
    torch.testing.assert_close(together.log_probs, apart.log_probs, atol=1e-4, rtol=0)
    torch.testing.assert_close(together.token_entropy, apart.token_entropy, atol=1e-4, rtol=0)


def test_the_picture_matters(policy, prompts, responses):
    other = [Prompt(prompt.tokens, (picture(99),)) for prompt in prompts]
    seen = policy.log_prob(response_rows(prompts, responses))
    unseen = policy.log_prob(response_rows(other, responses))
    assert (seen - unseen).abs().max() > 1e-2


def test_two_pictures_in_one_prompt():
    policy = TransformersPolicy(
        small_checkpoint(), preset="table", history="last_k", history_images=2, max_new_tokens=6
    )
    context = PromptContext("mute", [picture(0), picture(1), picture(2)], ["Thought: a\nAction: wait()", "b"])
    (prompt,) = policy.render([context])
    assert prompt.images == (picture(1), picture(2))
    assert int((prompt.tokens == policy.renderer.processor.image_token_id).sum()) == 128
    response = policy.encode_response("Thought: mute")
    (found,), _ = policy.response_log_probs([prompt], [response])
    torch.testing.assert_close(found, plain_log_probs(policy, prompt, response), atol=1e-4, rtol=0)
    swapped = Prompt(prompt.tokens, prompt.images[::-1])
    assert (policy.response_log_probs([swapped], [response])[0][0] - found).abs().max() > 1e-3
    (sampled,) = policy.sample([prompt], [(0,)])
    torch.testing.assert_close(
        policy.response_log_probs([prompt], [sampled.tokens])[0][0], sampled.log_probs, atol=1e-4, rtol=0
    )


def test_gradients_equal_the_plain_forward(prompts, responses):
    chunked, plain = make_policy(), make_policy()
    weights = [torch.linspace(-1, 1, len(response.tokens)) for response in responses]
    found, _ = chunked.response_log_probs(prompts, [response.tokens for response in responses])
    sum((f * w).sum() for f, w in zip(found, weights, strict=True)).backward()
    for prompt, response, weight in zip(prompts, responses, weights, strict=True):
        (plain_log_probs(plain, prompt, response.tokens) * weight).sum().backward()
    expected = dict(plain.model.named_parameters())
    for name, parameter in chunked.model.named_parameters():
        assert parameter.grad is not None, name
        scale = expected[name].grad.abs().max() + 1e-6
        torch.testing.assert_close(parameter.grad / scale, expected[name].grad / scale, atol=1e-3, rtol=0)


def test_frozen_vision_and_stale_features(prompts, responses):
    policy = make_policy(train_vision=False)
    rows = response_rows(prompts, responses)
    policy.log_prob(rows).sum().backward()
    assert all(p.grad is None for p in policy.model.model.visual.parameters())
    assert policy.model.get_input_embeddings().weight.grad.abs().sum() > 0
    assert len(policy.encoder._kept) == 3
    before = policy.log_prob(rows).detach()
    with torch.no_grad():
        policy.model.model.visual.merger.mlp[-1].weight.mul_(1.5)
    assert (policy.log_prob(rows) - before).abs().max() > 1e-3  # the kept features were dropped


@pytest.mark.parametrize("fused", [False, True])
def test_a_learning_tower_is_never_kept(fused, prompts, responses):
    policy = make_policy()
    rows = response_rows(prompts, responses)
    policy.log_prob(rows).sum().backward()
    with torch.no_grad():
        before = policy.log_prob(rows)
        torch.optim.AdamW(policy.parameters(), lr=1e-2, fused=fused).step()
        after = policy.log_prob(rows)
    assert not torch.equal(before, after)
    assert len(policy.encoder._kept) == 0


def test_kept_features_stay_within_their_bytes():
    policy = make_policy(
        image_cache_bytes=2 * 30_000, train_vision=False
    )  # one feature: 64 tokens x 96 x 4 bytes = 24,576, and its PNG
    contexts = [PromptContext("mute", [picture(i)]) for i in range(4)]
    policy.sample(policy.render(contexts), [(i,) for i in range(4)])
    assert len(policy.encoder._kept) == 2
    assert set(policy.encoder._kept) == {picture(2), picture(3)}


def test_stock_grpo_loss(policy, prompts, responses):
    """TorchRL's own loss on our keys: the value by its formula, the gradient through chunked log-probs."""
    rows = response_rows(prompts, responses)
    old = policy.log_prob(rows).detach()
    lengths = [len(response.tokens) for response in responses]
    advantages = (1.0, -0.5, 0.25)
    shifts = (0.1, -0.4, 0.0)  # log ratios: e^.1 = 1.105 within the clip, e^-.4 = .67 below 0.8
    rows = lazy_stack(
        [
            row.set(keys.OLD_LOG_PROB, old[i, -lengths[i] :] - shifts[i]).set(
                keys.ADVANTAGE, torch.full((1, 1), advantages[i])
            )
            for i, row in enumerate(rows.unbind(0))
        ]
    )
    loss = GRPOLoss(policy, clip_epsilon=(0.2, 0.3), entropy_bonus=False)
    loss.set_keys(action=keys.RESPONSE_TOKENS, sample_log_prob=keys.OLD_LOG_PROB)
    value = loss(rows).loss_objective
    ratios = np.exp(shifts)
    per_token = -np.minimum(ratios * advantages, np.clip(ratios, 0.8, 1.3) * advantages)
    assert value.item() == pytest.approx(float((per_token * lengths).sum() / sum(lengths)), abs=1e-4)
    policy.zero_grad()
    value.backward()
    assert policy.model.get_input_embeddings().weight.grad.abs().sum() > 0
    policy.zero_grad()


def test_a_prompt_that_does_not_fit_is_none():
    policy = make_policy(max_prompt_tokens=90)
    short, long = policy.render([PromptContext(words, [picture(0)]) for words in ("mute", "empty " * 50)])
    assert short is not None
    assert long is None


def test_prompts_and_responses_have_at_most_the_models_positions():
    """The small model has 4,096, of which a response may take 10."""
    with pytest.raises(ValueError, match=r"_tokens = 4097, the model has 4096 positions; lower .*_tokens to 4086$"):
        make_policy(max_prompt_tokens=4087)
    assert make_policy(max_prompt_tokens=4086).renderer.max_prompt_tokens == 4086
    assert make_policy().renderer.max_prompt_tokens == 4086
    checkpoint = small_checkpoint()
    checkpoint.model.config.text_config.max_position_embeddings = 128_000  # a 7B's
    assert TransformersPolicy(checkpoint).renderer.max_prompt_tokens == 65_536


def test_forward_in_a_stock_collector_loop(policy):
    pngs = [picture(0), picture(1)]
    td = TensorDict(
        {
            "instruction": NonTensorStack("mute", "open the trash"),
            "screenshot_png": NonTensorStack(*pngs),
            "is_init": torch.ones(2, 1, dtype=torch.bool),
        },
        [2],
    )
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        greedy = list(policy(td)["action"])
    prompts = policy.render([PromptContext(i, [p]) for i, p in zip(("mute", "open the trash"), pngs, strict=True)])
    assert greedy == [a.text for a in policy.sample(prompts, [(0,), (1,)], temperature=0.0)]
    first, second = list(policy(td)["action"]), list(policy(td)["action"])
    assert first != second  # every call samples again


def test_forward_reads_arrays_and_single_rows(policy):
    pixels = Screenshot(png=picture(0)).pixels
    init = torch.ones(1, dtype=torch.bool)
    frames = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    array = TensorDict({"instruction": NonTensorStack("mute"), "screenshot": frames, "is_init": init[None]}, [1])
    single = TensorDict(
        {"instruction": NonTensorData("mute"), "screenshot_png": NonTensorData(picture(0)), "is_init": init}, []
    )
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert list(policy(array)["action"]) == [policy(single)["action"]]
    assert array[keys.RESPONSE_TOKENS][0].tolist() == single[keys.RESPONSE_TOKENS].tolist()


def test_an_image_token_in_a_response_is_a_clear_error(policy, prompts):
    bad = torch.tensor([policy.renderer.processor.image_token_id])
    with pytest.raises(ValueError, match="65 image tokens"):
        policy.response_log_probs(prompts[:1], [bad])


@pytest.mark.parametrize("observation", ["png", "array"])
def test_in_the_environment(observation):
    """A stock rollout: the policy responds in text; an unparsable response is a parse error, not a crash."""
    policy = make_policy()
    env = OSWorldEnv(provider="sim", num_envs=2, observation=observation, seed=1)
    try:
        td = env.rollout(3, policy, break_when_any_done=False)
    finally:
        env.close()
    assert td.batch_size == (2, 3)
    assert all(isinstance(text, str) for row in td.unbind(0) for text in row["action"])


def test_rows_through_a_replay_buffer(policy, prompts, responses):
    """Ragged rows with images as bytes pass through TorchRL's buffer into the loss unchanged."""
    rows = response_rows(prompts, responses)
    buffer = TensorDictReplayBuffer(
        storage=LazyStackStorage(8), sampler=SamplerWithoutReplacement(shuffle=False), batch_size=3
    )
    buffer.extend(rows)
    torch.testing.assert_close(policy.log_prob(buffer.sample()), policy.log_prob(rows), atol=1e-5, rtol=0)


def test_qwen2_vl_too():
    """The older model class of UI-TARS-7B works as well."""
    checkpoint = small_checkpoint()
    config = checkpoint.model.config
    text = config.text_config.to_dict() | {"model_type": "qwen2_vl_text"}
    vision = {"depth": 1, "embed_dim": 64, "hidden_size": text["hidden_size"], "num_heads": 2, "patch_size": 8}
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(text_config=text, vision_config=vision, **{name: getattr(config, name) for name in ids})
    )
    policy = TransformersPolicy(replace(checkpoint, model=model.eval()), preset="compact", max_new_tokens=5)
    for size in ((1920, 1080), (1366, 768)):  # UI-TARS-7B's points are thousandths, whatever the screenshot's size
        assert policy.image_scaling.to_screen((500, 250), size) == (size[0] / 2, size[1] / 4)
    (prompt,) = policy.render([PromptContext("mute", [picture(0)])])
    (response,) = policy.sample([prompt], [(0,)])
    (found,), _ = policy.response_log_probs([prompt], [response.tokens])
    torch.testing.assert_close(found, response.log_probs, atol=1e-4, rtol=0)
    torch.testing.assert_close(found, plain_log_probs(policy, prompt, response.tokens), atol=1e-4, rtol=0)
