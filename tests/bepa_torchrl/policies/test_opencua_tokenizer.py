"""OpenCUA's tokenizer: the tokens of tiktoken's algorithm, and a checkpoint's Python code that is read, never run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from opencua_checkpoint import (
    CODE,
    KIMI_PARTS,
    QWEN_PATTERN,
    SPECIAL,
    make_ranks,
    write_opencua_checkpoint,
    write_ranks,
)
from property_tests import examples

from bepa_torchrl.policies.transformers.opencua.tokenizer import (
    byte_pair_tokenizer,
    has_ranks,
    load_tokenizer,
    read_ranks,
    split_pattern,
)

RANKS = make_ranks()
PATTERNS = {"qwen": QWEN_PATTERN, "kimi": "|".join(KIMI_PARTS)}
TOKENIZERS = {name: byte_pair_tokenizer(RANKS, pattern) for name, pattern in PATTERNS.items()}


def reference(ranks: Mapping[bytes, int], pattern: str, text: str) -> list[int]:
    """tiktoken's algorithm: in each piece the pair of the lowest rank is joined, the leftmost of equal ones."""
    ids = []
    for piece in regex.findall(pattern, text, flags=regex.V1):
        parts = [bytes([byte]) for byte in piece.encode()]
        while len(parts) > 1:
            joined = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
            lowest = min(joined)
            if lowest == len(ranks):
                break
            at = joined.index(lowest)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks[part] for part in parts]
    return ids


WORDS = ["pyautogui.click(x=", "##", " Thought", "\n", "1234", "it's", "漢字", "é", "  ", "ß"]
TEXTS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(["pyautogui.click(x=", "##", " Thought", "\n", "1234", "it's", "漢字", "é", "  ", "ß"])
    ).map("".join),
)


@pytest.mark.parametrize("name", TOKENIZERS)
@examples(150)
@given(text=TEXTS)
def test_tokens_are_those_of_tiktoken(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert ids == reference(RANKS, PATTERNS[name], text)
    assert TOKENIZERS[name].decode(ids, skip_special_tokens=False) == text


def test_by_hand() -> None:
    """a, b, c, …; "ab" is joined before "bc", so "abc" is ab + c, and "abcbc" ab + c + bc."""
    ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256, b"bc": 257}
    tokenizer = byte_pair_tokenizer(ranks, r"\p{L}+|\P{L}+")
    assert tokenizer.encode("abcbc").ids == [256, ord("c"), 257]
    assert tokenizer.encode("bc1bc").ids == [257, ord("1"), 257]


def test_the_pattern_is_that_of_the_class_or_its_base() -> None:
    assert split_pattern(CODE, "TikTokenV3") == QWEN_PATTERN
    assert split_pattern(CODE, "TikTokenTokenizer") == "|".join(KIMI_PARTS)
    assert split_pattern("class A:\n  pat_str = 'x' + r'\\s'\nclass B(A, Unknown):\n  other = 1", "B") == r"x\s"
    assert split_pattern("class A(B):\n  pass\nclass B(A):\n  pat_str = 'y'", "A") == "y"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "class TikTokenV3:\n  pat_str = open('/etc/passwd').read()",
            r"not a constant: open\('/etc/passwd'\)\.read\(\)",
        ),
        ("class TikTokenV3:\n  pat_str = '|'.join(parts)", "not a constant"),
        ("class TikTokenV3:\n  pat_str = f'{x}'", "not a constant"),
        ("class TikTokenV3(TikTokenV3):\n  pass", "no class TikTokenV3 with the attribute pat_str"),
        ("x = 1", "no class TikTokenV3 with the attribute pat_str"),
        ("class :", "cannot be parsed"),
    ],
)
def test_a_pattern_that_is_not_a_constant_is_refused(code: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_pattern(code, "TikTokenV3")


def test_a_checkpoints_tokenizer(tmp_path: Path) -> None:
    folder = write_opencua_checkpoint(tmp_path / "opencua")
    assert has_ranks(str(folder))
    tokenizer = load_tokenizer(str(folder))
    assert len(tokenizer) == len(RANKS) + len(SPECIAL)
    vocabulary = tokenizer.get_vocab()
    for place, name in enumerate(SPECIAL):
        assert vocabulary[name or f"<|reserved_token_{len(RANKS) + place}|>"] == len(RANKS) + place
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "mute"}]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_user|>user<|im_middle|><|media_begin|>image<|media_content|><|media_placeholder|><|media_end|>mute"
        "<|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert [i for i in ids if i >= len(RANKS)] == [
        vocabulary[f"<|{name}|>"]
        for name in (
            *("im_user", "im_middle", "media_begin", "media_content", "media_placeholder", "media_end", "im_end"),
            *("im_assistant", "im_middle"),
        )
    ]
    assert tokenizer.decode(ids) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("[BOS]", "[EOS]", None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tiktoken.model", "!!", r"tiktoken\.model, line 1: expected a token in base64 and its rank"),
        ("tiktoken.model", "YQ== 0", "with all 256 bytes, got 1 tokens"),
        ("tokenization_opencua.py", None, r"there is no tokenization_opencua\.py"),
        ("tokenizer_config.json", "{}", "no auto_map with AutoTokenizer"),
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": "../x.Y"}}', "no auto_map with AutoTokenizer"),
        (
            "tokenizer_config.json",
            json.dumps(
                {
                    "auto_map": {"AutoTokenizer": ["tokenization_opencua.TikTokenV3", None]},
                    "added_tokens_decoder": {"3": {"content": "<|im_end|>"}},
                }
            ),
            r"special tokens with the ids \[3\]",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    folder = write_opencua_checkpoint(tmp_path / "opencua")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(str(folder))


def test_ranks_are_read_as_written(tmp_path: Path) -> None:
    write_ranks(tmp_path / "tiktoken.model", RANKS)
    assert read_ranks(tmp_path / "tiktoken.model") == RANKS
