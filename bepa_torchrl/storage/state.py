"""Saves a ``state_dict`` in a folder without pickle: tensors as safetensors, the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

_TENSORS, _TREE = "tensors.safetensors", "state.json"


def save_state(folder: Path, state: Mapping[Any, Any]) -> None:
    """Writes a state made of tensors, mappings, lists, tuples, text, numbers and None into an existing folder.

    Raises:
        TypeError: a value of another type; the message contains its path in the state.
        OSError: writing failed.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "state")
    try:
        save_file(tensors, folder / _TENSORS)
    except SafetensorError as error:
        raise OSError(f"{folder / _TENSORS}: {error}") from error
    (folder / _TREE).write_text(json.dumps(tree), encoding="utf-8")


def load_state(folder: Path) -> Any:
    """What :func:`save_state` wrote, tensors on the CPU.

    Raises:
        OSError, ValueError, SafetensorError: a file is missing or damaged.
    """
    tensors = load_file(folder / _TENSORS)
    # copied out of the memory-mapped file, so that tensors are aligned
    return _decode(json.loads((folder / _TREE).read_text(encoding="utf-8")), lambda name: tensors[name].clone())


def open_state(folder: Path) -> Any:
    """What :func:`save_state` wrote, with safetensors' slices instead of tensors: of these a reader takes some rows.

    Raises:
        OSError, ValueError, SafetensorError: a file is missing or damaged.
    """
    file = safe_open(folder / _TENSORS, framework="pt")
    return _decode(json.loads((folder / _TREE).read_text(encoding="utf-8")), file.get_slice)


def _encode(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone()  # a copy: safetensors rejects tensors that share memory
        return {"tensor": name}
    if isinstance(value, Mapping):
        items = value.items()
        return {"dict": [[_key(key, where), _encode(item, tensors, f"{where}[{key!r}]")] for key, item in items]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"{where} is a {type(value).__name__}; a saved state holds tensors, text, numbers and containers")


def _key(key: Any, where: str) -> str | int:
    if isinstance(key, (str, int)):
        return key
    raise TypeError(f"a key of {where} is a {type(key).__name__}; keys are text or integers")


def _decode(value: Mapping[str, Any], tensor: Callable[[str], Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "dict":
        return {key: _decode(item, tensor) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_decode(item, tensor) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "value":
        return content
    raise ValueError(f"a saved state has an entry of unknown kind {kind!r}; it was written by another program")
