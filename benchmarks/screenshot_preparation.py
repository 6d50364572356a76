"""Preparation of screenshots over one episode: decodes, and seconds on the critical path, against today's path.

    python -m benchmarks.screenshot_preparation

An episode's prompts have all screenshots so far, and the update reads them once more. ``before`` prepares each one of
each prompt by transformers' image processor, as this package did for screenshots that must be resized; ``cached`` keeps
decoded pixels (``policy.image_cache_gb``); ``ahead`` also decodes by threads while the desktop and the sampler are
busy, here a pause between two turns (``policy.image_threads``). The patches are compared. All in one run, on noisy
pictures of the size of a screenshot; the features of past screenshots are taken to be encoded again, as with a trained
tower or a feature cache that is too small.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.policies.transformers.image_patches import ImagePatcher
from bepa_torchrl.policies.transformers.pixel_cache import PixelCache


@dataclass(frozen=True, slots=True)
class Measured:
    """Decodes of an episode, the critical path's seconds, and the sum of the update's patches."""

    decodes: int
    seconds: float
    checksum: float


def processor() -> Qwen2VLImageProcessorPil:
    """That of UI-TARS-1.5-7B and Qwen2.5-VL-7B."""
    return Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=3_136, max_pixels=12_845_056
    )


def screenshots(count: int, size: tuple[int, int]) -> list[bytes]:
    """Pictures with flat and noisy parts, so that a PNG has about the size of a screenshot's."""
    made = []
    for number in range(count):
        rng = np.random.default_rng(number)
        pixels = np.full((size[1], size[0], 3), rng.integers(0, 256, 3), dtype=np.uint8)
        pixels[: size[1] // 3, : size[0] // 3] = rng.integers(0, 256, (size[1] // 3, size[0] // 3, 3))
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
        made.append(buffer.getvalue())
    return made


def before(images: Sequence[bytes]) -> Measured:
    """The image processor's patches of each screenshot of each prompt, and of the update."""
    images_processor, started, decodes, checksum = processor(), time.perf_counter(), 0, 0.0
    for prompt in [*(images[: step + 1] for step in range(len(images))), images]:
        checksum = 0.0
        for image in prompt:
            with Image.open(io.BytesIO(image)) as opened:
                patches = images_processor(opened.convert("RGB"), return_tensors="np")["pixel_values"]
            decodes += 1
            checksum += float(patches.sum(dtype=np.float64))
    return Measured(decodes, time.perf_counter() - started, checksum)


def with_cache(images: Sequence[bytes], *, threads: int, pause: float) -> Measured:
    """The same with kept pixels; seconds without the pauses, in which a desktop and the sampler would be busy."""
    patcher = ImagePatcher(processor(), PixelCache(1 << 30, threads))
    seconds = checksum = 0.0
    for prompt in [*(images[: step + 1] for step in range(len(images))), images]:
        patcher.prefetch(prompt[-1:])
        time.sleep(pause)
        started, checksum = time.perf_counter(), 0.0
        for image in prompt:
            checksum += float(patcher.patches(image).sum(dtype=np.float64))
        seconds += time.perf_counter() - started
    return Measured(patcher.cache.made, seconds, checksum)


def main() -> None:
    """Prints decodes and seconds of the three ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15, help="of the episode")
    parser.add_argument("--screen", type=int, nargs=2, default=(1920, 1080), help="width and height in pixels")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds in which others are busy, per turn")
    options = parser.parse_args()
    images = screenshots(options.steps, tuple(options.screen))
    first = before(images)
    rows = {
        "before": first,
        "cached": with_cache(images, threads=0, pause=0.0),
        "ahead": with_cache(images, threads=2, pause=options.pause),
    }
    for name, found in rows.items():
        assert abs(found.checksum - first.checksum) <= 1e-9 * abs(first.checksum), "the patches differ"
        print(f"{name}: {found.decodes} decodes, {found.seconds:.2f} s, ratio {first.seconds / found.seconds:.2f}")


if __name__ == "__main__":
    main()
