"""Hyper-parameters: every method gets the same trials on the validation tasks, with a seed of their own.

Four trials of 12 iterations, and two more for a method whose winner was at an edge of those; the best two go on to the
study's 40, since a rate that learns fastest at first can fail later. Methods without iterations (SFT alone)
are trained to the end in their trials. A trial whose score is in the file of choices (``tuned.json``) is not run again:
to search from the start, remove that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from bepa_torchrl.methods import method_named
from osworld_gym.atomic import write_text
from recipes.study.bases import SHIPPED, Base
from recipes.study.records import Result, ResultError, read_result
from recipes.study.runner import Log, Run, run_missing
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
LOW, MIDDLE, HIGH = "optimizer.lr=1e-4", "optimizer.lr=3e-4", "optimizer.lr=1e-3"
#: learning rates with four updates per iteration, and one with a single update
RL = ((LOW,), (MIDDLE,), (HIGH,), (HIGH, "train.minibatch_groups=16"))
SFT = tuple(product(("sft.lr=1e-4", "sft.lr=3e-4"), ("sft.epochs=1", "sft.epochs=5")))
Grid = tuple[tuple[str, ...], ...]
FIRST: Mapping[str, Grid] = {
    **dict.fromkeys(("grpo", "bepa", "level1", "level2", "replacement", "arpo"), RL),
    "luffy": tuple(product((MIDDLE, HIGH), ("algo.gamma=0.1", "algo.gamma=0.3"))),
    "sft": SFT,
    "sft_self": SFT,
    "rl_sft": ((MIDDLE, "sft.weight=0.01"), (MIDDLE, "sft.weight=0.1"), (MIDDLE, "sft.weight=1.0"),
               (HIGH, "sft.weight=0.1")),
    "sft_rl": tuple(product((MIDDLE, HIGH), ("sft.lr=3e-5", "sft.lr=1e-4"))),
    "bepa_anchor": (*product((MIDDLE,), ("loss.anchor=0.03", "loss.anchor=0.1", "loss.anchor=0.3")),
                    (HIGH, "train.minibatch_groups=16", "loss.anchor=0.1")),
}  # fmt: skip
_BEYOND_THE_EDGE: Mapping[str, Grid] = {
    "level1": (("optimizer.lr=3e-3", "train.minibatch_groups=16"), (MIDDLE, "train.minibatch_groups=16")),
    "level2": (("optimizer.lr=3e-5",), (MIDDLE, "train.minibatch_groups=16")),
    "luffy": ((MIDDLE, "algo.gamma=1.0"), (LOW, "algo.gamma=0.3")),
    "sft": (("sft.lr=3e-5", "sft.epochs=1"), ("sft.lr=3e-5", "sft.epochs=5")),
    "sft_self": (
        *(("sft.lr=1e-3", "sft.epochs=5"), ("sft.lr=3e-4", "sft.epochs=20")),
        *(("sft.lr=3e-4", "sft.epochs=40"), ("sft.lr=3e-4", "sft.epochs=80")),  # the winner was at an edge again
    ),
    "rl_sft": ((LOW, "sft.weight=0.1"), (LOW, "sft.weight=0.01")),
    "sft_rl": ((MIDDLE, "sft.lr=1e-5"), (LOW, "sft.lr=3e-5")),
    "bepa_anchor": (*((MIDDLE, "loss.anchor=1.0"), (HIGH, "train.minibatch_groups=16", "loss.anchor=0.3")),),
}
#: rules of a method's loss with a search of their own → the method; every other key of :data:`GRIDS` is a method
RULES: Mapping[str, str] = {"bepa_anchor": "bepa"}
GRIDS: Mapping[str, Grid] = {algo: (*grid, *_BEYOND_THE_EDGE.get(algo, ())) for algo, grid in FIRST.items()}
CHOICES = Path(__file__).with_name("tuned.json")  #: the winners and all validation scores
FINALISTS = 2  #: of each method's trials, go on


@dataclass(frozen=True)
class Search:
    """One search: its trials, and the file of the winners and all validation scores.

    Args:
        grids: method or rule → the settings of its trials.
        choices: the file.
        beyond: method or rule → winner of its trials that is at an edge → the settings of two further trials.
        base: the base policy of the trials.
    """

    grids: Mapping[str, Grid]
    choices: Path
    beyond: Mapping[str, Mapping[tuple[str, ...], Grid]] = field(default_factory=dict)
    base: Base = SHIPPED

    def trials(self, folder: Path) -> list[Run]:
        """Every run of the search without a kept score; further trials once ``folder`` has the first ones' results."""
        return [
            Run(trial_variant(algo, number), seed, settings, self.base)
            for algo in self.grids
            for number, settings in enumerate(self.grid(folder, algo))
            if number not in self.kept_scores(folder, algo, "scores")
            for seed in SEEDS
        ]

    def grid(self, folder: Path, algo: str) -> Grid:
        """The trials of a method: with further ones if the best of the first is at an edge, as far as that is known."""
        first = self.grids[algo]
        beyond = self.beyond.get(algo)
        if beyond is None:
            return first
        try:
            scores = self._scores_of(folder, algo, "scores", range(len(first)), first)
        except ResultError:  # not all of them have been run
            return first
        return (*first, *beyond.get(first[max(scores, key=scores.__getitem__)], ()))

    def finals(self, folder: Path) -> list[Run]:
        """The runs that go on, without those with a kept score: the best trials of every method that has iterations.

        Raises:
            ResultError: a trial's result is missing or damaged.
        """
        found = []
        for algo in self.grids:
            grid, kept = self.grid(folder, algo), self.kept_scores(folder, algo, "longer")
            new = [number for number in self.finalists(folder, algo) if number not in kept]
            found += [
                Run(final_variant(algo, number), seed, grid[number], self.base) for number in new for seed in SEEDS
            ]
        return found

    def finalists(self, folder: Path, algo: str) -> list[int]:
        """The numbers of a method's best trials; none for a method without iterations. Raises as :meth:`finals`."""
        if not method_named(RULES.get(algo, algo)).rl:
            return []
        scores = self.scores_of(folder, algo, "scores", range(len(self.grid(folder, algo))))
        return sorted(sorted(scores, key=scores.__getitem__, reverse=True)[:FINALISTS])

    def choose(self, folder: Path) -> dict[str, object]:
        """Writes the winners: of the runs that went on, or of the trials of a method that has no iterations.

        Raises:
            ResultError: a result is missing or damaged.
        """
        found: dict[str, object] = {}
        for algo in self.grids:
            grid = self.grid(folder, algo)
            short = self.scores_of(folder, algo, "scores", range(len(grid)))
            going_on = {*self.finalists(folder, algo), *self.kept_scores(folder, algo, "longer")}
            longer = self.scores_of(folder, algo, "longer", sorted(going_on))
            last = longer or short
            best = max(last, key=last.__getitem__)
            found[algo] = {
                "settings": list(grid[best]),
                "scores": {" ".join(grid[number]): value for number, value in short.items()},
                "longer": {" ".join(grid[number]): value for number, value in longer.items()},
                "base": self.base.name,
            }
        write_text(self.choices, json.dumps(found, indent=1) + "\n")
        return found

    def kept_scores(self, folder: Path, algo: str, length: str) -> dict[int, float]:
        """Number of the trial → its score in the file; ``length``: ``scores`` (12 iterations) or ``longer``."""
        return self._kept(algo, length, self.grid(folder, algo))

    def _kept(self, algo: str, length: str, grid: Grid) -> dict[int, float]:
        kept = self.read().get(algo, {}).get(length, {})
        return {number: kept[name] for number, settings in enumerate(grid) if (name := " ".join(settings)) in kept}

    def scores_of(self, folder: Path, algo: str, length: str, numbers: Iterable[int]) -> dict[int, float]:
        """Number of the trial → its score: the kept one, or the mean over :data:`SEEDS` of its results in ``folder``.

        Raises:
            ResultError: a result is missing or damaged.
        """
        return self._scores_of(folder, algo, length, numbers, self.grid(folder, algo))

    def _scores_of(self, folder: Path, algo: str, length: str, numbers: Iterable[int], grid: Grid) -> dict[int, float]:
        variant = {"scores": trial_variant, "longer": final_variant}[length]
        kept, found = self._kept(algo, length, grid), {}
        for number in numbers:
            if number in kept:
                found[number] = kept[number]
                continue
            paths = [folder / f"{variant(algo, number).name}-{seed}.json" for seed in SEEDS]
            if missing := [path.name for path in paths if not path.exists()]:
                raise ResultError(f"{folder}: no {missing[0]}; run `python -m recipes.study --tune`")
            found[number] = round(mean(score(read_result(path)) for path in paths), 4)
        return found

    def table(self) -> list[str]:
        """All trials with their scores, Markdown lines; empty before the search."""
        if not self.choices.exists():
            return []
        lines = ["| method | settings | 12 iterations | 40 iterations |", "|---|---|---|---|"]
        for algo, found in self.read().items():
            for settings, value in found["scores"].items():
                longer = found["longer"].get(settings)
                chosen = " **(chosen)**" if settings.split(" ") == found["settings"] else ""
                cells = (algo, f"`{settings}`{chosen}", f"{100 * value:.1f}", f"{100 * longer:.1f}" if longer else "")
                lines.append("| " + " | ".join(cells) + " |")
        return lines

    def tuned_on(self) -> str:
        """Name of the base policy of the search in the file; that of this one before it."""
        return next((str(found.get("base", SHIPPED.name)) for found in self.read().values()), self.base.name)

    def read(self) -> dict[str, Any]:
        """The file's contents; empty before the search."""
        if not self.choices.exists():
            return {}
        return dict(json.loads(self.choices.read_text(encoding="utf-8")))

    def tuned(self, algo: str) -> tuple[str, ...]:
        """The chosen settings of a method or rule; none before its search."""
        return tuple(self.read().get(algo, {}).get("settings", ()))

    def runs_of(self, variants: Sequence[Variant], seeds: Sequence[int]) -> list[Run]:
        """The study's runs with the tuned settings, seed by seed, so that every method has as many."""
        return [
            Run(variant, seed, self.tuned(variant.tuned_as or variant.algo), self.base)
            for seed in seeds
            for variant in variants
        ]


def trial_variant(algo: str, number: int) -> Variant:
    """The variant of one trial; ``preparation`` keeps it apart from the study's preparations."""
    return Variant(f"tune_{algo}_{number}", RULES.get(algo, algo), settings=SETTINGS[2:], preparation=SETTINGS[:2])


def final_variant(algo: str, number: int) -> Variant:
    """The variant of a trial that goes on."""
    trial = trial_variant(algo, number)
    settings = (*trial.settings, LENGTH)
    return replace(trial, name=f"{trial.name}_long", settings=settings, continues=trial.name)


def score(result: Result) -> float:
    """Sampled success on the validation tasks, in [0, 1]."""
    counts = result.counts["sampled"]
    return mean(counts[task][0] / counts[task][1] for task in result.sets["train"])


def tune(search: Search, work: Path, *, processes: int, log: Log) -> bool:
    """Runs what is missing of a search, and writes the winners; whether no run failed.

    Args:
        search: what is searched.
        work: folder of the runs; their results are in ``tuning`` in it.
        processes: trainings at a time.
        log: is called with a line about each step.

    Raises:
        ResultError: a result is damaged, or the file of choices is that of another base policy.
    """
    if search.tuned_on() != search.base.name:
        raise ResultError(
            f"{search.choices.name} has the choices made on {search.tuned_on()}, which are used for {search.base.name} "
            "as well; to search again, remove the file"
        )
    out = work / "tuning"
    for step in (
        search.trials,
        search.trials,
        search.finals,
    ):  # the second time with what the first one's edges ask for
        if run_missing(step(out), work, out, processes=processes, log=log):
            return False
    search.choose(out)
    return True


TERSE = Search(GRIDS, CHOICES)
assert {variant.algo for variant in METHODS} == set(GRIDS) - set(RULES), "every method is tuned"
