"""The base policies of the bed with free words: what a checkpoint is, and whether it passes its gate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from bepa_torchrl.checkpoints import SHIPPED, checkpoint_folder
from osworld_gym.atomic import write_text
from recipes.study.bases import Base
from recipes.study.free_bed import SETTINGS
from recipes.study.runner import Log
from recipes.tiny.__main__ import measure_folder
from recipes.tiny.checkpoint import MANIFEST, file_hashes, read_manifest
from recipes.tiny.free_gate import free_gate_failures

#: seeds of the evaluations of a policy's gate, used for nothing else; by the figures of 11 to 16 the recipe was changed
EVALUATIONS = (17, 18)
EPISODES = 8  #: per task
FIGURES = "base"  #: folder of the base policy's files beside its results


def free_base(folder: Path, *, look: bool, name: str | None = None) -> Base:
    """The base policy of a checkpoint folder.

    Args:
        folder: written by ``python -m recipes.tiny --wording free`` or its ``snapshot``; or the name of a checkpoint
            that ships with the package, e.g. ``tiny_plans``.
        look: whether an unfinished training will do.
        name: of its results' folder; None: that of a checkpoint that ships, of others by the seed of their weights.

    Raises:
        ValueError: not such a folder, changed files, or a training that has not ended.
    """
    folder = Path(checkpoint_folder(str(folder)))
    make = "give the folder that `python -m recipes.tiny --wording free --out FOLDER` writes"
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"--base: {folder} has no {MANIFEST}; {make}")
    manifest = read_manifest(folder)
    if file_hashes(folder) != manifest["sha256"]:
        raise ValueError(f"--base: the files of {folder} are not those of its {MANIFEST}; {make}")
    recipe, step = manifest["recipe"], manifest["step"]
    if recipe.get("styles") is None:
        raise ValueError(f"--base: {folder} is no policy that thinks in free words; {make}")
    name, total = name or _shipped_name(folder) or f"seed-{recipe['seed']}", sum(recipe["steps"])
    if step < total:
        if not look:
            raise ValueError(f"--base: {folder} is at step {step} of {total}; wait for its end, or take a --look")
        name = f"{name}-step-{step}"
    return Base(f"free/{name}", folder, SETTINGS)


def _shipped_name(folder: Path) -> str | None:
    """The name of a checkpoint that ships with the package; None for others."""
    return next((name for name, (shipped, _) in SHIPPED.items() if shipped.resolve() == folder.resolve()), None)


@dataclass(frozen=True)
class Known:
    """What the files beside a base policy's results say about it.

    Args:
        manifest: of its checkpoint, without the files' hashes; ``weights``: hash of the weights.
        measured: seed of the evaluation → the figures of :func:`recipes.tiny.free_gate.measure_free`.
    """

    manifest: Mapping[str, Any]
    measured: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether its training has ended."""
        return bool(self.manifest["step"] >= sum(self.manifest["recipe"]["steps"]))

    def failures(self) -> list[str]:
        """Why it is not a policy that methods are compared on, one line each; empty: it passes its gate."""
        lines = [] if self.finished else [f"its training is at step {self.manifest['step']}"]
        for seed, figures in self.measured.items():
            lines += [f"evaluation {seed}: {line}" for line in free_gate_failures(figures)]
        if missing := self.missing:
            lines.append(f"evaluations that are not measured: {', '.join(map(str, missing))}")
        return lines

    @property
    def missing(self) -> list[int]:
        """The seeds of the evaluations that are to be measured; none if there are enough, of whatever seeds."""
        if len(self.measured) >= len(EVALUATIONS):
            return []
        return [seed for seed in EVALUATIONS if seed not in self.measured]


def read_known(out: Path) -> Known:
    """What is known about the base policy of the results in ``out``; evaluations of other weights are left out.

    Raises:
        OSError: nothing was noted about it.
    """
    folder = out / FIGURES
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    measured = {}
    for path in folder.glob("seed-*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["weights"] == manifest["weights"]:
            measured[int(path.stem.removeprefix("seed-"))] = found["measured"]
    return Known(manifest, dict(sorted(measured.items())))


def note_base(base: Base, out: Path) -> Known:
    """Writes the manifest of the base policy beside its results, and returns what is known about it."""
    manifest = {
        key: value for key, value in read_manifest(base.checkpoint).items() if key not in ("sha256", "measured")
    }
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    text = json.dumps({**manifest, "weights": base.hash()}, indent=1)
    write_text(out / FIGURES / MANIFEST, text + "\n")
    return read_known(out)


def measure_missing(base: Base, out: Path, *, processes: int, log: Log) -> Known:
    """Measures what the gate is about where it is not known for these weights (about 10 CPU minutes each)."""
    weights = base.hash()
    if missing := note_base(base, out).missing:
        log(f"{base.name}: measures the gate's figures with evaluation seeds {', '.join(map(str, missing))}")
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            asked = {seed: pool.submit(_measured, base.checkpoint, seed) for seed in missing}
            for seed, found in asked.items():
                text = json.dumps({"weights": weights, "measured": found.result()}, indent=1)
                write_text(out / FIGURES / f"seed-{seed}.json", text + "\n")
    return read_known(out)


def _measured(folder: Path, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    return measure_folder(folder, "free", EPISODES, seed)
