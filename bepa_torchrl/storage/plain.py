"""Converts rows to plain Python and back, including text and bytes, which tensordict's state_dict loses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

#: the entries of one row as (key, value)
PlainRow = list[tuple[tuple[str, ...], Any]]
#: allowed types of a row's entries in addition to tensors; tuples and lists of these are allowed too
PLAIN = (str, bytes, bool, int, float, type(None))


def plain_row(row: TensorDictBase) -> PlainRow:
    """The entries of one row, ``[]``, as (key, value): cloned tensors on the CPU, text, bytes, numbers, tuples.

    Raises:
        TypeError: an entry of another type; the message contains the key.
        ValueError: ``row`` has batch dimensions.
    """
    if row.batch_dims:
        raise ValueError(f"a row has batch size []; got {list(row.batch_size)}: unbind a batch first")
    entries = []
    for key in row.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        value = row[key]
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        else:
            _check_plain(key, value)
        entries.append((key if isinstance(key, tuple) else (key,), value))
    return entries


def row_from_plain(entries: PlainRow) -> TensorDict:
    """The inverse of :func:`plain_row`; tensors are cloned."""
    row = TensorDict({}, batch_size=[])
    for key, value in entries:
        if isinstance(value, torch.Tensor):
            row.set(tuple(key), value.clone())
        else:
            row.set_non_tensor(tuple(key), value)  # item assignment would convert a tuple of bytes to an array
    return row


def _check_plain(key: Any, value: Any) -> None:
    if isinstance(value, (tuple, list)):
        for part in value:
            _check_plain(key, part)
    elif not isinstance(value, PLAIN) or isinstance(value, Mapping):
        raise TypeError(f"entry {key!r} is a {type(value).__name__}; rows hold tensors, text, bytes and numbers")
