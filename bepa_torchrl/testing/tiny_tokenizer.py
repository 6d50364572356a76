"""The tiny model's tokenizer: a byte-level BPE trained on the project's prompts and responses, Qwen2's special tokens.

Any text can be encoded and is decoded unchanged. Frequent pieces are whole tokens: each integer 0..255, each word of
the corpus with and without a leading space, the fixed parts of a response (``Thought:``, ``(start_box='``, …), so that
a response is about 15 tokens. Saved as an ordinary transformers folder, read back by ``AutoTokenizer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

#: names and roles as in Qwen2.5-VL's tokenizer_config.json, with other ids
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|box_start|>",
    "<|box_end|>",
)
#: pieces into which text is split before the BPE: list numbers, headings, arguments of an action, quoted starts,
#: words, integers, the rest
PIECES = (
    r"\n*\d{1,2}\.(?= )",
    r"\n*\p{L}+:",
    r"\(\p{L}+(?:_\p{L}+)?='",
    r"', ?\p{L}+(?:_\p{L}+)?='",
    r"'\)",
    r" ?\p{L}+",
    r"\d{1,3}",
    r" ?[^\s\p{L}\p{N}]",
    r"\n+",
    r"\s",
)
#: minimum frequency of a merge; every piece that occurs twice becomes one token
_MIN_FREQUENCY = 2
_VOCABULARY_LIMIT = 16_384


def chat_template() -> str:
    """The jinja chat template: Qwen2.5-VL's turns and image markers, without its default system prompt."""
    return (files("bepa_torchrl.testing") / "tiny_chat_template.jinja").read_text(encoding="utf-8")


def _lines(corpus: Iterable[str]) -> Iterator[str]:
    for line in corpus:
        yield line
        yield line
    for number in range(256):
        yield from (str(number),) * _MIN_FREQUENCY


def train_tokenizer(corpus: Iterable[str]) -> PreTrainedTokenizerFast:
    """Trains the BPE on ``corpus`` (each distinct word in it becomes one token) and wraps it for transformers.

    Deterministic: the same corpus gives the same ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(PIECES)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_LIMIT,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(corpus), trainer=trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = chat_template()
    return fast
