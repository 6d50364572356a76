"""The checkpoint folder from which an engine starts and reloads: complete weights under every name, tied ones too."""

from __future__ import annotations

import copy
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bepa_torchrl.storage.lock import LOCK, FolderInUseError, check_free, locked
from osworld_gym.atomic import new_folder

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_PREFIX = "bepa-vllm-"
#: integer dtypes by their bytes
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def complete_weights(weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The weights under every name of ``shapes``. A tied head that is not given is the embedding.

    An engine keeps the old head of a tied checkpoint, silently, unless ``lm_head.weight`` is among the new weights.

    Raises:
        ValueError: a weight is missing, unknown or of another shape.
    """
    given = dict(weights)
    embedding = next((name for name in given if name.endswith(_EMBEDDING)), None)
    if _HEAD in shapes and _HEAD not in given and embedding is not None and shapes[embedding] == shapes[_HEAD]:
        given[_HEAD] = given[embedding]
    faults = {
        "missing": [name for name in shapes if name not in given],
        "unknown": [name for name in given if name not in shapes],
        "of another shape": [n for n, weight in given.items() if n in shapes and tuple(weight.shape) != shapes[n]],
    }
    for fault, names in faults.items():
        if names:
            raise ValueError(
                f"{len(names)} weights are {fault}, such as {names[0]}; expected those of named_weights() of a policy "
                "with the same model config"
            )
    return given


class Fingerprint:
    """A name for weights that are given one by one, in any order; others have another name.

    Each tensor counts by the sum of its bits as integers, computed where it is: cheap next to its way to the engine.
    Changes are missed only if they add up to exactly 0 in every single tensor.
    """

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}

    def add(self, name: str, weight: Tensor) -> None:
        """Counts a weight, contiguous and of the dtype that is sent."""
        bits = weight.view(_INTEGERS[weight.element_size()])
        self._lines[name] = f"{name} {tuple(bits.shape)} {int(bits.sum(dtype=torch.int64))}\n"

    def name(self) -> str:
        """The name of the weights so far."""
        return hashlib.sha256("".join(self._lines[name] for name in sorted(self._lines)).encode()).hexdigest()


def fingerprint(weights: Mapping[str, Tensor], dtype: torch.dtype) -> str:
    """The :class:`Fingerprint` of weights, cast to ``dtype``."""
    found = Fingerprint()
    for name, weight in weights.items():
        found.add(name, weight.detach().to(dtype if weight.is_floating_point() else weight.dtype).contiguous())
    return found.name()


def write_checkpoint(
    folder: Path, weights: Mapping[str, Tensor], *, model: Any, tokenizer: Any, image_processor: Any, dtype: torch.dtype
) -> Path:
    """Writes a checkpoint folder, atomically.

    Args:
        folder: does not exist yet.
        weights: under the names of a saved checkpoint; those that share memory are written once per name.
        model: the transformers model whose config is saved.
        tokenizer: is saved.
        image_processor: is saved.
        dtype: floating-point weights are cast to it.

    Raises:
        OSError: the disk is full.
    """
    with new_folder(folder) as target:
        config = copy.deepcopy(model.config)
        config.architectures = config.architectures or [
            type(model).__name__
        ]  # without, vLLM takes it for a pooling model
        config.save_pretrained(target)
        tokenizer.save_pretrained(target)
        image_processor.save_pretrained(target)
        save_file(_to_write(weights, dtype), target / "model.safetensors", metadata={"format": "pt"})
    return folder


def _to_write(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, which share no memory with each other, as safetensors requires."""
    written: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, weight in weights.items():
        tensor = weight.detach().to("cpu", dtype if weight.is_floating_point() else weight.dtype).contiguous()
        if tensor.data_ptr() in addresses:
            tensor = tensor.clone()
        addresses.add(tensor.data_ptr())
        written[name] = tensor
    return written


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for an engine's checkpoints, which are many gigabytes; first removes those that killed processes left.

    Whether its process has ended is seen by its lock, which works between containers that share the folder, too.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, FolderInUseError):
            if (left / LOCK).exists():  # if not, it is not one of ours
                check_free(left)
                shutil.rmtree(left)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))  # another process must not see it before it is locked
    with locked(made):
        folder = made.rename(made.with_name(made.name[1:]))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
