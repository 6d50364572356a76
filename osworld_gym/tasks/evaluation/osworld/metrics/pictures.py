"""Metrics on images: size, structural similarity, brightness, saturation, contrast, with Pillow and NumPy."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageStat

Rules = Mapping[str, Any]
Floats = NDArray[np.float64]
WINDOW = 7  # pixels: side of the structural similarity's square window
STRIP = 1024  # rows of windows at once, so that the memory depends on the image's width only
LIKE = 0.9  # structural similarity from which two images count as the same


def _open(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def structural_similarity(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> float:
    """Mean structural similarity of two images ``[H, W]`` or ``[H, W, C]`` of equal size, at least 7 pixels per side.

    Raises ValueError for a smaller one.

    Source: Wang et al. 2004 with uniform windows and sample covariance, as scikit-image's default.
    """
    if left.ndim == 3:
        return float(np.mean([structural_similarity(left[..., c], right[..., c]) for c in range(left.shape[2])]))
    if min(left.shape) < WINDOW:
        raise ValueError(f"images of at least {WINDOW} pixels per side are required, got {left.shape}")
    places, total = len(left) - WINDOW + 1, 0.0
    for top in range(0, places, STRIP):
        rows = slice(top, min(top + STRIP, places) + WINDOW - 1)
        total += float(_similarities(left[rows], right[rows]).sum())
    return total / float(places * (left.shape[1] - WINDOW + 1))


def _similarities(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Floats:
    """The similarity in each window that fits completely in the images."""
    x, y = left.astype(np.float64), right.astype(np.float64)
    count = WINDOW**2
    mean_x, mean_y = _window_mean(x), _window_mean(y)
    sample = count / (count - 1)
    var_x = sample * (_window_mean(x * x) - mean_x * mean_x)
    var_y = sample * (_window_mean(y * y) - mean_y * mean_y)
    cov = sample * (_window_mean(x * y) - mean_x * mean_y)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    over = (2 * mean_x * mean_y + c1) * (2 * cov + c2)
    under = (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    similarity: Floats = over / under
    return similarity


def _window_mean(values: Floats) -> Floats:
    """Mean of each window that fits completely in the image."""
    sums = np.pad(values, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inside: Floats = (
        sums[WINDOW:, WINDOW:] - sums[:-WINDOW, WINDOW:] - sums[WINDOW:, :-WINDOW] + sums[:-WINDOW, :-WINDOW]
    )
    return inside / WINDOW**2


def same_structure(left: Image.Image, right: Image.Image, threshold: float = LIKE) -> bool:
    """Whether two images have the same structure; False for different sizes and for sides below 7 pixels."""
    if left.size != right.size or min(*left.size) < WINDOW:
        return False
    return structural_similarity(np.asarray(left.convert("RGB")), np.asarray(right.convert("RGB"))) >= threshold


def compare_images(
    actual: bytes | None, expected: bytes | None, *, reference_base_result: float | None = None
) -> float:
    """Structural similarity in grey at the smaller image's size; ``reference_base_result``: value that scores 0."""
    if not actual or not expected:
        return 0.0
    left, right = _open(actual).convert("L"), _open(expected).convert("L")
    size = min(left.size, right.size)
    pixels = [np.asarray(image.resize(size, Image.Resampling.LANCZOS)) for image in (left, right)]
    likeness = structural_similarity(pixels[0], pixels[1])
    if reference_base_result is None:
        return likeness
    if likeness < reference_base_result + 0.01:
        return 0.0
    return (likeness - reference_base_result) / (1 - reference_base_result)


def compare_image_list(actual: bytes | list[bytes] | None, expected: bytes | list[bytes]) -> float:
    """1 when the images are the same pixel by pixel, at the size and in the mode of the expected ones."""
    actuals = actual if isinstance(actual, list) else [actual]
    expecteds = expected if isinstance(expected, list) else [expected]
    return float(all(_same_pixels(one, other) for one, other in zip(actuals, expecteds, strict=False)))


def _same_pixels(actual: bytes | None, expected: bytes | None) -> bool:
    if not actual or not expected:
        return False
    left, right = _open(actual), _open(expected)
    left = left if left.size == right.size else left.resize(right.size, Image.Resampling.LANCZOS)
    left = left if left.mode == right.mode else left.convert(right.mode)
    return ImageChops.difference(left, right).getbbox() is None


def check_structure_sim(actual: bytes | None, expected: bytes | None) -> float:
    """1 when both have the same structure and size."""
    if actual is None or expected is None:
        return 0.0
    return float(same_structure(_open(actual), _open(expected)))


def check_structure_sim_resized(actual: bytes | None, expected: bytes | None) -> float:
    """1 when the first, cropped to its opaque part and scaled to the second's size, has the second's structure."""
    if actual is None or expected is None:
        return 0.0
    left, right = _open(actual), _open(expected)
    if left.mode in ("RGBA", "LA") or "transparency" in left.info:
        left = left.convert("RGBA")
        box = left.getchannel("A").getbbox()
        if box is None:
            return 0.0
        left = left.crop(box).convert("RGB")
    return float(same_structure(left.resize(right.size), right))


def check_brightness_decrease_and_structure_sim(
    actual: bytes | None, before: bytes | None, threshold: float = 0.03
) -> float:
    """1 when the first is darker than the second, and equal at the same brightness (by mean squared error)."""
    if actual is None or before is None:
        return 0.0
    left, right = _open(actual), _open(before)
    darker = _brightness(left) < _brightness(right)
    return float(darker and _squared_error(_at_brightness(left), _at_brightness(right)) < threshold)


def _brightness(image: Image.Image) -> float:
    return ImageStat.Stat(image.convert("L")).mean[0]


def _at_brightness(image: Image.Image, wanted: float = 128.0) -> Image.Image:
    factor = wanted / _brightness(image)
    return image.point(lambda value: min(255, max(0, int(value * factor))))


def _squared_error(left: Image.Image, right: Image.Image) -> float:
    left = left if left.size == right.size else left.resize(right.size, Image.Resampling.LANCZOS)
    one, other = (np.asarray(image.convert("RGB"), np.float32) / 255 for image in (left, right))
    return float(np.mean((one - other) ** 2))


def check_saturation_increase_and_structure_sim(actual: bytes | None, before: bytes | None) -> float:
    """1 when the first is more saturated than the second, and hue and value have the same structure."""
    if actual is None or before is None:
        return 0.0
    left, right = _open(actual).convert("HSV").split(), _open(before).convert("HSV").split()
    more = np.mean(np.asarray(left[1])) > np.mean(np.asarray(right[1]))
    return float(bool(more) and all(same_structure(left[i], right[i]) for i in (0, 2)))


def check_contrast_increase_and_structure_sim(actual: bytes | None, before: bytes | None) -> float:
    """1 when the first has more contrast (standard deviation of its values) and a structure similar to the second's."""
    if actual is None or before is None:
        return 0.0
    left, right = _open(actual), _open(before)
    more = np.std(np.asarray(left, np.float32)) > np.std(np.asarray(right, np.float32))
    return float(bool(more) and same_structure(left, right, threshold=0.65))


def check_image_size(image: bytes | None, rules: Rules) -> float:
    """1 when the image has ``rules["width"]`` and ``rules["height"]`` in pixels; ``ignore_transparent`` crops first."""
    if image is None:
        return 0.0
    picture = _open(image)
    width, height = picture.size
    transparent = picture.mode in ("RGBA", "LA")
    if (rules.get("ignore_transparent", False) and transparent) or "transparency" in picture.info:
        box = picture.convert("RGBA").getchannel("A").getbbox() or (0, 0, 0, 0)
        width, height = box[2] - box[0], box[3] - box[1]
    return float(rules.get("width") in (None, width) and rules.get("height") in (None, height))


def check_image_file_size(image: bytes | None, rules: Rules) -> float:
    """1 when the file has fewer bytes than ``rules["max_size"]``."""
    return 0.0 if image is None else float(len(image) < rules["max_size"])
