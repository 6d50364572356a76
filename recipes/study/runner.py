"""Runs what is missing: prepares each seed once, then trains the variants, a few at a time. Resumable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bepa_torchrl.evaluation.success_rate import subsets
from bepa_torchrl.experiment.config import load_config, read_settings, settings_to_yaml, with_changes
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.method_handle import MethodChild
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.training.step_metrics import SUFFIX
from osworld_gym.atomic import write_text
from osworld_gym.tasks.suites.registry import load_suite
from recipes.study.bases import SHIPPED, Base, base_hash
from recipes.study.prepared import claim_folder, prepared_base
from recipes.study.records import (
    RESULTS_VERSION,
    Result,
    commit,
    kept_settings,
    machine,
    other_settings,
    read_result,
    settings_hash,
    source_hash,
)
from recipes.study.variants import Variant

#: settings in which a run may differ from the shorter one that it continues
LENGTH = frozenset({"train.iterations", "eval.every"})
#: metrics of an iteration that a result keeps
CURVE = (
    "iteration", "collect/success", "groups", "groups_failed", "groups_solved", "cache/refreshed", "cache/injected",
    "cache/staleness", "cache/tasks", "cache/reworded", "cache/js", "cache/tail",
    "eval/train", "eval/held_out", "eval/expert_only",
    "collect/entropy", "collect/log_prob_success", "train/log_prob_off_policy", "total/episodes",
    "total/optimizer_steps", "total/seconds", "collect/staleness_mean", "collect/version_lag_mean",
    "train/rollout_kl_on_policy", "collect/steps", "collect/groups_further", "collect/prefix_episodes",
    "collect/prefix_steps", "collect/prefix_mismatches", "collect/replayed_steps",
)  # fmt: skip
STARTS = "/starts_"  #: and the shares of ``record.starts``
SOURCE = "source.txt"  #: in a run's folder: a hash of the code for each start with other code
Log = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """A variant with a seed and its tuned settings.

    Args:
        variant: what is run.
        seed: the seed of everything random.
        tuned: the method's tuned settings, and what overrides them.
        base: the base policy that it starts from.
    """

    variant: Variant
    seed: int
    tuned: tuple[str, ...] = ()
    base: Base = SHIPPED

    @property
    def name(self) -> str:
        """``<variant>-<seed>``."""
        return f"{self.variant.name}-{self.seed}"

    def settings(self) -> Settings:
        """All of its settings."""
        return load_config(
            [*self.variant.overrides, *self.base.overrides, *self.tuned, f"seed={self.seed}", "compare=[]"]
        )

    def group(self) -> str:
        """The folder of the preparation that it shares with others."""
        parts = [override.split("=", 1)[1] for override in self.variant.preparation]
        return "-".join([f"seed{self.seed}", *parts])


def run_missing(
    runs: Sequence[Run],
    work: Path,
    out: Path,
    *,
    processes: int,
    log: Log,
    summary: Callable[[Run, Path], Result] | None = None,
) -> int:
    """Makes the result file of every run that has none for its settings; returns the number of failed runs.

    Args:
        runs: what to run.
        work: folder of preparations, checkpoints and logs; a later call continues from it.
        out: folder of the result files.
        processes: trainings at a time.
        log: is called with a line about each step.
        summary: makes a finished run's result from the run and ``work``; None: :func:`summarise`.

    Raises:
        ResultError: a result file is damaged, or a folder of ``work`` is of another base policy or preparation.
    """
    summary = summary or summarise
    waiting = [run for run in runs if not up_to_date(run, out)]
    log(f"{len(runs) - len(waiting)} of {len(runs)} results exist; {len(waiting)} to run")
    running: dict[str, tuple[Run, MethodChild]] = {}
    failed = 0
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                run = waiting.pop(0)
                running[run.name] = (run, _start(run, work, log))
            next(iter(running.values()))[1].wait(1.0)
            for name, (run, child) in list(running.items()):
                code = child.wait(0.0)
                if code is None:
                    continue
                del running[name]
                if code == 0:
                    summary(run, work).write(out)
                    log(f"{name}: done")
                else:
                    failed += 1
                    log(child.failure())
    finally:
        for _, child in running.values():
            child.stop()
    return failed


def up_to_date(run: Run, out: Path) -> bool:
    """Whether the run's result file exists and was made with its settings, this code and this base policy."""
    path = out / f"{run.name}.json"
    if not path.exists():
        return False
    found = read_result(path)
    settings = run.settings()
    if (found.code, found.base) != (RESULTS_VERSION, base_hash(settings.policy.checkpoint)):
        return False
    made = dict(found.settings)
    if run.base.folder is not None:  # the same weights may be in another folder
        made["policy.checkpoint"] = settings.policy.checkpoint
    return not other_settings(made, settings)


def _start(run: Run, work: Path, log: Log) -> MethodChild:
    """Starts the training, or continues one that was interrupted."""
    root = work / run.group()
    _prepare(run, root, log)
    folder, settings = root / run.variant.name, run.settings()
    config = folder / "config.yaml"
    if config.exists() and other_settings(kept_settings(read_settings(config)), settings):
        shutil.rmtree(folder)  # of other settings, which no result can be made from
    if run.variant.continues and not config.exists() and _is_start(root / run.variant.continues, settings):
        shutil.copytree(root / run.variant.continues, folder, dirs_exist_ok=True)
    resume = config.exists()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(config, settings_to_yaml(with_changes(settings, {"resume": resume})))
    note_source(folder)
    log(f"{run.name}: {'continues' if resume else 'starts'}")
    return MethodChild(folder, threads=settings.threads)


def _is_start(folder: Path, settings: Settings) -> bool:
    """Whether ``folder`` has a finished run that differs from ``settings`` in :data:`LENGTH` alone."""
    if not (folder / "results.json").exists():
        return False
    made = kept_settings(read_settings(folder / "config.yaml"))
    return set(other_settings(made, settings)) <= LENGTH


def note_source(folder: Path) -> None:
    """Adds the hash of the code that is about to run to the run's folder, unless it is the last one there."""
    noted = noted_sources(folder)
    if noted[-1:] != [now := source_hash()]:
        write_text(folder / SOURCE, "\n".join([*noted, now]) + "\n")


def noted_sources(folder: Path) -> list[str]:
    """The hashes of the code that ran, in order; empty for a run whose starts were not noted."""
    path = folder / SOURCE
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def _prepare(run: Run, root: Path, log: Log) -> None:
    """The preparation that the runs of a group share, if it is missing; one that was interrupted goes on."""
    settings = load_config([*run.variant.overrides, *run.base.overrides, f"seed={run.seed}", "compare=[]"])
    claim_folder(root, settings)
    if (root / "prepared").exists():
        return
    log(f"{run.group()}: prepares")
    policy = make_policy(settings, seed=settings.seed)
    prepared_run(settings, root, policy, make_tasks(settings), Console(width=120))


def summarise(run: Run, work: Path) -> Result:
    """The result of a finished run."""
    folder, settings = work / run.group() / run.variant.name, run.settings()
    base = prepared_base(work / run.group(), settings)
    name = None if run.base.folder is None else run.base.name
    return result_of(run.variant.name, folder, settings, base, checkpoint=name)


def result_of(variant: str, folder: Path, settings: Settings, base: str, *, checkpoint: str | None = None) -> Result:
    """The result of a method's finished training.

    Args:
        variant: name of the result.
        folder: the folder of the method, next to its ``prepared/``.
        settings: with which it ran.
        base: hash of the base policy's weights.
        checkpoint: its name in the result's settings; None: as in ``settings``.
    """
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    prepared = load_preparation(folder.parent / "prepared")
    suite = load_suite(settings.env.suite)
    train, held_out = (tuple(map(suite.task, ids)) for ids in (prepared.manifest.train, prepared.manifest.held_out))
    lines = read_lines(folder / "iterations.jsonl")
    kept = kept_settings(settings) | ({} if checkpoint is None else {"policy.checkpoint": checkpoint})
    if lines:  # runs of earlier versions have no shares of the final evaluation
        lines[-1] |= results.get("starts", {})
    return Result(
        variant=variant,
        seed=settings.seed,
        settings=kept,
        code=RESULTS_VERSION,
        base=base,
        commit=commit(),
        machine=machine(),
        sets=subsets(train, held_out, prepared.manifest.expert_only),
        counts=results["counts"],
        base_counts={mode: found.to_json() for mode, found in prepared.base.items()},
        totals=results["totals"],
        preparation=prepared.metrics,
        curve=[_curve_point(line) for line in lines],
        source="+".join(noted_sources(folder)),
        config=settings_hash(kept),
    )


def _curve_point(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of one iteration that a result keeps.

    Injected rows always have a signal, so that their log-prob over the computed rows is that over all rows.
    """
    starts = [key for key in line if STARTS in key]
    found = {key: line.get(key, line.get(key + SUFFIX)) for key in (*CURVE, *starts)}
    return {key: round(float(value), 5) for key, value in found.items() if value is not None}
