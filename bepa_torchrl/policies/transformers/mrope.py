"""Multimodal rotary positions (M-RoPE) of a prompt, and of the response after it, computed without the model.

Equal to ``Qwen2_5_VLModel.get_rope_index`` (transformers) for texts with still images: a text token advances all three
axes by 1; an image of r by c merged patches that starts at s has time s, rows s..s+r-1, columns s..s+c-1, and the text
after it continues at s + max(r, c). OpenCUA has ordinary positions instead (:func:`linear_positions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: image tokens and grids of one sequence → positions and the next one, as :func:`mrope_positions`
PositionRule = Callable[[NDArray[np.bool_], Sequence[tuple[int, int]]], tuple[NDArray[np.int64], int]]


def mrope_positions(
    is_image: NDArray[np.bool_], merged_grids: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.int64], int]:
    """Positions of one sequence.

    Args:
        is_image: bool ``[P]``, True at image tokens.
        merged_grids: (rows, columns) of each image in merged patches, in prompt order.

    Returns:
        int64 ``[3, P]`` (time, row, column), and the position of the next text token.

    Raises:
        ValueError: the image tokens are not exactly one run of rows * columns tokens per image.
    """
    positions = _image_tokens(is_image, merged_grids)
    out = np.empty((3, len(is_image)), dtype=np.int64)
    column, position, seen = 0, 0, 0
    for rows, columns in merged_grids:
        start = int(positions[seen])
        seen += rows * columns
        if int(positions[seen - 1]) != start + rows * columns - 1:
            raise ValueError(f"the image tokens at {start} are not one contiguous run of {rows} x {columns} tokens")
        text = start - column
        out[:, column:start] = np.arange(position, position + text)
        position += text
        end = start + rows * columns
        out[0, start:end] = position
        out[1, start:end] = np.repeat(np.arange(position, position + rows), columns)
        out[2, start:end] = np.tile(np.arange(position, position + columns), rows)
        position += max(rows, columns)
        column = end
    out[:, column:] = np.arange(position, position + len(is_image) - column)
    return out, position + len(is_image) - column


def linear_positions(
    is_image: NDArray[np.bool_], merged_grids: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.int64], int]:
    """Positions 0, 1, 2, … of one sequence on all three axes; arguments and results as of :func:`mrope_positions`.

    Raises:
        ValueError: there are not rows * columns image tokens per image.
    """
    _image_tokens(is_image, merged_grids)
    positions = np.arange(len(is_image), dtype=np.int64)
    return np.broadcast_to(positions, (3, len(is_image))), len(is_image)


def position_rule(model: Any) -> PositionRule:
    """The positions that a vision-language model was trained with."""
    return linear_positions if model.config.model_type == "opencua" else mrope_positions


def _image_tokens(is_image: NDArray[np.bool_], merged_grids: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Where the image tokens are; raises ValueError if they are not as many as the images have merged patches."""
    positions = np.flatnonzero(is_image)
    required = sum(rows * columns for rows, columns in merged_grids)
    if len(positions) != required:
        raise ValueError(
            f"the sequence holds {len(positions)} image tokens, its {len(merged_grids)} images require {required}; "
            "pass the images that the rows were rendered with"
        )
    return positions
