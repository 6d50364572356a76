"""A search for hyper-parameters: every method gets the same trials on validation tasks, and the best two go on.

Trials that tie with the second go on, too: a tie is no reason to leave out a setting.

:mod:`recipes.study.tuning` is the simulated desktop's, :mod:`recipes.study.local_variants` has that of real desktops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from bepa_torchrl.methods import method_named
from osworld_gym.atomic import write_text
from recipes.study.bases import SHIPPED, Base
from recipes.study.records import Result, ResultError, read_result
from recipes.study.runner import Log, Run, run_missing
from recipes.study.variants import Variant

Grid = tuple[tuple[str, ...], ...]  #: the settings of each trial
Edges = Mapping[tuple[str, ...], Grid]  #: a trial at an edge of the grid → the trials beyond it
Summary = Callable[[Run, Path], Result]
FINALISTS = 2  #: of each method's trials, go on


@dataclass(frozen=True)
class Search:
    """The trials of several methods.

    Args:
        grids: method or rule → the settings of its trials.
        choices: file of the winners and all scores. A trial whose score is there is not run again.
        common: settings of every run.
        tasks: settings that choose the validation tasks; they keep the trials' preparations apart from the study's.
        trial: settings of every trial; the first runs are shorter than the study's.
        length: setting of the runs that go on: as many iterations as the study's.
        command: runs the trials; named in errors.
        rules: a key of ``grids`` that is a rule of a method's loss → the method.
        seeds: seeds of the trials, of which none is the study's.
        more: settings of every run that override all others.
        beyond: method or rule → winner of its trials that is at an edge → the settings of two further trials.
        base: the base policy of the trials.
    """

    grids: Mapping[str, Grid]
    choices: Path
    common: tuple[str, ...]
    tasks: tuple[str, ...]
    trial: tuple[str, ...]
    length: str
    command: str
    rules: Mapping[str, str]
    seeds: tuple[int, ...] = (100,)
    more: tuple[str, ...] = ()
    beyond: Mapping[str, Edges] = field(default_factory=dict)
    base: Base = SHIPPED

    def only(self, keys: Iterable[str]) -> Search:
        """The search of these methods and rules alone."""
        wanted = set(keys)
        return replace(self, grids={key: grid for key, grid in self.grids.items() if key in wanted})

    def method(self, key: str) -> str:
        """The method of a key of ``grids``."""
        return self.rules.get(key, key)

    def trial_variant(self, key: str, number: int) -> Variant:
        """The variant of one trial."""
        name = f"tune_{key}_{number}"
        return Variant(name, self.method(key), settings=self.trial, preparation=self.tasks, common=self.common)

    def final_variant(self, key: str, number: int) -> Variant:
        """The variant of a trial that goes on."""
        trial = self.trial_variant(key, number)
        settings = (*trial.settings, self.length)
        return replace(trial, name=f"{trial.name}_long", settings=settings, continues=trial.name)

    def trials(self, folder: Path) -> list[Run]:
        """Every run of the search without a kept score; further trials once ``folder`` has the first ones' results."""
        return [
            Run(self.trial_variant(algo, number), seed, (*settings, *self.more), self.base)
            for algo in self.grids
            for number, settings in enumerate(self.grid(folder, algo))
            if number not in self.kept_scores(folder, algo, "scores")
            for seed in self.seeds
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
            for number in new:
                variant, settings = self.final_variant(algo, number), (*grid[number], *self.more)
                found += [Run(variant, seed, settings, self.base) for seed in self.seeds]
        return found

    def finalists(self, folder: Path, algo: str) -> list[int]:
        """The numbers of a method's best trials, with those that tie with the last of them.

        None for a method without iterations. Raises as :meth:`finals`.
        """
        if not method_named(self.method(algo)).rl:
            return []
        scores = self.scores_of(folder, algo, "scores", range(len(self.grid(folder, algo))))
        last = sorted(scores.values(), reverse=True)[:FINALISTS][-1]
        return [number for number, value in sorted(scores.items()) if value >= last]

    def choose(self, folder: Path) -> dict[str, object]:
        """Writes the winners: of the runs that went on, or of the trials of a method that has no iterations.

        What the file has about other methods than those of ``grids`` stays.

        Raises:
            ResultError: a result is missing or damaged.
        """
        found: dict[str, object] = self.read()
        for algo in self.grids:
            grid = self.grid(folder, algo)
            short = self.scores_of(folder, algo, "scores", range(len(grid)))
            going_on = {*self.finalists(folder, algo), *self.kept_scores(folder, algo, "longer")}
            longer = self.scores_of(folder, algo, "longer", sorted(going_on))
            known = self.read().get(algo)
            if known is not None and (len(short), len(longer)) == (len(known["scores"]), len(known["longer"])):
                continue  # nothing new: trials that were added after the runs do not change their settings
            last = longer or short
            best = max(last, key=last.__getitem__)
            found[algo] = {
                "settings": list(grid[best]),
                "scores": {" ".join(grid[number]): value for number, value in short.items()},
                "longer": {" ".join(grid[number]): value for number, value in longer.items()},
                "base": self.base.name,
                **({} if self.base.folder is None else {"weights": self.base.hash()}),
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
        """Number of the trial → its score: the kept one, or the mean over the seeds of its results in ``folder``.

        Raises:
            ResultError: a result is missing or damaged.
        """
        return self._scores_of(folder, algo, length, numbers, self.grid(folder, algo))

    def _scores_of(self, folder: Path, algo: str, length: str, numbers: Iterable[int], grid: Grid) -> dict[int, float]:
        variant = {"scores": self.trial_variant, "longer": self.final_variant}[length]
        kept, found = self._kept(algo, length, grid), {}
        for number in numbers:
            if number in kept:
                found[number] = kept[number]
                continue
            paths = [folder / f"{variant(algo, number).name}-{seed}.json" for seed in self.seeds]
            if missing := [path.name for path in paths if not path.exists()]:
                raise ResultError(f"{folder}: no {missing[0]}; run `{self.command}`")
            found[number] = round(mean(score(read_result(path)) for path in paths), 4)
        return found

    def table(self, short: int = 12, long: int = 40) -> list[str]:
        """All trials with their scores, Markdown lines; empty before the search.

        Args:
            short, long: iterations of the trials and of those that went on.
        """
        if not self.choices.exists():
            return []
        lines = [f"| method | settings | {short} iterations | {long} iterations |", "|---|---|---|---|"]
        for algo, found in self.read().items():
            for settings, value in found["scores"].items():
                longer = f"{100 * found['longer'][settings]:.1f}" if settings in found["longer"] else ""
                chosen = " **(chosen)**" if settings.split(" ") == found["settings"] else ""
                cells = (algo, f"`{settings}`{chosen}", f"{100 * value:.1f}", longer)
                lines.append("| " + " | ".join(cells) + " |")
        return lines

    def tuned_on(self) -> str:
        """Name of the base policy of the search in the file; that of this one before it."""
        return next((str(found.get("base", SHIPPED.name)) for found in self.read().values()), self.base.name)

    def check_weights(self) -> None:
        """Checks that choices made on a base policy of this one's name were made on its weights.

        Raises:
            ResultError: it has been trained again since.
        """
        made = {found.get("weights") for found in self.read().values() if found.get("base") == self.base.name} - {None}
        if self.base.folder is not None and made - {self.base.hash()}:
            raise ResultError(
                f"{self.choices.name} has the choices made on other weights ({', '.join(sorted(made))}) of "
                f"{self.base.name} than these ({self.base.hash()}); to search again, remove the file"
            )

    def read(self) -> dict[str, Any]:
        """The file's contents; empty before the search."""
        if not self.choices.exists():
            return {}
        return dict(json.loads(self.choices.read_text(encoding="utf-8")))

    def tuned(self, algo: str) -> tuple[str, ...]:
        """The chosen settings of a method or rule; none before its search."""
        return tuple(self.read().get(algo, {}).get("settings", ()))

    def runs_of(self, variants: Sequence[Variant], seeds: Sequence[int]) -> list[Run]:
        """The study's runs with the tuned settings, seed by seed, so that every method has as many.

        A variant's own settings go before the tuned ones, so that it may differ in one of these; ``more`` before all.
        """
        return [
            Run(
                variant, seed, (*self.tuned(variant.tuned_as or variant.algo), *variant.settings, *self.more), self.base
            )
            for seed in seeds
            for variant in variants
        ]


def score(result: Result) -> float:
    """Sampled success on the validation tasks, in [0, 1].

    Raises:
        ResultError: a task has no episode, since its desktop failed in all: trials are compared on the same tasks.
    """
    counts = result.counts["sampled"]
    if lost := [task for task in result.sets["train"] if not counts[task][1]]:
        raise ResultError(f"{result.path}: no episode of {', '.join(lost)} was played; delete the file and its run")
    return mean(counts[task][0] / counts[task][1] for task in result.sets["train"])


def tune(search: Search, work: Path, *, processes: int, log: Log, summary: Summary | None = None) -> bool:
    """Runs what is missing of a search, and writes the winners; whether no run failed.

    Args:
        search: what is searched.
        work: folder of the runs; their results are in ``tuning`` in it.
        processes: trainings at a time.
        log: is called with a line about each step.
        summary: as of :func:`.runner.run_missing`.

    Raises:
        ResultError: a result is damaged, or the file of choices is that of another base policy, or of other weights.
    """
    if search.tuned_on() != search.base.name:
        lacking = ", ".join(key for key in search.grids if key not in search.read())
        fix = (
            f"search those of {lacking} on it, too (--base, --tune)" if lacking else "to search again, remove the file"
        )
        raise ResultError(
            f"{search.choices.name} has the choices made on {search.tuned_on()}, which are used for {search.base.name} "
            f"as well; {fix}"
        )
    search.check_weights()
    out = work / "tuning"
    # the trials twice, the second time with those that the first ones' edges ask for
    for step in (search.trials, search.trials, search.finals):
        if run_missing(step(out), work, out, processes=processes, log=log, summary=summary):
            return False
    search.choose(out)
    return True
