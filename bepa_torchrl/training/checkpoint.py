"""Checkpoints of a run: TorchRL's pickle-free folders with a sha256 of every file, verified before loading.

    iteration-000000000010/manifest.json                  TorchRL's manifest; the checksums are in its metadata
    iteration-000000000010/components/<nr>-<name>/…       weights, optimiser, cache, random states, progress
    iteration-000000000010.damaged/                       renamed by a resume
    iteration-000000000010.left/                          renamed by a resume from an older one

Saving is atomic, and the checkpoint is flushed to disk when ``save`` returns. Older ones are removed afterwards. One
whose weights or optimiser's state are not finite is not written, and is damaged if it is there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, cuda, no_grad
from torchrl.checkpoint import (
    Checkpoint,
    CheckpointAdapter,
    CheckpointError,
    CheckpointRotation,
    GlobalRNGState,
)

from bepa_torchrl.policies.finite import check_finite, not_finite
from bepa_torchrl.policies.transformers.host_state import state_on_cpu, without_ties
from bepa_torchrl.policies.transformers.lora import adapter_weights
from bepa_torchrl.storage.state import load_state, save_state
from bepa_torchrl.training.newest import PREFIX as _PREFIX
from osworld_gym.atomic import sync, sync_tree

WEIGHTS_FILE, VERSION_FILE = "model.safetensors", "version.json"  #: of :class:`PolicyWeights`
_SUMS, _DAMAGED, _LEFT = "sha256", ".damaged", ".left"
#: components whose tensors must be finite; in others NaN is a value (old log-probs that are not computed yet)
_FINITE = frozenset({"weights", "stepper", "sharded"})
_MARGIN = 1.2  #: free space required by a save, as a multiple of the newest checkpoint's size
_CHUNK = 1 << 20
_HASHES = 4  #: files that are hashed at once


class PolicyWeights:
    """The policy as a checkpoint component: its model's weights and its version.

    Of a model with LoRA adapters, whose other weights are frozen, the adapters' weights alone are saved; the others are
    those of the checkpoint with which the run was started.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def dump(self, path: Path) -> None:
        """Writes the weights into the folder ``path``.

        Raises:
            OSError: writing fails.
            NonFiniteError: a weight is NaN or infinite; nothing is written, older checkpoints stay.
        """
        check_finite(self.policy.model.named_parameters(), "the policy's weights")
        try:
            adapters = {name: weight.detach().cpu() for name, weight in adapter_weights(self.policy.model).items()}
            own, ties = (adapters, {}) if adapters else without_ties(state_on_cpu(self.policy.model))
            save_file({name: weight.contiguous() for name, weight in own.items()}, path / WEIGHTS_FILE, ties or None)
        except SafetensorError as error:
            raise OSError(f"{path / WEIGHTS_FILE}: {error}") from error
        (path / VERSION_FILE).write_text(json.dumps({"policy_version": self.policy.version}))

    def load(self, path: Path) -> None:
        """Loads the weights in place. Raises CheckpointError if they are damaged or of another model."""
        try:
            if adapters := adapter_weights(self.policy.model):
                _copy_into(adapters, load_file(path / WEIGHTS_FILE))
            else:
                load_model(self.policy.model, path / WEIGHTS_FILE)  # by the host: a GPU has no room for a second copy
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path / WEIGHTS_FILE}: damaged, or of another model: {error}") from error
        self.policy.version = int(json.loads((path / VERSION_FILE).read_text())["policy_version"])


@no_grad()
def _copy_into(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raises ValueError if names or shapes differ; nothing is changed."""
    shapes = [{name: tuple(weight.shape) for name, weight in weights.items()} for weights in (own, saved)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"expected {len(own)} adapter weights, found {len(saved)}, or other shapes")
    for name, weight in own.items():
        weight.copy_(saved[name])


class RandomStates(GlobalRNGState):
    """The states of all random number generators of the process as a checkpoint component.

    Those of GPUs that the loading process does not have are left out, as on a machine with fewer of them; TorchRL's
    component raises IndexError there.
    """

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Sets the generators that there are."""
        count = cuda.device_count() if cuda.is_available() else 0
        states = dict(state_dict)
        if of_gpus := list(states.pop("torch_cuda", ()))[:count]:
            states["torch_cuda"] = of_gpus
        super().load_state_dict(states)


class LoadWith:
    """A checkpoint component that is loaded and never saved.

    Args:
        load: called with the component's folder.
    """

    def __init__(self, load: Callable[[Path], None]) -> None:
        self.load = load


@dataclass(frozen=True, slots=True)
class Recovered:
    """The checkpoint from which a run can be resumed.

    Args:
        path: folder of the newest intact checkpoint.
        step: its iteration.
        notes: one line per damaged checkpoint that was renamed.
    """

    path: Path
    step: int
    notes: tuple[str, ...]


def components_in(path: Path) -> set[str]:
    """Names of a checkpoint's components. Raises CheckpointError if its manifest cannot be read."""
    return set(Checkpoint.manifest(path)["components"])


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: parent folder, created by the first save; used by one process at a time
            (:func:`bepa_torchrl.storage.lock.locked`).
        keep: number of newest checkpoints kept, at least 1; with 2 or more a damaged one does not lose the run.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._rotation = CheckpointRotation(folder, keep_last=keep, prefix=_PREFIX)
        self._saved: int | None = None

    def save(self, components: Mapping[str, Any], *, step: int) -> Path:
        """Writes one checkpoint, then removes the oldest.

        Args:
            components: each with ``dump(folder)`` and ``load(folder)``, or ``state_dict`` and ``load_state_dict``.
            step: the iteration, >= 0.

        Raises:
            OSError: writing failed, for example because the disk is full; older checkpoints are unchanged.
        """
        path = self.folder / f"{_PREFIX}-{step:012d}"
        if self._saved == step:
            return path
        self._check_space()
        sums: dict[str, str] = {}  # filled while the components are written, before TorchRL writes the manifest
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _checkpoint(components, sums).save(path, metadata={_SUMS: sums})
            sync(path / "manifest.json")
            sync_tree(path)
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            text = getattr(error, "strerror", None) or str(error)
            raise OSError(f"checkpoint {path} could not be saved ({text}); {_FREE_SPACE}") from error
        self._saved = step
        self._rotation.prune()
        return path

    def paths(self) -> list[tuple[int, Path]]:
        """The (iteration, folder) of every checkpoint, the newest first, except those renamed as damaged."""
        checkpoints = []
        for path in self.folder.glob(f"{_PREFIX}-*"):
            number = path.name.removeprefix(f"{_PREFIX}-")
            if number.isdigit() and path.is_dir():
                checkpoints.append((int(number), path))
        return sorted(checkpoints, reverse=True)

    def recover(self) -> Recovered | None:
        """Finds the newest intact checkpoint and renames newer, damaged ones; None if there is no checkpoint.

        Raises:
            CheckpointError: every checkpoint is damaged; none is renamed.
            OSError: a checkpoint cannot be read for another reason (permissions).
        """
        damaged: list[tuple[Path, str]] = []
        for step, path in self.paths():
            reason = damage(path)
            if reason is None:
                return Recovered(path, step, tuple(_set_aside(bad, why, step) for bad, why in damaged))
            damaged.append((path, reason))
        if damaged:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged)
            raise CheckpointError(
                f"no intact checkpoint in {self.folder} ({reasons}); "
                "restore one from a copy, or remove that folder to start again from iteration 0"
            )
        return None

    def leave(self, path: Path) -> list[str]:
        """Renames the checkpoints that are newer than one of this folder, from which the training goes on.

        Returns:
            one line for the log per renamed checkpoint.
        """
        lines, steps = [], {found: step for step, found in self.paths()}
        for found, step in steps.items():
            if step > steps.get(path, step):
                aside = found.with_name(found.name + _LEFT)
                shutil.rmtree(aside, ignore_errors=True)
                found.rename(aside)
                lines.append(f"checkpoint {found.name} is newer than {path.name}, renamed to {aside.name}")
        if lines:
            self._saved = None
        return lines

    def load(self, path: Path, components: Mapping[str, Any]) -> None:
        """Loads one checkpoint into the components, in place.

        Raises:
            CheckpointError: it does not match the components.
        """
        _checkpoint(components, {}).load(path, map_location="cpu", strict="error")

    def remove_leftovers(self) -> None:
        """Removes unfinished saves of killed processes. Call only while holding the run's lock."""
        for path in self.folder.glob(f".{_PREFIX}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _check_space(self) -> None:
        newest = self.paths()[:1]
        if not newest:
            return  # then a full disk shows when writing
        needed = _MARGIN * sum(path.stat().st_size for path in newest[0][1].rglob("*") if path.is_file())
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(
                errno.ENOSPC,
                f"disk full: a checkpoint requires {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; {_FREE_SPACE}",
                str(self.folder),
            )


_FREE_SPACE = "the previous checkpoint is intact: free some space and go on with resume=true"


def damage(path: Path) -> str | None:
    """Why a checkpoint is damaged, or None if all files of its manifest exist, match their checksums, and are finite.

    Raises:
        OSError: a file cannot be read for another reason (permissions).
    """
    try:
        manifest = Checkpoint.manifest(path)
        sums = manifest["metadata"][_SUMS]
        files = {f"{part['path']}/{file}" for part in manifest["components"].values() for file in part["files"]}
        if files != set(sums):
            return "its manifest is damaged"
        found = _sha256_of({name: path / name for name in sums})
        for name, expected in sums.items():
            if found[name] != expected:
                return f"{name} does not have its checksum"
        parts = [path / part["path"] for name, part in manifest["components"].items() if name in _FINITE]
        if bad := _not_finite(file for part in parts for file in part.rglob("*.safetensors")):
            return f"{len(bad)} of its tensors are not finite, such as {bad[0]}"
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest is damaged"
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            raise
        return f"{Path(str(error.filename)).name} cannot be read ({error.strerror})"
    return None


def _not_finite(files: Iterable[Path]) -> list[str]:
    """Names of the tensors of safetensors files that are not finite; one tensor is read at a time."""
    names = []
    for file in sorted(files):
        with safe_open(file, framework="pt") as opened:
            names += not_finite((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118 - no mapping
    return names


class _CheckedAdapter(CheckpointAdapter):
    """Writes a component by its ``dump``, or its ``state_dict`` without pickle; records the sha256 of each file."""

    adapter_id, format_version = "bepa_torchrl.checked", 1

    def __init__(self, sums: dict[str, str]) -> None:
        self.sums = sums

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises OSError if writing fails, TypeError for a state with unsupported types."""
        path.mkdir(parents=True)
        if hasattr(component, "dump"):
            component.dump(path, *args, **kwargs)
        else:
            save_state(path, component.state_dict(*args, **kwargs))
        files = [file for file in path.rglob("*") if file.is_file()]
        self.sums |= _sha256_of(
            {f"{path.parent.name}/{file.relative_to(path.parent).as_posix()}": file for file in files}
        )

    def load(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any], **_: Any) -> None:
        """Loads in place; raises as the component does."""
        if hasattr(component, "load"):
            component.load(path, *args, **kwargs)
        else:
            component.load_state_dict(load_state(path), *args, **kwargs)


def _checkpoint(components: Mapping[str, Any], sums: dict[str, str]) -> Checkpoint:
    checkpoint, adapter = Checkpoint(), _CheckedAdapter(sums)
    for name, component in components.items():
        checkpoint.register(name, component, adapter=adapter)
    return checkpoint


def _set_aside(path: Path, reason: str, step: int) -> str:
    """Renames a damaged checkpoint, replacing an earlier one of that name. Returns a line for the log."""
    aside = path.with_name(path.name + _DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return f"checkpoint {path.name} is damaged ({reason}), renamed to {aside.name}; going on from iteration {step}"


def _sha256_of(files: Mapping[str, Path]) -> dict[str, str]:
    """The sums of files by name, several at a time: hashlib computes outside of Python's lock."""
    if not files:
        return {}
    with ThreadPoolExecutor(min(len(files), _HASHES)) as threads:
        return dict(zip(files, threads.map(_sha256, files.values()), strict=True))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
