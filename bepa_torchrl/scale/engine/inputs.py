"""Prompts as vLLM's finished engine inputs: our token ids and patches, which vLLM does not process again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import torch
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.image_patches import Grid, ImagePatcher
from bepa_torchrl.scale.engine.image_ranges import image_ranges


class EngineInputs:
    """Converts prompts to engine inputs; an image's patches are kept while they fit, since turns share images.

    Args:
        patcher: PNG bytes → patches.
        image_token_id: the token that represents a merged patch.
        dtype: the dtype of the patches; the engine's.
        capacity_bytes: maximum size of the kept patches; the least recently used are dropped.
    """

    def __init__(
        self, patcher: ImagePatcher, image_token_id: int, *, dtype: torch.dtype, capacity_bytes: int = 1 << 30
    ) -> None:
        self.patcher, self.image_token_id, self.dtype = patcher, image_token_id, dtype
        self.capacity_bytes = capacity_bytes
        self._items: OrderedDict[bytes, tuple[str, Any]] = OrderedDict()
        self._bytes = 0

    def __call__(self, prompt: Prompt) -> Any:
        """The engine input of a prompt. Raises ValueError if image tokens and images do not match."""
        ids = prompt.tokens.tolist()
        if not prompt.images:
            return tokens_input(ids)
        grids = [self.patcher.grid(image) for image in prompt.images]
        lengths = [rows * columns // self.patcher.merge_size**2 for _, rows, columns in grids]
        ranges = image_ranges(prompt.tokens.numpy(), self.image_token_id, lengths)
        items = [self._item(image, grid) for image, grid in zip(prompt.images, grids, strict=True)]
        return mm_input(
            ids,
            MultiModalKwargsItems({"image": [item for _, item in items]}),
            {"image": [digest for digest, _ in items]},
            {"image": [PlaceholderRange(offset=offset, length=length) for offset, length in ranges]},
        )

    def _item(self, image: bytes, grid: Grid) -> tuple[str, Any]:
        """The hash of an image and its patches as a vLLM item."""
        if image in self._items:
            self._items.move_to_end(image)
            return self._items[image]
        patches = torch.from_numpy(self.patcher.patches(image)).to(self.dtype)
        fields = {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([len(patches)])),
            "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }
        items = MultiModalKwargsItems.from_hf_inputs(
            {"pixel_values": patches, "image_grid_thw": torch.tensor([grid])}, fields
        )
        self._items[image] = hashlib.blake2b(image, digest_size=20).hexdigest(), items["image"][0]
        self._bytes += patches.nbytes
        while self._bytes > self.capacity_bytes and len(self._items) > 1:
            _, (_, dropped) = self._items.popitem(last=False)
            self._bytes -= dropped["pixel_values"].data.nbytes
        return self._items[image]
