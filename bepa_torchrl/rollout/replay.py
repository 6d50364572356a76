"""The part of a success that is replayed before the policy acts, as data that crosses processes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

HASH_SIDE = 16  #: cells of a screen's mean hash along each side
#: share of a mean hash's bits that are equal in two pictures of the same screen: a clock or a caret may differ
SAME_SCREEN = 0.95
SAME_BRIGHTNESS = 8  #: largest difference of their means, of 255


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first k steps of a success.

    Args:
        env_seed: seed of the desktop on which it was played.
        texts: the k responses.
        tokens: their token ids.
        screens: k + 1 mean hashes (:func:`mean_hash`): the screen before each response, and
            after the last one.
    """

    env_seed: int
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    screens: tuple[str, ...]

    @property
    def steps(self) -> int:
        """K."""
        return len(self.texts)

    def to_json(self) -> dict[str, Any]:
        """JSON values; the inverse of :meth:`from_json`."""
        return {
            "env_seed": self.env_seed,
            "texts": list(self.texts),
            "tokens": [list(tokens) for tokens in self.tokens],
            "screens": list(self.screens),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Prefix:
        """Raises KeyError, TypeError or ValueError: not a prefix."""
        texts, screens = tuple(map(str, fields["texts"])), tuple(map(str, fields["screens"]))
        tokens = tuple(tuple(map(int, each)) for each in fields["tokens"])
        if not texts or len(tokens) != len(texts) or len(screens) != len(texts) + 1:
            raise ValueError(
                f"a prefix of k > 0 responses has their tokens and k + 1 screens; got {len(texts)} responses, "
                f"{len(tokens)} and {len(screens)}"
            )
        return cls(int(fields["env_seed"]), texts, tokens, screens)


def mean_hash(png: bytes) -> str:
    """Which of 16 × 16 cells of a screen are brighter than their mean, and the mean (0 to 255): 33 bytes in hex."""
    with Image.open(io.BytesIO(png)) as image:
        cells = np.asarray(image.convert("L").resize((HASH_SIDE, HASH_SIDE), Image.Resampling.BOX), np.float64)
    return np.packbits(cells > cells.mean()).tobytes().hex() + f"{round(cells.mean()):02x}"


def same_screen(one: str, other: str) -> bool:
    """Whether two mean hashes are of the same screen, see :data:`SAME_SCREEN` and :data:`SAME_BRIGHTNESS`."""
    found = [np.frombuffer(bytes.fromhex(each), np.uint8) for each in (one, other)]
    bits = [np.unpackbits(each[:-1]) for each in found]
    brightness = [int(each[-1]) for each in found]
    return bool((bits[0] == bits[1]).mean() >= SAME_SCREEN) and abs(brightness[0] - brightness[1]) <= SAME_BRIGHTNESS
