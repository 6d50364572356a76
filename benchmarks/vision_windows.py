"""Attention of the 7B's vision tower on a 1080p screenshot: batched windows against one kernel call per window.

    python -m benchmarks.vision_windows

The kernel calls of one forward pass are counted in a narrow tower with all layers and windows of the true one, in which
they compute nothing. The time is that of the attention of one layer with windows at the true width, forward and
backward, on this machine's CPU: on a GPU, where a call costs a launch whatever its size, the ratio is another one. Both
ways are measured in the same run, in turn, and their results are compared.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from bepa_torchrl.policies.transformers.vision_features import use_linear_patches
from bepa_torchrl.policies.transformers.window_attention import batch_windows

#: of a screenshot of 1920x1080, which the image processor resizes to 1932x1092
GRID = (1, 78, 138)
FULL_SHAPE = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
WINDOWS = {"window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}
NARROW = {"hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 16}


def tower(**changes: Any) -> Any:
    """A tower with random weights and transformers' attention."""
    config = Qwen2_5_VLVisionConfig(**{**FULL_SHAPE, **WINDOWS, **changes})
    model = Qwen2_5_VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa").eval()
    use_linear_patches(model)
    return model


def patches(grid: tuple[int, int, int]) -> torch.Tensor:
    """Random patches of one image."""
    return torch.randn(grid[1] * grid[2], 1176)


def kernel_calls(model: Any, grid: tuple[int, int, int], images: int = 1) -> int:
    """Attention kernel calls of one forward pass over ``images`` screenshots of one size."""
    count, kernel = 0, torch.nn.functional.scaled_dot_product_attention

    def counted(query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        return query

    values = torch.cat([patches(grid)] * images)
    torch.nn.functional.scaled_dot_product_attention = counted
    try:
        with torch.no_grad():
            model(values, torch.tensor([grid] * images))
    finally:
        torch.nn.functional.scaled_dot_product_attention = kernel
    return count


def window_boundaries(model: Any, grid: tuple[int, int, int]) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """What the tower gives a layer with windows: their boundaries, and the rotary embeddings of one image's patches."""
    found: list[Any] = []
    attention = model.blocks[0].attn
    handle = attention.register_forward_pre_hook(lambda *given: found.append(given[2]), with_kwargs=True)
    with torch.no_grad():
        model(patches(grid), torch.tensor([grid]))
    handle.remove()
    return found[0]["cu_seqlens"], found[0]["position_embeddings"]


def update_seconds(attention: Any, states: torch.Tensor, *given: Any) -> tuple[float, torch.Tensor]:
    """Seconds of a forward and a backward pass of a layer's attention, and its results."""
    attention.zero_grad()
    started = time.perf_counter()
    result = attention(states, cu_seqlens=given[0], position_embeddings=given[1])
    result.square().mean().backward()
    return time.perf_counter() - started, result.detach()


def measured(repeats: int, grid: tuple[int, int, int], **shape: Any) -> dict[str, float]:
    """Median seconds of both ways, and the largest difference of their results."""
    torch.manual_seed(0)
    ones = tower(depth=1, fullatt_block_indexes=[], **shape)
    batched = copy.deepcopy(ones)
    batch_windows(batched)
    config = ones.config
    size = config.hidden_size // config.num_heads  # of a head, on which the rotary embeddings depend
    given = window_boundaries(tower(**NARROW | {"hidden_size": size, "depth": 1, "fullatt_block_indexes": []}), grid)
    seconds: tuple[list[float], list[float]] = ([], [])
    states, difference = torch.randn(grid[1] * grid[2], config.hidden_size), 0.0
    for _ in range(repeats):
        (first, a), (second, b) = (update_seconds(model.blocks[0].attn, states, *given) for model in (ones, batched))
        seconds[0].append(first)
        seconds[1].append(second)
        difference = max(difference, float((a - b).abs().max()))
    return {
        "one by one": statistics.median(seconds[0]),
        "batched": statistics.median(seconds[1]),
        "largest difference": difference,
    }


def main() -> None:
    """Prints calls and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of each way; the median is printed")
    options = parser.parse_args()
    before, after = tower(**NARROW), tower(**NARROW)
    batch_windows(after)
    for images in (1, 2):
        one_by_one, batched = kernel_calls(before, GRID, images), kernel_calls(after, GRID, images)
        print(f"kernel calls, {images} screenshot(s): {one_by_one:,} one by one, {batched:,} batched")
    found = measured(options.repeats, GRID)
    ratio = found["one by one"] / found["batched"]
    print(
        f"forward and backward pass of a layer's attention: {found['one by one']:.2f} s one by one, "
        f"{found['batched']:.2f} s batched, ratio {ratio:.2f}; largest difference {found['largest difference']:.1e}"
    )


if __name__ == "__main__":
    main()
