"""The cache's state and its folder: one sub-folder per trace, images shared, index in the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from bepa_torchrl.storage import (
    FolderError,
    FolderWriter,
    PlainRow,
    add_plain,
    get_plain,
    read_folder,
    write_folder,
)

FORMAT, VERSION = "bepa_torchrl.trace_cache", 1


@dataclass(frozen=True, slots=True)
class CacheState:
    """The complete state of a cache.

    Args:
        seed: seed of the random choices.
        index: the writer's state: slots, metadata, counters.
        refreshes: number of refreshes per task.
        injections: number of injections per task.
        traces: per slot, a list of plain rows (:func:`bepa_torchrl.storage.plain_row`).
        sampler: ``kind``, the name of the sampler's class, and its ``state``; None: it has no state.
    """

    seed: int
    index: dict[str, Any]
    refreshes: dict[str, int]
    injections: dict[str, int]
    traces: list[list[PlainRow]]
    sampler: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """With format and version, for ``state_dict``."""
        sampler = {} if self.sampler is None else {"sampler": self.sampler}
        return {"format": FORMAT, "version": VERSION, **{name: getattr(self, name) for name in FIELDS}, **sampler}


FIELDS = tuple(name for name in CacheState.__dataclass_fields__ if name != "sampler")
_TENSORS = "sampler.safetensors"


def check_state(state: dict[str, Any]) -> CacheState:
    """Checks and parses the result of :meth:`CacheState.as_dict`.

    Raises:
        FolderError: the state is of another kind or version, or incomplete.
    """
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        raise FolderError(
            f"not the state of a trace cache of version {VERSION}: format {state.get('format')!r}, "
            f"version {state.get('version')!r}; save it again, or use the program that wrote it"
        )
    fields = {name: value for name, value in state.items() if name not in ("format", "version")}
    if set(fields) - {"sampler"} != set(FIELDS):
        raise FolderError(
            f"the state of a trace cache has {sorted(FIELDS)}, and may have sampler; got {sorted(fields)}"
        )
    return CacheState(**fields)


def write_state(path: str | Path, state: CacheState) -> None:
    """Saves a state as a folder.

    Raises:
        FolderError: as :func:`bepa_torchrl.storage.write_folder`; or the sampler's state does not consist of tensors,
            numbers and text.
    """
    meta = {name: getattr(state, name) for name in FIELDS} | {"traces": len(state.traces)}
    tensors: dict[str, Tensor] = {}
    if state.sampler is not None:
        plain, tensors = _split(state.sampler)
        meta["sampler"] = state.sampler | {"state": plain}

    def fill(folder: FolderWriter) -> None:
        if tensors:
            folder.add(_TENSORS, save(tensors))
        for slot, rows in enumerate(state.traces):
            add_plain(folder, _folder(slot), rows)

    write_folder(path, format=FORMAT, version=VERSION, meta=meta, fill=fill)


def read_state(path: str | Path) -> CacheState:
    """The state in a folder; raises as :func:`bepa_torchrl.storage.read_folder`."""
    folder = read_folder(path, format=FORMAT, version=VERSION)
    meta = dict(folder.meta)
    traces = [get_plain(folder, _folder(slot)) for slot in range(meta.pop("traces"))]
    if (sampler := meta.pop("sampler", None)) is not None:
        tensors = load(folder.get(_TENSORS)) if folder.has(_TENSORS) else {}
        sampler = sampler | {"state": sampler["state"] | tensors}
    return CacheState(traces=traces, sampler=sampler, **meta)


def _split(sampler: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A sampler's state without its tensors, and those."""
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in sampler["state"].items():
        if isinstance(value, Tensor):
            tensors[name] = value.contiguous()
        elif value is None or isinstance(value, bool | int | float | str):
            plain[name] = value
        else:
            raise FolderError(
                f"expected tensors, numbers and text as the state of the sampler {sampler['kind']}, got "
                f"{type(value).__name__} as {name}; save the cache's state_dict, or give it another set_sampler first"
            )
    return plain, tensors


def _folder(slot: int) -> str:
    return f"traces/{slot:06d}"
