"""The tiny tokenizer: any text is decoded unchanged, frequent pieces are single tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bepa_torchrl.testing.tiny_tokenizer import SPECIAL_TOKENS, train_tokenizer
from recipes.tiny.grounding import label_words

RESPONSE = "Thought: click mute\nAction: click(start_box='<|box_start|>(72,40)<|box_end|>')<|im_end|>"


def small_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([*(f"{q}{w}" for w in label_words() for q in " '"), RESPONSE, "turn on mute\nLast: none"])


TOKENIZER = small_tokenizer()


@given(st.text())
@examples(300)
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_every_integer_of_a_coordinate_is_one_token() -> None:
    assert all(len(TOKENIZER(str(number))["input_ids"]) == 1 for number in range(256))
    assert len(TOKENIZER("(72,40)")["input_ids"]) == 5


def test_every_label_is_one_token_after_a_space() -> None:
    for word in label_words():
        tokens = TOKENIZER(f"x {word}")["input_ids"]
        assert len(tokens) == (3 if word.isdigit() else 2), (word, TOKENIZER.convert_ids_to_tokens(tokens))


def test_a_response_is_fifteen_tokens() -> None:
    # Thought: | click| mute|\nAction:| click|(start_box='|<box>|(|72|,|40|)|</box>|')|<end>
    assert len(TOKENIZER(RESPONSE)["input_ids"]) == 15


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_are_whole_and_special(token: str) -> None:
    (number,) = TOKENIZER(token)["input_ids"]
    assert TOKENIZER.convert_ids_to_tokens(number) == token
    assert TOKENIZER.decode([number], skip_special_tokens=True) == ""


def test_saved_folder_loads_with_the_template(tmp_path) -> None:  # type: ignore[no-untyped-def]
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(RESPONSE)["input_ids"] == TOKENIZER(RESPONSE)["input_ids"]
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hi\nLast: none"}]}]
    text = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hi\nLast: none<|im_end|>\n<|im_start|>assistant\n"
    )


def test_training_is_deterministic() -> None:
    assert small_tokenizer().get_vocab() == TOKENIZER.get_vocab()
