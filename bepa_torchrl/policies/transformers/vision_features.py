"""Image features of the vision tower, computed once per distinct image and cached if the tower is frozen."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bepa_torchrl.policies.transformers.image_patches import ImagePatcher


class LinearPatchEmbed(nn.Module):
    """The tower's patch embedding as one matrix product: same parameters and results, a third of the time.

    transformers implements it as a Conv3d whose stride is its kernel, which is much slower on a CPU.

    Args:
        conv: the Conv3d; kept as ``proj``, so that names in checkpoints are unchanged.
    """

    def __init__(self, conv: nn.Conv3d) -> None:
        super().__init__()
        self.proj = conv

    def forward(self, patches: Tensor) -> Tensor:
        """Float ``[N, 3 * t * p * p]`` → ``[N, embed]``."""
        weight = self.proj.weight.flatten(1)
        return nn.functional.linear(patches.to(weight.dtype).view(-1, weight.shape[1]), weight, self.proj.bias)


def use_linear_patches(visual: Any) -> None:
    """Replaces a vision tower's patch embedding by :class:`LinearPatchEmbed`; idempotent."""
    if not isinstance(visual.patch_embed, LinearPatchEmbed):
        visual.patch_embed = LinearPatchEmbed(visual.patch_embed.proj).train(visual.training)


class FeatureSource(Protocol):
    """What a forward pass requires of the vision tower."""

    def features(self, images: Sequence[bytes]) -> list[Tensor]:
        """One ``[tokens, H]`` per image (images must be distinct)."""
        ...


class ImageEncoder:
    """Image features, cached by PNG bytes.

    Only features of a frozen tower are cached (none of its parameters requires a gradient), since a fused optimiser
    changes weights undetectably. ``load_state_dict``, ``to`` and other in-place changes of frozen weights are detected
    and clear the cache; writing through ``parameter.data`` is not: call :meth:`forget` after it.

    Args:
        model: the conditional-generation model.
        patcher: PNG bytes → patches.
        capacity_bytes: maximum size of cached features and PNGs; the least recently used are dropped; 0: no cache.
        max_patches: maximum patches of a pass through the tower; a single image may have more. None: no limit.
    """

    def __init__(self, model: Any, patcher: ImagePatcher, capacity_bytes: int, max_patches: int | None = None) -> None:
        self.model = model
        self.patcher = patcher
        self.capacity_bytes = capacity_bytes
        self.max_patches = max_patches
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self._kept_bytes = 0
        self._fingerprint: tuple[tuple[int, int], ...] = ()

    def features(self, images: Sequence[bytes]) -> list[Tensor]:
        """One ``[tokens, H]`` per image (images must be distinct), in the model's dtype, on its device.

        Qwen3-VL's are ``[tokens, (1 + D) H]``: the features of the D further levels (deepstack) follow the first.
        """
        weights = list(self.model.model.visual.parameters())
        if any(weight.requires_grad for weight in weights):
            return self._encode(images)
        fingerprint = tuple((weight.data_ptr(), weight._version) for weight in weights)
        if fingerprint != self._fingerprint:
            self.forget()
            self._fingerprint = fingerprint
        features = {image: self._kept[image] for image in images if image in self._kept}
        missing = [image for image in images if image not in features]
        if missing:
            with torch.inference_mode(False), torch.no_grad():  # not inference tensors: autograd may save them later
                fresh = self._encode(missing)
            features.update(zip(missing, fresh, strict=True))
        for image in images:
            self._keep(image, features[image])
        return [features[image] for image in images]

    def forget(self) -> None:
        """Drops all cached features."""
        self._kept.clear()
        self._kept_bytes = 0

    def _keep(self, image: bytes, feature: Tensor) -> None:
        if image in self._kept:
            self._kept.move_to_end(image)
            return
        self._kept[image] = feature.clone()  # a copy, not a view of the batch's features
        self._kept_bytes += len(image) + feature.nbytes
        while self._kept_bytes > self.capacity_bytes:
            old, old_feature = self._kept.popitem(last=False)
            self._kept_bytes -= len(old) + old_feature.nbytes

    def _encode(self, images: Sequence[bytes]) -> list[Tensor]:
        """Features of images, in passes of at most ``max_patches``."""
        if self.max_patches is None:
            return self._pass(images)
        sizes = [math.prod(self.patcher.grid(image)) for image in images]
        passes = consecutive(sizes, self.max_patches)
        return [features for part in passes for features in self._pass([images[i] for i in part])]

    def _pass(self, images: Sequence[bytes]) -> list[Tensor]:
        self.patcher.prefetch(images)
        device = self.model.device
        grids = torch.tensor([self.patcher.grid(image) for image in images], dtype=torch.int64, device=device)
        values = torch.cat([self.patcher.patches_on(image, device) for image in images])
        output = self.model.get_image_features(values, grids, return_dict=True)
        levels = [output.pooler_output, *getattr(output, "deepstack_features", ())]
        return [torch.cat(parts, dim=-1) for parts in zip(*levels, strict=True)]


def consecutive(sizes: Sequence[int], budget: int) -> list[range]:
    """Divides items into runs whose sizes sum to at most ``budget``; a larger item is a run by itself."""
    runs, start, total = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and total + size > budget:
            runs.append(range(start, i))
            start, total = i, 0
        total += size
    return [*runs, range(start, len(sizes))] if sizes else []


class SharedFeatures:
    """Features of one call to the model in several forward passes: an image is encoded once, with its gradient.

    Args:
        encoder: encodes the images that are seen for the first time.
    """

    def __init__(self, encoder: FeatureSource) -> None:
        self._encoder = encoder
        self._features: dict[bytes, Tensor] = {}

    def features(self, images: Sequence[bytes]) -> list[Tensor]:
        """One ``[tokens, H]`` per image (images must be distinct)."""
        missing = [image for image in images if image not in self._features]
        if missing:
            self._features.update(zip(missing, self._encoder.features(missing), strict=True))
        return [self._features[image] for image in images]
