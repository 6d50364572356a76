"""Where an image's tokens are in a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def image_ranges(tokens: NDArray[np.int64], image_token_id: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(offset, length) of each image's tokens in a prompt.

    Args:
        tokens: int64 ``[P]``.
        image_token_id: the token that represents a merged patch.
        lengths: tokens of each image, in prompt order.

    Raises:
        ValueError: the prompt's image tokens do not belong to these images.
    """
    places = np.flatnonzero(tokens == image_token_id)
    if len(places) != sum(lengths):
        raise ValueError(f"the prompt has {len(places)} image tokens, its {len(lengths)} images {sum(lengths)}")
    ranges, start = [], 0
    for length in lengths:
        first, last = int(places[start]), int(places[start + length - 1])
        if last - first + 1 != length:
            raise ValueError(f"the {length} image tokens from position {first} on are not contiguous")
        ranges.append((first, length))
        start += length
    return ranges
