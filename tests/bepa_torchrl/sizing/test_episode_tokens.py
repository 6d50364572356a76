"""Token counts by formula equal the policy's prompts; shared sequences are those that the scorer finds."""

from __future__ import annotations

import numpy as np
import pytest

from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.transformers.scorer import find_hosts
from bepa_torchrl.sizing.known_models import known_model
from bepa_torchrl.sizing.model import model_shape
from bepa_torchrl.sizing.tokens import (
    BEFORE_RESPONSE,
    IMAGE_FRAME,
    EpisodeShape,
    Grid,
    Sequence,
    head_tokens,
    image_grid,
)
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.types import Action, PromptContext

STEPS = 5
SCREEN = (192, 112)
RESPONSE = "Thought: click mute\nAction: wait()"


@pytest.mark.parametrize(
    ("history", "images"), [("last_k", 1), ("last_k", 2), ("evict_block", 1), ("evict_block", 2), ("all", None)]
)
def test_prompts_and_shared_sequences_of_a_real_episode(history: str, images: int | None) -> None:
    policy = TransformersPolicy(small_checkpoint(), preset="paper", history=history, history_images=images)
    screens = [picture(i, SCREEN) for i in range(STEPS)]
    contexts = [
        PromptContext("open the trash", screenshots=tuple(screens[:step]), responses=(RESPONSE,) * (step - 1))
        for step in range(1, STEPS + 1)
    ]
    prompts = [prompt for prompt in policy.render(contexts) if prompt is not None]
    response = policy.encode_response(RESPONSE)
    # Qwen's tokenizer has one token for "user" and one for "assistant", the small one several
    user, assistant = (len(ids) - 1 for ids in policy.renderer.processor.tokenizer(["user", "assistant"])["input_ids"])
    image = 7 * 12 + user  # 112 / 16 rows, 192 / 16 columns
    episode = EpisodeShape(
        steps=STEPS,
        head=len(prompts[0].tokens) - IMAGE_FRAME - image - BEFORE_RESPONSE,
        image=image,
        response=len(response) + assistant,
        history=history,
        images=images,
    )
    assert [len(prompt.tokens) for prompt in prompts] == [episode.prompt(step) for step in range(1, STEPS + 1)]
    rows = [np.concatenate((prompt.tokens.numpy(), response.numpy())) for prompt in prompts]
    hosts = sorted(set(find_hosts(rows, [prompt.images for prompt in prompts])))
    assert [Sequence(len(rows[i]) + assistant, len(prompts[i].images)) for i in hosts] == episode.sequences()


def test_evicting_blocks() -> None:
    """Three images, then up to five, then back to three: a new sequence after every eviction."""
    episode = EpisodeShape(steps=10, head=100, image=50, response=10, history="evict_block", images=3)
    assert [episode.kept_images(step) for step in range(1, 11)] == [1, 2, 3, 4, 5, 3, 4, 5, 3, 4]
    assert [sequence.images for sequence in episode.sequences()] == [5, 5, 4]
    # 8th row: head, five screenshots of 50 + 7, seven past responses of 10 + 4, 3 + 10
    assert episode.sequences()[1].tokens == 100 + 5 * 57 + 7 * 14 + 13


def test_prompts_that_repeat_responses_in_another_form_share_nothing() -> None:
    """Three rows of a real OpenCUA prompt, none of which begins with another one; so in the formula."""
    options = {"preset": "action_history", "history": "all", "action_text": "opencua"}
    policy = TransformersPolicy(small_checkpoint(), max_prompt_tokens=3000, **options)  # type: ignore[arg-type]
    response = ACTION_TEXTS["opencua"].format_response("Wait for it.", [Action("wait")])
    screens = [picture(i) for i in range(3)]
    contexts = [PromptContext("mute", screens[:step], (response,) * (step - 1)) for step in range(1, 4)]
    prompts = [prompt for prompt in policy.render(contexts) if prompt is not None]
    ids = policy.encode_response(response).numpy()
    rows = [np.concatenate((prompt.tokens.numpy(), ids)) for prompt in prompts]
    assert find_hosts(rows, [prompt.images for prompt in prompts]) == [0, 1, 2]
    episode = EpisodeShape(steps=3, head=100, image=50, response=20, history="all", images=None, repeated=10)
    assert episode.sequences() == episode.rows()
    assert [episode.prompt(step) for step in (1, 2, 3)] == [100 + 57 + 3, 100 + 2 * 57 + 14 + 3, 100 + 3 * 57 + 28 + 3]


def test_a_full_screen_by_hand() -> None:
    """1920x1080 → 1932x1092 in patches of 14; 1920x1088 in patches of 16."""
    older, newer = (known_model(name) for name in ("ByteDance-Seed/UI-TARS-1.5-7B", "Qwen/Qwen3-VL-8B-Instruct"))
    size = (1920, 1080)
    shape = model_shape(older.config).vision
    grid = image_grid(shape, size, min_pixels=older.min_pixels, max_pixels=older.max_pixels)
    assert (grid, grid.patches // 4) == (Grid(78, 138), 2_691)
    shape = model_shape(newer.config).vision
    grid = image_grid(shape, size, min_pixels=newer.min_pixels, max_pixels=newer.max_pixels)
    assert (grid, grid.patches // 4) == (Grid(68, 120), 2_040)


def test_the_head_is_estimated_by_length() -> None:
    assert head_tokens("x" * 300) == 100 + 50 + 5
