"""The shapes of a vision-language model that decide its size, read from ``config.json``, and its parameter counts.

Families: ``qwen2_5_vl`` (Qwen2.5-VL, UI-TARS-1.5) and ``qwen3_vl``, as transformers implements them
(``modeling_qwen2_5_vl.py``, ``modeling_qwen3_vl.py``), and ``opencua``, which has Qwen2.5-VL's shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "opencua")


@dataclass(frozen=True, slots=True)
class TextShape:
    """The decoder.

    Args:
        layers: number of layers.
        hidden: width of the residual stream.
        intermediate: width of the gated MLP.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: width of a head.
        vocabulary: rows of the embedding.
        tied: whether the output embedding is the input embedding.
        qkv_bias: whether query, key and value projections have biases.
        qk_norm: whether queries and keys are normalised per head.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all key heads, which is that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Elements of one layer's weight matrices."""
        return 2 * self.hidden * (self.query + self.key) + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """Parameters, the output embedding included."""
        biases = self.query + 2 * self.key if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (self.layer_matrices + biases + norms) + embeddings + self.hidden


@dataclass(frozen=True, slots=True)
class VisionShape:
    """The vision tower.

    Args:
        depth: number of blocks.
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        heads: attention heads.
        patch: side of a patch in pixels.
        merge: side, in patches, of the square of patches that becomes one token.
        patch_inputs: values of one patch (channels, frames and pixels).
        out: width of the features that mergers return, the decoder's.
        gated: whether the MLP is gated and norms are RMS norms (Qwen2.5-VL); else LayerNorm and a plain MLP.
        window: side of an attention window in patches; None: every block attends to the whole image.
        full_blocks: number of blocks that attend to the whole image.
        positions: rows of the learned position embedding; 0: none.
        deepstack: number of additional mergers.
    """

    depth: int
    hidden: int
    intermediate: int
    heads: int
    patch: int
    merge: int
    patch_inputs: int
    out: int
    gated: bool
    window: int | None
    full_blocks: int
    positions: int
    deepstack: int

    @property
    def merged(self) -> int:
        """Width of the merged patches of one token."""
        return self.hidden * self.merge**2

    @property
    def block_matrices(self) -> int:
        """Elements of one block's weight matrices."""
        return 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def merger_matrices(self) -> int:
        """Elements of one merger's weight matrices."""
        return self.merged * (self.merged + self.out)

    @property
    def parameters(self) -> int:
        """Parameters of the tower."""
        v, m, norm = self.hidden, self.intermediate, self.hidden * (1 if self.gated else 2)
        biases = 3 * v + v + (2 if self.gated else 1) * m + v
        blocks = self.depth * (self.block_matrices + biases + 2 * norm)
        mergers = (1 + self.deepstack) * (self.merger_matrices + self.merged + self.out)
        merger_norms = norm + self.deepstack * 2 * self.merged
        patches = self.patch_inputs * v + (0 if self.gated else v)
        return blocks + mergers + merger_norms + patches + self.positions * v


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A vision-language model."""

    family: str
    text: TextShape
    vision: VisionShape

    @property
    def parameters(self) -> int:
        """Parameters, a tied embedding counted once."""
        return self.text.parameters + self.vision.parameters

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of LoRA adapters of this rank on every matrix of the decoder's layers."""
        t = self.text
        sides = 2 * (t.hidden + t.query) + 2 * (t.hidden + t.key) + 3 * (t.hidden + t.intermediate)
        return t.layers * rank * sides


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a model from its ``config.json``, with the decoder's values in ``text_config`` or at the top level.

    Raises:
        ValueError: another model family, a missing key, or a value that is not an integer.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"the sizes of a model of type {family!r} are not known; expected one of {', '.join(FAMILIES)}"
        )
    if not isinstance(config.get("vision_config"), Mapping):
        raise ValueError("config.json has no vision_config; expected the config of a vision-language model")
    return ModelShape(family, _text(config), _vision(config, family))


def _text(config: Mapping[str, Any]) -> TextShape:
    text = config.get("text_config") or config
    hidden, heads = _integer(text, "hidden_size"), _integer(text, "num_attention_heads")
    newer = config["model_type"] == "qwen3_vl"
    return TextShape(
        layers=_integer(text, "num_hidden_layers"),
        hidden=hidden,
        intermediate=_integer(text, "intermediate_size"),
        heads=heads,
        kv_heads=_integer(text, "num_key_value_heads"),
        head_dim=_integer(text, "head_dim") if newer else hidden // heads,
        vocabulary=_integer(text, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings") or text.get("tie_word_embeddings")),
        qkv_bias=not newer,
        qk_norm=newer,
    )


def _vision(config: Mapping[str, Any], family: str) -> VisionShape:
    vision = config["vision_config"]
    patch, gated = _integer(vision, "patch_size"), family != "qwen3_vl"
    depth = _integer(vision, "depth")
    channels = _integer(vision, "in_channels") if "in_channels" in vision else 3
    full = [i for i in vision["fullatt_block_indexes"] if i < depth] if gated else range(depth)
    return VisionShape(
        depth=depth,
        hidden=_integer(vision, "hidden_size"),
        intermediate=_integer(vision, "intermediate_size"),
        heads=_integer(vision, "num_heads"),
        patch=patch,
        merge=_integer(vision, "spatial_merge_size"),
        patch_inputs=channels * _integer(vision, "temporal_patch_size") * patch**2,
        out=_integer(vision, "out_hidden_size"),
        gated=gated,
        window=_window(vision, patch) if gated else None,
        full_blocks=len(full),
        positions=0 if gated else _integer(vision, "num_position_embeddings"),
        deepstack=0 if gated else len(vision["deepstack_visual_indexes"]),
    )


def _window(vision: Mapping[str, Any], patch: int) -> int:
    """Side of a window in patches, a multiple of the merge size."""
    merge = _integer(vision, "spatial_merge_size")
    return math.floor(_integer(vision, "window_size") / merge / patch) * merge


def _integer(section: Mapping[str, Any], key: str) -> int:
    value = section.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"config.json: expected an integer {key}, got {value!r}")
    return value
