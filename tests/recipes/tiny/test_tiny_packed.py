"""Packed turns have the logits of separate rows; prompts and pixels equal those of rollouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.testing.tiny_config import image_processor_config, tiny_config
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.types import Action
from recipes.tiny.packed import packed_logits
from recipes.tiny.turns import Screen, Turn, pack, pixel_values, texts, tile_of


def screen(seed: int, turns: tuple[Turn, ...]) -> Screen:
    pixels = np.random.default_rng(seed).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    return Screen(pixels, (), turns)


CLICK = (Action("click", start=(72, 40)),)
DRAG = (Action("drag", start=(8, 120), end=(127, 3)),)
SCREENS = [
    screen(
        0, (Turn("turn on mute", "click mute", CLICK), Turn("x", "drag y", DRAG, plan="1. Open sound", last="open x"))
    ),
    screen(1, (Turn("rename é 日本", "done", (Action("finished", content=""),)),)),
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(
        ["Thought: click mute\nAction: click(start_box='<|box_start|>(1,2)<|box_end|>')", "user\nLast: none"]
    )


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer)).eval()


def test_packed_logits_are_those_of_one_row_at_a_time(
    model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast
) -> None:
    batch = pack(SCREENS, tokenizer, buckets=2)
    with torch.no_grad():
        packed, looking, images = packed_logits(model, batch, point_layer=1)
    found = {}
    start = 0
    for rows in batch.rows:
        for row in range(rows.turns.shape[0]):
            count = int(rows.response[row].sum())
            found[tuple(rows.turns[row][rows.response[row]].tolist())] = packed[start : start + count]
            start += count
    assert start == packed.shape[0]
    for shown in SCREENS:
        for turn in shown.turns:
            head, rest, response = texts(turn, tokenizer)
            prompt = tokenizer(head.replace("<|image_pad|>", "<|image_pad|>" * 64) + rest)["input_ids"]
            said = tokenizer(response)["input_ids"]
            ids = torch.tensor([prompt + said])
            with torch.no_grad():
                logits = model(
                    input_ids=ids,
                    pixel_values=pixel_values([shown]),
                    image_grid_thw=torch.tensor([[1, 16, 16]]),
                    mm_token_type_ids=(ids == model.config.image_token_id).int(),
                ).logits[0, len(prompt) - 1 : -1]
            torch.testing.assert_close(found[tuple(said)], logits, atol=2e-5, rtol=1e-4)
    assert looking.shape == (2 + 4, model.config.text_config.num_attention_heads)
    assert bool((looking < 0).all())
    assert images.shape == (2, 64, model.config.text_config.hidden_size)


def test_targets_are_the_tiles_of_the_action(tokenizer: PreTrainedTokenizerFast) -> None:
    # (72, 40) is column 4, row 2: 2 * 8 + 4 = 20. (8, 120): row 7: 56. (127, 3): column 7: 7.
    assert tile_of((72, 40), 128, 128) == 20
    found = []
    for rows in pack(SCREENS, tokenizer, buckets=3).rows:
        found += rows.targets.nonzero()[:, 1].tolist()
        said = rows.turns[rows.points[:, 0], rows.points[:, 1]]
        assert set(tokenizer.convert_ids_to_tokens(said.tolist())) <= {"(", ","}
    assert sorted(found) == [7, 7, 20, 20, 56, 56]


def test_coordinates_are_the_tokens_after_the_pointing_ones(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = pack(SCREENS, tokenizer)
    marked = batch.response_tokens()[batch.coordinate_tokens()]
    words = tokenizer.convert_ids_to_tokens(marked.tolist())
    # one point of the click, two of the drag; the turns are sorted by length
    assert sorted(words) == sorted(["72", "40", "8", "120", "127", "3"])


def test_tiles_of_another_size(tokenizer: PreTrainedTokenizerFast) -> None:
    turn = Turn("x", "click mute", (Action("click", start=(45, 21)),))
    shown = Screen(np.zeros((40, 60, 3), dtype=np.uint8), (), (turn,))
    batch = pack([shown], tokenizer, patch=10)
    assert batch.grid.tolist() == [[1, 4, 6]]
    assert batch.pixel_values.shape == (24, 3 * 2 * 10 * 10)
    # (45, 21) is column 2 of 3, row 1 of 2, in squares of 20 x 20
    assert batch.rows[0].targets.nonzero().tolist() == [[0, 5], [1, 5]]


def test_pixel_values_are_the_image_processors() -> None:
    processor = Qwen2VLImageProcessorPil(
        **{k: v for k, v in image_processor_config().items() if not k.endswith("_type")}
    )
    expected = processor([shown.pixels for shown in SCREENS], return_tensors="pt")
    torch.testing.assert_close(pixel_values(SCREENS), expected["pixel_values"], atol=1e-5, rtol=1e-5)
    assert expected["image_grid_thw"].tolist() == [[1, 16, 16], [1, 16, 16]]


def test_gradients_reach_every_weight(
    model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast
) -> None:
    logits, _, _ = packed_logits(model, pack(SCREENS, tokenizer))
    logits.logsumexp(-1).sum().backward()
    missing = [name for name, weight in model.named_parameters() if weight.grad is None]
    model.zero_grad()
    assert not missing
