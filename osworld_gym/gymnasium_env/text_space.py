"""AnyText: a Gymnasium space of strings in any script, which also works in AsyncVectorEnv's shared memory."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector.utils import read_from_shared_memory
from numpy.typing import NDArray

PADDING = 0x110000  #: follows the last character in a flat text; one above the largest code point


class AnyText(spaces.Text):
    """Strings of at most ``max_length`` characters, whatever the characters. Samples are printable ASCII.

    ``spaces.Text`` lists the characters that it allows, so a text in another script lies outside, and Gymnasium reads
    a ``spaces.Text`` in ``AsyncVectorEnv``'s shared memory only once, before the first reset, so its texts never change
    there. This space has neither limit. A flat text is int32 ``[max_length]``: code points, then :data:`PADDING`.

    Args:
        max_length: the longest text, in characters (code points).
        seed: the seed of :meth:`sample`.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]  # as of every Gymnasium space with an __eq__


@flatten_space.register
def _flatten_space(space: AnyText) -> spaces.Box:
    return spaces.Box(0, PADDING, (space.max_length,), np.int32)


@flatten.register(AnyText)
def _flatten(space: AnyText, x: str) -> NDArray[np.int32]:  # type: ignore[misc]  # the fallback takes a generic Space
    if not space.contains(x):
        raise ValueError(
            f"expected a text of at most {space.max_length} characters, got {len(x)}; shorten it, or use a vector "
            "environment that does not flatten texts: SyncVectorEnv, or AsyncVectorEnv(shared_memory=False)"
        )
    flat = np.full(space.max_length, PADDING, np.int32)
    flat[: len(x)] = np.frombuffer(x.encode("utf-32-le", "surrogatepass"), np.int32)
    return flat


@unflatten.register(AnyText)
def _unflatten(_space: AnyText, x: NDArray[np.int32]) -> str:  # type: ignore[misc]
    return x[x < PADDING].astype("<i4").tobytes().decode("utf-32-le", "surrogatepass")


class SharedTexts(Sequence[str]):
    """The current texts of all environments in shared memory; a deep copy is a tuple of them.

    ``AsyncVectorEnv`` takes this once and returns a deep copy on every step, or with ``copy=False`` this itself.

    Args:
        space: the space of one text.
        flat: int32 ``[N, max_length]``, the shared memory.
    """

    def __init__(self, space: AnyText, flat: NDArray[np.int32]) -> None:
        self._space, self._flat = space, flat

    def __len__(self) -> int:
        return len(self._flat)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return _unflatten(self._space, self._flat[index])

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


@read_from_shared_memory.register(AnyText)
def _read_from_shared_memory(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(space, np.frombuffer(shared_memory.get_obj(), np.int32).reshape(n, space.max_length))
