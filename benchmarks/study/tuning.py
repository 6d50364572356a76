"""Hyper-parameters: every method gets the same trials on the validation tasks, with a seed of their own.

Four trials of 12 iterations; the best two go on to the study's 40, since a rate that learns fastest at first can fail
later. Methods without iterations (SFT alone) are trained to the end in their trials.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.study.records import Result, ResultError, read_result
from benchmarks.study.runner import Run
from benchmarks.study.variants import LENGTH, METHODS, Variant
from bepa_torchrl.experiment.methods import ALGOS
from osworld_gym.atomic import write_text

SEEDS = (100,)
#: training and evaluation on the validation tasks only, shorter than the study's runs
SETTINGS = (
    "env.train_split=validation",
    "env.held_out_split=null",
    "train.iterations=12",
    "eval.every=0",
    "eval.final_episodes=16",
    "record.every=0",
    "expert.pass_k=1",
)
_LOW, _MIDDLE, _HIGH = "optimizer.lr=1e-4", "optimizer.lr=3e-4", "optimizer.lr=1e-3"
#: learning rates with four updates per iteration, and one with a single update
_RL = ((_LOW,), (_MIDDLE,), (_HIGH,), (_HIGH, "train.minibatch_groups=16"))
_SFT = tuple(product(("sft.lr=1e-4", "sft.lr=3e-4"), ("sft.epochs=1", "sft.epochs=5")))
#: four trials for each method
GRIDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("grpo", "bepa", "level1", "level2", "replacement", "arpo"), _RL),
    "luffy": tuple(product((_MIDDLE, _HIGH), ("algo.gamma=0.1", "algo.gamma=0.3"))),
    "sft": _SFT,
    "sft_self": _SFT,
    "rl_sft": ((_MIDDLE, "sft.weight=0.01"), (_MIDDLE, "sft.weight=0.1"), (_MIDDLE, "sft.weight=1.0"),
               (_HIGH, "sft.weight=0.1")),
    "sft_rl": tuple(product((_MIDDLE, _HIGH), ("sft.lr=3e-5", "sft.lr=1e-4"))),
}  # fmt: skip
CHOICES = Path(__file__).with_name("tuned.json")  #: the winners and all validation scores
FINALISTS = 2  #: of each method's trials, go on


def trials() -> list[Run]:
    """Every run of the search."""
    return [
        Run(trial_variant(algo, number), seed, settings)
        for algo, grid in GRIDS.items()
        for number, settings in enumerate(grid)
        for seed in SEEDS
    ]


def trial_variant(algo: str, number: int) -> Variant:
    """The variant of one trial; ``preparation`` keeps it apart from the study's preparations."""
    return Variant(f"tune_{algo}_{number}", algo, settings=SETTINGS[2:], preparation=SETTINGS[:2])


def final_variant(algo: str, number: int) -> Variant:
    """The variant of a trial that goes on."""
    trial = trial_variant(algo, number)
    settings = (*trial.settings, LENGTH)
    return replace(trial, name=f"{trial.name}_long", settings=settings, continues=trial.name)


def finals(folder: Path) -> list[Run]:
    """The runs that go on: the best trials of every method that has iterations.

    Raises:
        ResultError: a trial's result is missing or damaged.
    """
    found = []
    for algo, grid in GRIDS.items():
        if ALGOS[algo].rl:
            scores = scores_of(folder, algo, trial_variant)
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:FINALISTS]
            found += [Run(final_variant(algo, number), seed, grid[number]) for number in sorted(best) for seed in SEEDS]
    return found


def choose(folder: Path) -> dict[str, object]:
    """Writes the winners: of the runs that went on, or of the trials of a method that has no iterations.

    Raises:
        ResultError: a result is missing or damaged.
    """
    found: dict[str, object] = {}
    going_on = {run.variant.name for run in finals(folder)}
    for algo, grid in GRIDS.items():
        short = scores_of(folder, algo, trial_variant)
        long = scores_of(folder, algo, final_variant, [n for n in short if final_variant(algo, n).name in going_on])
        last = long or short
        best = max(last, key=last.__getitem__)
        found[algo] = {
            "settings": list(grid[best]),
            "scores": {" ".join(grid[number]): value for number, value in short.items()},
            "longer": {" ".join(grid[number]): value for number, value in long.items()},
        }
    write_text(CHOICES, json.dumps(found, indent=1) + "\n")
    return found


def scores_of(
    folder: Path, algo: str, variant: Callable[[str, int], Variant], numbers: Sequence[int] | None = None
) -> dict[int, float]:
    """Number of the trial → its score, the mean over :data:`SEEDS`; of all trials, or of some.

    Raises:
        ResultError: a result is missing or damaged.
    """
    found = {}
    for number in range(len(GRIDS[algo])) if numbers is None else numbers:
        paths = [folder / f"{variant(algo, number).name}-{seed}.json" for seed in SEEDS]
        if missing := [path.name for path in paths if not path.exists()]:
            raise ResultError(f"{folder}: no {missing[0]}; run `python -m benchmarks.study --tune`")
        found[number] = round(mean(score(read_result(path)) for path in paths), 4)
    return found


def tuning_table() -> list[str]:
    """All trials with their scores, Markdown lines; empty before the search."""
    if not CHOICES.exists():
        return []
    lines = ["| method | settings | 12 iterations | 40 iterations |", "|---|---|---|---|"]
    for algo, found in json.loads(CHOICES.read_text(encoding="utf-8")).items():
        for settings, value in found["scores"].items():
            longer = found["longer"].get(settings)
            chosen = " **(chosen)**" if settings.split(" ") == found["settings"] else ""
            cells = (algo, f"`{settings}`{chosen}", f"{100 * value:.1f}", f"{100 * longer:.1f}" if longer else "")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def score(result: Result) -> float:
    """Sampled success on the validation tasks, in [0, 1]."""
    counts = result.counts["sampled"]
    return mean(counts[task][0] / counts[task][1] for task in result.sets["train"])


def tuned(algo: str) -> tuple[str, ...]:
    """The method's chosen settings; none before the search."""
    if not CHOICES.exists():
        return ()
    return tuple(json.loads(CHOICES.read_text(encoding="utf-8"))[algo]["settings"])


def runs_of(variants: Sequence[Variant], seeds: Sequence[int]) -> list[Run]:
    """The study's runs with the tuned settings, seed by seed, so that every method has as many."""
    return [Run(variant, seed, tuned(variant.tuned_as or variant.algo)) for seed in seeds for variant in variants]


assert {variant.algo for variant in METHODS} == set(GRIDS), "every method is tuned"
