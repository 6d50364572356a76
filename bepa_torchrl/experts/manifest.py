"""Manifest: the task sets of an experiment (D_E, D_conv, D_self, expert-only) and the split of the task pool.

See docs/definitions.md, "Data sets".
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.experts.trace import TraceError, read_json
from osworld_gym.atomic import write_text
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task

SCHEMA = "bepa.manifest/1"


@dataclass(frozen=True)
class Manifest:
    """The sets of one experiment, fixed before training. Sizes of D_E, D_conv and D_self may all differ.

    Args:
        hashes: task id → content hash of every task in the sets.
        train: the training split.
        held_out: the other evaluated tasks.
        expert: D_E, tasks that an expert solved.
        converted: D_conv, tasks whose trace was converted.
        self_rolled: D_self, tasks with a successful self-rollout.
        base_solved: tasks that the base policy solved at least once in k attempts (Pass@k).
        provenance: ``converted`` and ``self_rolled`` → task id → the expert's run behind its trace
            (:class:`bepa_torchrl.data.provenance.Provenance`); empty in manifests of earlier versions.
    """

    hashes: Mapping[str, str]
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    expert: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    self_rolled: tuple[str, ...] = ()
    base_solved: tuple[str, ...] = ()
    provenance: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_disjoint(self.train, self.held_out, "the training split")
        for name in ("train", "held_out", "expert", "converted", "self_rolled", "base_solved"):
            unknown = sorted(set(getattr(self, name)) - set(self.hashes))
            if unknown:
                raise TraceError(f"manifest: {name} names tasks without a hash: {', '.join(unknown[:5])}")

    @property
    def expert_only(self) -> tuple[str, ...]:
        """D_self − Pass@k of the base policy: tasks solved only with the expert's help."""
        return expert_only(self.self_rolled, self.base_solved)

    @property
    def counts(self) -> dict[str, int]:
        """Sizes of all sets, for the log."""
        names = ("train", "held_out", "expert", "converted", "self_rolled", "base_solved", "expert_only")
        return {name: len(getattr(self, name)) for name in names}

    def check(self, suite: Suite) -> None:
        """Checks that every task of the manifest is in the suite, unchanged.

        Raises:
            TraceError: a task is missing or has changed; the message names it.
        """
        known = {task.id: task.content_hash for task in suite.tasks}
        for task_id, expected in self.hashes.items():
            actual = known.get(task_id)
            if actual != expected:
                what = "is missing" if actual is None else f"has changed (hash {actual}, manifest {expected})"
                raise TraceError(
                    f"manifest: task {task_id!r} of suite {suite.name!r} {what}; create the manifest again"
                )

    def save(self, path: Path) -> None:
        """Writes JSON, atomically."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self), "expert_only": self.expert_only}
        write_text(path, json.dumps(data, indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Reads what :meth:`save` wrote.

        Raises:
            TraceError: not a manifest of this schema, or its sets contradict each other.
        """
        data = read_json(path)
        if data.pop("schema", None) != SCHEMA:
            raise TraceError(f"{path}: expected schema {SCHEMA!r}; create the manifest again")
        data.pop("expert_only", None)
        try:
            hashes, provenance = dict(data.pop("hashes")), dict(data.pop("provenance", {}))
            return cls(hashes, **{name: tuple(ids) for name, ids in data.items()}, provenance=provenance)
        except (KeyError, TypeError) as error:
            raise TraceError(f"{path}: incomplete manifest ({type(error).__name__}: {error})") from error


def expert_only(self_rolled: Iterable[str], base_solved: Collection[str]) -> tuple[str, ...]:
    """D_self − Pass@k, in D_self's order."""
    return tuple(task_id for task_id in self_rolled if task_id not in set(base_solved))


def check_disjoint(cache: Iterable[str], held_out: Iterable[str], what: str = "the cache") -> None:
    """Checks that cache and held-out split are disjoint.

    Raises:
        TraceError: they share tasks; the message names them.
    """
    both = sorted(set(cache) & set(held_out))
    if both:
        raise TraceError(f"{what} and the held-out split share {len(both)} tasks: {', '.join(both[:5])}")


def split_pool(
    tasks: Sequence[Task], pool: Collection[str], *, seed: int, fraction: float = 0.8, extra: int = 8
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits tasks into (train, held_out): ``fraction`` of the pool and ``extra`` others train; the rest is held out.

    Args:
        tasks: all tasks of the suite; the result keeps their order.
        pool: ids of tasks solved by the expert, or by the base policy in k attempts.
        seed: seed of the random choice.
        fraction: share of the pool for training.
        extra: number of training tasks from outside the pool.

    Raises:
        TraceError: the pool has ids that are not in ``tasks``.
    """
    order = [task.id for task in tasks]
    unknown = sorted(set(pool) - set(order))
    if unknown:
        raise TraceError(f"the pool names unknown tasks: {', '.join(unknown[:5])}")
    generator = random.Random(derive_seed(seed, Stream.TASK_SPLIT))
    inside = [i for i in order if i in set(pool)]
    outside = [i for i in order if i not in set(pool)]
    chosen = set(generator.sample(inside, round(fraction * len(inside))))
    chosen |= set(generator.sample(outside, min(extra, len(outside))))
    return tuple(i for i in order if i in chosen), tuple(i for i in order if i not in chosen)


def task_hashes(tasks: Iterable[Task]) -> dict[str, str]:
    """Task id → content hash."""
    return {task.id: task.content_hash for task in tasks}
