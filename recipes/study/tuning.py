"""Hyper-parameters: every method gets the same trials on the validation tasks, with a seed of their own.

Four trials of 12 iterations, and two more for a method whose winner was at an edge of those; the best two go
on to the study's 40, since a rate that learns fastest at first can fail later. Methods without iterations (SFT alone)
are trained to the end in their trials. A trial whose score is in ``tuned.json`` is not run again: to search from the
start, remove that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

from bepa_torchrl.methods import method_named
from osworld_gym.atomic import write_text
from recipes.study.records import Result, ResultError, read_result
from recipes.study.runner import Run
from recipes.study.variants import LENGTH, METHODS, Variant

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
_Grid = tuple[tuple[str, ...], ...]
_FIRST: Mapping[str, _Grid] = {
    **dict.fromkeys(("grpo", "bepa", "level1", "level2", "replacement", "arpo"), _RL),
    "luffy": tuple(product((_MIDDLE, _HIGH), ("algo.gamma=0.1", "algo.gamma=0.3"))),
    "sft": _SFT,
    "sft_self": _SFT,
    "rl_sft": ((_MIDDLE, "sft.weight=0.01"), (_MIDDLE, "sft.weight=0.1"), (_MIDDLE, "sft.weight=1.0"),
               (_HIGH, "sft.weight=0.1")),
    "sft_rl": tuple(product((_MIDDLE, _HIGH), ("sft.lr=3e-5", "sft.lr=1e-4"))),
    "bepa_anchor": (*product((_MIDDLE,), ("loss.anchor=0.03", "loss.anchor=0.1", "loss.anchor=0.3")),
                    (_HIGH, "train.minibatch_groups=16", "loss.anchor=0.1")),
}  # fmt: skip
_BEYOND_THE_EDGE: Mapping[str, _Grid] = {
    "level1": (("optimizer.lr=3e-3", "train.minibatch_groups=16"), (_MIDDLE, "train.minibatch_groups=16")),
    "level2": (("optimizer.lr=3e-5",), (_MIDDLE, "train.minibatch_groups=16")),
    "luffy": ((_MIDDLE, "algo.gamma=1.0"), (_LOW, "algo.gamma=0.3")),
    "sft": (("sft.lr=3e-5", "sft.epochs=1"), ("sft.lr=3e-5", "sft.epochs=5")),
    "sft_self": (
        *(("sft.lr=1e-3", "sft.epochs=5"), ("sft.lr=3e-4", "sft.epochs=20")),
        *(("sft.lr=3e-4", "sft.epochs=40"), ("sft.lr=3e-4", "sft.epochs=80")),  # the winner was at an edge again
    ),
    "rl_sft": ((_LOW, "sft.weight=0.1"), (_LOW, "sft.weight=0.01")),
    "sft_rl": ((_MIDDLE, "sft.lr=1e-5"), (_LOW, "sft.lr=3e-5")),
    "bepa_anchor": (*((_MIDDLE, "loss.anchor=1.0"), (_HIGH, "train.minibatch_groups=16", "loss.anchor=0.3")),),
}
#: rules of a method's loss with a search of their own → the method; every other key of :data:`GRIDS` is a method
RULES: Mapping[str, str] = {"bepa_anchor": "bepa"}
GRIDS: Mapping[str, _Grid] = {algo: (*grid, *_BEYOND_THE_EDGE.get(algo, ())) for algo, grid in _FIRST.items()}
CHOICES = Path(__file__).with_name("tuned.json")  #: the winners and all validation scores
FINALISTS = 2  #: of each method's trials, go on


def trials() -> list[Run]:
    """Every run of the search without a kept score."""
    return [
        Run(trial_variant(algo, number), seed, settings)
        for algo, grid in GRIDS.items()
        for number, settings in enumerate(grid)
        if number not in kept_scores(algo, "scores")
        for seed in SEEDS
    ]


def trial_variant(algo: str, number: int) -> Variant:
    """The variant of one trial; ``preparation`` keeps it apart from the study's preparations."""
    return Variant(f"tune_{algo}_{number}", RULES.get(algo, algo), settings=SETTINGS[2:], preparation=SETTINGS[:2])


def final_variant(algo: str, number: int) -> Variant:
    """The variant of a trial that goes on."""
    trial = trial_variant(algo, number)
    settings = (*trial.settings, LENGTH)
    return replace(trial, name=f"{trial.name}_long", settings=settings, continues=trial.name)


def finals(folder: Path) -> list[Run]:
    """The runs that go on, without those with a kept score: the best trials of every method that has iterations.

    Raises:
        ResultError: a trial's result is missing or damaged.
    """
    found = []
    for algo, grid in GRIDS.items():
        new = [number for number in finalists(folder, algo) if number not in kept_scores(algo, "longer")]
        found += [Run(final_variant(algo, number), seed, grid[number]) for number in new for seed in SEEDS]
    return found


def finalists(folder: Path, algo: str) -> list[int]:
    """The numbers of a method's best trials; none for a method without iterations. Raises as :func:`finals`."""
    if not method_named(RULES.get(algo, algo)).rl:
        return []
    scores = scores_of(folder, algo, "scores", range(len(GRIDS[algo])))
    return sorted(sorted(scores, key=scores.__getitem__, reverse=True)[:FINALISTS])


def choose(folder: Path) -> dict[str, object]:
    """Writes the winners: of the runs that went on, or of the trials of a method that has no iterations.

    Raises:
        ResultError: a result is missing or damaged.
    """
    found: dict[str, object] = {}
    for algo, grid in GRIDS.items():
        short = scores_of(folder, algo, "scores", range(len(grid)))
        going_on = {*finalists(folder, algo), *kept_scores(algo, "longer")}
        longer = scores_of(folder, algo, "longer", sorted(going_on))
        last = longer or short
        best = max(last, key=last.__getitem__)
        found[algo] = {
            "settings": list(grid[best]),
            "scores": {" ".join(grid[number]): value for number, value in short.items()},
            "longer": {" ".join(grid[number]): value for number, value in longer.items()},
        }
    write_text(CHOICES, json.dumps(found, indent=1) + "\n")
    return found


def kept_scores(algo: str, length: str) -> dict[int, float]:
    """Number of the trial → its score in ``tuned.json``; ``length``: ``scores`` (12 iterations) or ``longer``."""
    if not CHOICES.exists():
        return {}
    kept = json.loads(CHOICES.read_text(encoding="utf-8")).get(algo, {}).get(length, {})
    return {number: kept[name] for number, settings in enumerate(GRIDS[algo]) if (name := " ".join(settings)) in kept}


def scores_of(folder: Path, algo: str, length: str, numbers: Iterable[int]) -> dict[int, float]:
    """Number of the trial → its score: the kept one, or the mean over :data:`SEEDS` of its results in ``folder``.

    Raises:
        ResultError: a result is missing or damaged.
    """
    variant = {"scores": trial_variant, "longer": final_variant}[length]
    kept, found = kept_scores(algo, length), {}
    for number in numbers:
        if number in kept:
            found[number] = kept[number]
            continue
        paths = [folder / f"{variant(algo, number).name}-{seed}.json" for seed in SEEDS]
        if missing := [path.name for path in paths if not path.exists()]:
            raise ResultError(f"{folder}: no {missing[0]}; run `python -m recipes.study --tune`")
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
    """The chosen settings of a method or rule; none before its search."""
    if not CHOICES.exists():
        return ()
    return tuple(json.loads(CHOICES.read_text(encoding="utf-8")).get(algo, {}).get("settings", ()))


def runs_of(variants: Sequence[Variant], seeds: Sequence[int]) -> list[Run]:
    """The study's runs with the tuned settings, seed by seed, so that every method has as many."""
    return [Run(variant, seed, tuned(variant.tuned_as or variant.algo)) for seed in seeds for variant in variants]


assert {variant.algo for variant in METHODS} == set(GRIDS) - set(RULES), "every method is tuned"
