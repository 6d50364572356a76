"""A small random checkpoint with the files, names and layout of xlangai/OpenCUA-7B."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from bepa_torchrl.testing.tiny_config import MERGE, PATCH, image_processor_config
from osworld_gym.opencua.prompt import system_text

CORPUS = (
    "## Thought:\nThe sound is on.\n\n## Action:\nClick the mute button.\n\n## Code:\n```python\n"
    "pyautogui.click(x=72, y=40)\n```\n",
    "# Task Instruction:\nopen the trash and empty it\n\nPlease generate the next move according to the screenshot.\n",
    "computer.triple_click(x=10, y=20) computer.terminate(status='success')",
    system_text(),
)
SPECIAL = (
    "[BOS]",
    "[EOS]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    None,  # an id without a special token
    "<|media_placeholder|>",
)
#: the split patterns of Qwen's tokenizers and of Kimi's, whose classes are intersections
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI_PARTS = (
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
CODE = f"""raise RuntimeError("the checkpoint's Python code was run")

class TikTokenTokenizer(PreTrainedTokenizer):
    pat_str = "|".join({list(KIMI_PARTS)!r})

class TikTokenV3(TikTokenTokenizer):
    num_reserved_special_tokens = 293 + 128
    pat_str = {QWEN_PATTERN!r}
"""
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|media_begin|>image<|media_content|><|media_placeholder|><|media_end|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""


def make_ranks(texts: Iterable[str] = CORPUS, size: int = 800) -> dict[bytes, int]:
    """Byte pairs that were learned from the texts: the 256 bytes, then joined ones in the order of joining."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=sorted(bytes_to_unicode().values()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    learned = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    joined = [bytes(byte_of[letter] for letter in token) for token, _ in learned if len(token) > 1]
    return {token: rank for rank, token in enumerate([*(bytes([i]) for i in range(256)), *joined])}


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    """``tiktoken.model``."""
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))


def write_opencua_checkpoint(folder: Path, seed: int = 0, spread: float = 0.2) -> Path:
    """Writes the checkpoint, with random weights whose matrices have the standard deviation ``spread``."""
    folder.mkdir(parents=True)
    ranks = make_ranks()
    write_ranks(folder / "tiktoken.model", ranks)
    ids = {name: len(ranks) + i for i, name in enumerate(SPECIAL) if name is not None}
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    _json(
        folder / "tokenizer_config.json",
        added_tokens_decoder={str(i): {"content": name, **special} for name, i in ids.items()},
        auto_map={"AutoTokenizer": ["tokenization_opencua.TikTokenV3", None]},
        tokenizer_class="TikTokenV3",
        bos_token="[BOS]",
        eos_token="[EOS]",
        pad_token="[PAD]",
        chat_template=CHAT_TEMPLATE,
    )
    (folder / "tokenization_opencua.py").write_text(CODE)
    _json(folder / "preprocessor_config.json", **image_processor_config())
    _json(folder / "generation_config.json", max_length=4096, eos_token_id=ids["[EOS]"])
    text, vision = _configs(len(ranks) + len(SPECIAL))
    _json(
        folder / "config.json",
        architectures=["OpenCUAForConditionalGeneration"],
        auto_map={"AutoConfig": "configuration_opencua.OpenCUAConfig"},
        model_type="opencua",
        media_placeholder_token_id=ids["<|media_placeholder|>"],
        pad_token_id=0,
        tie_word_embeddings=False,
        text_config={"model_type": "qwen2", **text},
        vision_config={"model_type": "qwen2_5_vl", **vision},
    )
    torch.manual_seed(seed)
    parts = {
        "language_model.": Qwen2ForCausalLM(Qwen2Config(**text)),
        "vision_tower.": Qwen2_5_VisionTransformerPretrainedModel(Qwen2_5_VLVisionConfig(**vision)),
    }
    weights = {prefix + name: weight for prefix, part in parts.items() for name, weight in part.state_dict().items()}
    for weight in weights.values():
        if weight.ndim > 1:
            weight.normal_(0, spread)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def _configs(vocabulary: int) -> tuple[dict[str, object], dict[str, object]]:
    """Of decoder and vision tower; the head has more rows than the tokenizer has tokens, as the published one."""
    text = {
        "vocab_size": vocabulary + 20,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "rope_theta": 1000.0,
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "window_size": 64,
        "fullatt_block_indexes": [1],
        "out_hidden_size": 96,
    }
    return text, vision


def _json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values, indent=1))
