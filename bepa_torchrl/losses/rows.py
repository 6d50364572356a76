"""Reads padded and fixed-size tensors from a lazy stack of ragged rows, with checks."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NestedKey, TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.torchrl_private import inside_vmap

NAMED_ROWS = 3  #: rows that a message names


def check_batch(rows: TensorDictBase, tokens: NestedKey) -> None:
    """Checks that rows are a batch ``[B]`` that a loss can read, before anything reads them.

    Raises:
        ValueError: no rows, another number of batch dimensions, or responses in one nested tensor.
        NotImplementedError: in ``torch.vmap``.
    """
    if rows.batch_dims != 1:
        raise ValueError(
            f"expected rows [B], got batch size {list(rows.batch_size)}; flatten them: rows.reshape(-1), or "
            "lazy_stack([row]) of a single row"
        )
    if not len(rows):
        raise ValueError(
            "expected at least one row, got an empty batch; skip the update, as when GroupRows has completed no group"
        )
    if inside_vmap():
        raise NotImplementedError(
            "expected a call outside torch.vmap, got one inside: responses differ in length and are checked by value; "
            "call the loss in a loop, once per batch or set of weights"
        )
    if not isinstance(rows, LazyStackedTensorDict) and getattr(rows.get(tokens, None), "is_nested", False):
        raise ValueError(
            f"expected a lazy stack of rows, got a dense batch whose {tokens!r} is a nested tensor; "
            "use lazy_stack(list(rows.unbind(0)))"
        )


def entry(rows: TensorDictBase, key: NestedKey) -> Tensor:
    """An entry of a batch of rows, or of one row. Raises KeyError if it is missing."""
    return _present(rows, key, rows.get(key, None))


def _present(rows: TensorDictBase, key: NestedKey, value: Tensor | None) -> Tensor:
    if value is None:
        raise KeyError(f"rows require {key!r}; they have {sorted(map(str, rows.keys(True, True)))}")
    return value


def entry_on_cpu(rows: TensorDictBase, key: NestedKey) -> Tensor:
    """An entry of one number per row, ``[R]`` on the CPU, wherever the rows are: some may be on an accelerator.

    Raises:
        KeyError: a row does not have the key.
    """
    return torch.stack([entry(row, key).reshape(()).cpu() for row in rows.unbind(0)])


def response_lengths(rows: TensorDictBase, key: NestedKey) -> Tensor:
    """Response tokens of each row, ``[R]`` int64 on the CPU. Raises as :func:`check_batch` and :func:`entry`."""
    check_batch(rows, key)
    return torch.tensor([entry(row, key).shape[0] for row in rows.unbind(0)])


def padded(rows: TensorDictBase, key: NestedKey, *, fill: float) -> Tensor:
    """The rows' ``[L]`` tensors as one ``[B, T]``, padded on the left.

    Raises:
        KeyError: the rows do not have the key.
    """
    value: Tensor | None = rows.get(key, None, as_padded_tensor=True, padding_side="left", padding_value=fill)
    return _present(rows, key, value)


def per_row(rows: TensorDictBase, key: NestedKey, shape: tuple[int, ...], fix: str) -> Tensor:
    """A value of fixed shape per row, ``[B, *shape]``.

    Raises:
        KeyError: the rows do not have the key.
        ValueError: a row's value has another shape.
    """
    values = [row.get(key, None) for row in rows.unbind(0)]
    if any(value is None for value in values):
        raise KeyError(f"rows require {key!r} of shape {list(shape)} each; {fix}")
    wrong = [list(value.shape) for value in values if tuple(value.shape) != shape]
    if wrong:
        raise ValueError(f"{key!r} must be {list(shape)} in each row; {fix}; got {wrong[0]}")
    return torch.stack([value.to(values[0].device) for value in values])


def denominators_of(rows: TensorDictBase, key: NestedKey) -> Tensor:
    """The rows' denominators, ``[B, 1]``.

    Raises:
        KeyError: the rows do not have the key.
        ValueError: a row's value has another shape, or is not positive.
    """
    values = per_row(rows, key, (1,), "set it to loss.denominators(all rows)")
    if not (values > 0).all():
        raise ValueError(f"denominators must be positive; got {values.min().item()}")
    return values


def check_lengths(rows: TensorDictBase, key: NestedKey, tokens: NestedKey) -> None:
    """Checks that an entry has one value per response token, since padding would hide another number.

    Raises:
        KeyError: a row lacks one of both keys.
        ValueError: a row with another number of values.
    """
    for row in rows.unbind(0):
        given, expected = entry(row, key).shape, entry(row, tokens).shape
        if given != expected:
            raise ValueError(
                f"{key!r} must have one value per response token, {list(expected)}; got {list(given)} on "
                f"{row_name(row)}; score the row again"
            )


def at_least_single(log_prob: Tensor) -> Tensor:
    """Half-precision log-probabilities as float32, others as they are: their sum over a row has 8 bits in bfloat16."""
    return log_prob.float() if log_prob.dtype in (torch.bfloat16, torch.float16) else log_prob


def response_mask(dist: torch.distributions.Distribution, log_prob: Tensor) -> Tensor:
    """The actor's response mask ``[B, T]`` bool.

    Raises:
        ValueError: the actor's distribution has none, or one of another shape.
    """
    mask: Tensor | None = getattr(dist, "mask", None)
    if mask is None or mask.shape != log_prob.shape:
        raise ValueError(
            f"the actor's get_dist must return a mask of its log-probabilities' shape {list(log_prob.shape)}, true for "
            f"response tokens; got {None if mask is None else list(mask.shape)}"
        )
    return mask


def scoring_keys(actor: Any) -> list[NestedKey]:
    """The entries that the actor's ``get_dist`` reads: its ``scoring_keys``, or without them its ``in_keys``."""
    keys = getattr(actor, "scoring_keys", None) or getattr(actor, "in_keys", None)
    return list(keys or ())


def row_name(row: TensorDictBase) -> str:
    """A row in messages: its task, group, slot and step, as far as it has them."""
    parts = [f"task {row[K.TASK_ID]}" if K.TASK_ID in row.keys(True) else "a row"]
    for name, key in (("group", K.GROUP_ID), ("slot", K.SLOT), ("step", K.STEP)):
        value = row.get(key, None)
        if value is not None:
            parts.append(f"{name} {int(value)}")
    return " ".join(parts)


def row_names(rows: TensorDictBase, chosen: Tensor) -> str:
    """The rows ``[B]`` where ``chosen`` bool ``[B]`` is true, the first :data:`NAMED_ROWS` by name."""
    named = [row for row, wanted in zip(rows.unbind(0), chosen.tolist(), strict=True) if wanted]
    more = f" and {len(named) - NAMED_ROWS} more" if len(named) > NAMED_ROWS else ""
    return ", ".join(map(row_name, named[:NAMED_ROWS])) + more
