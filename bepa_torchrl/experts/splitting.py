"""The task sets of an experiment as files: the pool of solved tasks, training and held-out, expert-only, D_upd.

    manifest.json                                    all sets, with the tasks' hashes (a Manifest)
    pool.json, train.json, held_out.json             lists {domain: [task id, ...]}, as env.train_split=FILE takes them
    expert_only.json                                 D_self − Pass@k, if D_self is known
    updated.json                                     D_upd: those of them whose cache a run has refreshed

Paper, appendix on the training set and section on internalisation; docs/definitions.md, "Data sets".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bepa_torchrl.experts.manifest import Manifest, split_pool, task_hashes
from bepa_torchrl.experts.trace import TraceError, read_json
from bepa_torchrl.training.newest import PREFIX, newest_checkpoint
from osworld_gym.atomic import write_text
from osworld_gym.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Split:
    """The sets of an experiment.

    Args:
        manifest: training and held-out tasks, those that the expert and the base policy solved, D_self.
        updated: D_upd, the expert-only tasks of which a run's own successes entered its cache; None: no run is given.
    """

    manifest: Manifest
    updated: tuple[str, ...] | None = None

    @property
    def pool(self) -> tuple[str, ...]:
        """Tasks solved by the expert, or by the base policy in k attempts, in the order of the hashes."""
        solved = {*self.manifest.expert, *self.manifest.base_solved}
        return tuple(task_id for task_id in self.manifest.hashes if task_id in solved)

    @property
    def sets(self) -> dict[str, tuple[str, ...]]:
        """The sets that become files, by name."""
        manifest = self.manifest
        sets = {"pool": self.pool, "train": manifest.train, "held_out": manifest.held_out}
        if manifest.self_rolled:
            sets["expert_only"] = manifest.expert_only
        return sets if self.updated is None else sets | {"updated": self.updated}


def make_split(
    tasks: Sequence[Task],
    *,
    expert: Collection[str],
    base: Mapping[str, tuple[int, int]],
    self_rolled: Collection[str] = (),
    seed: int = 0,
    fraction: float = 0.8,
    extra: int = 8,
) -> Split:
    """Splits tasks as the paper does: ``fraction`` of the pool and ``extra`` other tasks train, the rest is held out.

    Args:
        tasks: all tasks of the experiment.
        expert: ids of the tasks that the expert solved.
        base: task id → (successes, valid episodes) of the base policy.
        self_rolled: ids of the tasks of D_self.
        seed: as of :func:`~bepa_torchrl.experts.manifest.split_pool`.
        fraction: likewise.
        extra: likewise.

    Raises:
        TraceError: a solved task is not among the tasks.
        ValueError: ``fraction`` is outside [0, 1], or ``extra`` below 0.
    """
    if not 0 <= fraction <= 1 or extra < 0:
        raise ValueError(f"split: expected --fraction in [0, 1] and --extra >= 0, got {fraction:g} and {extra}")
    solved = tuple(task_id for task_id, (wins, _) in base.items() if wins)
    train, held_out = split_pool(tasks, {*expert, *solved}, seed=seed, fraction=fraction, extra=extra)
    order = [task.id for task in tasks]
    manifest = Manifest(
        hashes=task_hashes(tasks),
        train=train,
        held_out=held_out,
        expert=tuple(task_id for task_id in order if task_id in set(expert)),
        self_rolled=tuple(task_id for task_id in order if task_id in set(self_rolled)),
        base_solved=solved,
    )
    return Split(manifest)


def split_of_run(run: Path, method: str) -> Split:
    """The sets that a run started from, and D_upd by the cache of the method's newest checkpoint.

    Raises:
        TraceError: it is no run, or its method has no checkpoint with a cache.
        FolderError: the cache is damaged.
    """
    manifest = Manifest.load(run / "prepared" / "manifest.json")
    folder = run / method / "checkpoints"
    newest = newest_checkpoint(folder)
    caches = [] if newest is None else sorted((folder / f"{PREFIX}-{newest:012d}" / "components").glob("*-cache"))
    if not caches:
        raise TraceError(
            f"{run}: no checkpoint of {method!r} with a cache; name the run's folder, and with --method a method of it"
        )
    from bepa_torchrl.cache.saving import read_state  # requires torch

    refreshes = read_state(caches[0]).refreshes
    return Split(manifest, tuple(task_id for task_id in manifest.expert_only if refreshes.get(task_id)))


def read_pass_k(path: Path, tasks: Sequence[Task]) -> tuple[int, dict[str, tuple[int, int]]]:
    """k, and (successes, valid episodes) per task, of ``pass_k.json`` of an earlier split.

    Raises:
        TraceError: it is no such file, or a task is not in it.
    """
    data = read_json(path)
    try:
        counts = {task.id: (int(data["counts"][task.id][0]), int(data["counts"][task.id][1])) for task in tasks}
        return int(data["k"]), counts
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise TraceError(
            f"{path}: expected k and the counts of all {len(tasks)} tasks ({type(error).__name__}: {error}); give the "
            "pass_k.json of a split of the same tasks"
        ) from error


def solved_by_experts(sources: Sequence[str], tasks: Iterable[Task]) -> set[str]:
    """Ids of the tasks that a run of the sources solved; no screenshot is loaded. Raises TraceError as their check."""
    if not sources:
        return set()
    from bepa_torchrl.experts.readers.check import check_sources  # the readers are many, and not of every run
    from bepa_torchrl.experts.readers.run import Outcome

    runs = check_sources(sources, tasks).runs
    return {run.task for run in runs if run.outcome == Outcome.success and not run.skipped}


def write_split(folder: Path, split: Split, tasks: Iterable[Task]) -> None:
    """Writes the files of a split into a folder. Raises OSError if it cannot."""
    domains = {task.id: task.domain or "tasks" for task in tasks}
    split.manifest.save(folder / "manifest.json")
    for name, ids in split.sets.items():
        by_domain: dict[str, list[str]] = {}
        for task_id in ids:
            by_domain.setdefault(domains.get(task_id, "tasks"), []).append(task_id)
        write_text(folder / f"{name}.json", json.dumps(by_domain, indent=1, ensure_ascii=False))
