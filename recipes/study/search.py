"""A search for hyper-parameters: every method gets the same trials on validation tasks, and the best two go on.

:mod:`recipes.study.tuning` is the simulated desktop's, :mod:`recipes.study.local_tuning` that of real desktops.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from bepa_torchrl.methods import method_named
from osworld_gym.atomic import write_text
from recipes.study.records import Result, ResultError, read_result
from recipes.study.runner import Run
from recipes.study.variants import Variant

Grid = tuple[tuple[str, ...], ...]  #: the settings of each trial
FINALISTS = 2  #: of each method's trials, go on


@dataclass(frozen=True)
class Search:
    """The trials of several methods.

    Args:
        grids: method or rule → its trials.
        choices: file of the winners and all scores. A trial whose score is there is not run again.
        common: settings of every run.
        tasks: settings that choose the validation tasks; they keep the trials' preparations apart from the study's.
        trial: settings of every trial; the first runs are shorter than the study's.
        length: setting of the runs that go on: as many iterations as the study's.
        command: runs the trials; named in errors.
        rules: a key of ``grids`` that is a rule of a method's loss → the method.
        seeds: seeds of the trials, of which none is the study's.
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

    def method(self, key: str) -> str:
        """The method of a key of ``grids``."""
        return self.rules.get(key, key)

    def trials(self) -> list[Run]:
        """Every run of the search without a kept score."""
        return [
            Run(self.trial_variant(key, number), seed, settings)
            for key, grid in self.grids.items()
            for number, settings in enumerate(grid)
            if number not in self.kept_scores(key, "scores")
            for seed in self.seeds
        ]

    def trial_variant(self, key: str, number: int) -> Variant:
        """The variant of one trial."""
        name = f"tune_{key}_{number}"
        return Variant(name, self.method(key), settings=self.trial, preparation=self.tasks, common=self.common)

    def final_variant(self, key: str, number: int) -> Variant:
        """The variant of a trial that goes on."""
        trial = self.trial_variant(key, number)
        settings = (*trial.settings, self.length)
        return replace(trial, name=f"{trial.name}_long", settings=settings, continues=trial.name)

    def finals(self, folder: Path) -> list[Run]:
        """The runs that go on, without those with a kept score: the best trials of every method that has iterations.

        Raises:
            ResultError: a trial's result is missing or damaged.
        """
        found = []
        for key, grid in self.grids.items():
            new = [number for number in self.finalists(folder, key) if number not in self.kept_scores(key, "longer")]
            found += [Run(self.final_variant(key, number), seed, grid[number]) for number in new for seed in self.seeds]
        return found

    def finalists(self, folder: Path, key: str) -> list[int]:
        """The numbers of the best trials; none for a method without iterations. Raises as :meth:`finals`."""
        if not method_named(self.method(key)).rl:
            return []
        scores = self.scores_of(folder, key, "scores", range(len(self.grids[key])))
        return sorted(sorted(scores, key=scores.__getitem__, reverse=True)[:FINALISTS])

    def choose(self, folder: Path) -> dict[str, object]:
        """Writes the winners: of the runs that went on, or of the trials of a method that has no iterations.

        Raises:
            ResultError: a result is missing or damaged.
        """
        found: dict[str, object] = {}
        for key, grid in self.grids.items():
            short = self.scores_of(folder, key, "scores", range(len(grid)))
            going_on = {*self.finalists(folder, key), *self.kept_scores(key, "longer")}
            longer = self.scores_of(folder, key, "longer", sorted(going_on))
            last = longer or short
            best = max(last, key=last.__getitem__)
            found[key] = {
                "settings": list(grid[best]),
                "scores": {" ".join(grid[number]): value for number, value in short.items()},
                "longer": {" ".join(grid[number]): value for number, value in longer.items()},
            }
        write_text(self.choices, json.dumps(found, indent=1) + "\n")
        return found

    def chosen(self) -> dict[str, dict[str, object]]:
        """The content of the file of choices; empty before the search."""
        if not self.choices.exists():
            return {}
        found: dict[str, dict[str, object]] = json.loads(self.choices.read_text(encoding="utf-8"))
        return found

    def kept_scores(self, key: str, length: str) -> dict[int, float]:
        """Number of the trial → its kept score; ``length``: ``scores`` (of the trials) or ``longer``."""
        kept = self.chosen().get(key, {}).get(length, {})
        assert isinstance(kept, dict)
        numbered = enumerate(" ".join(settings) for settings in self.grids[key])
        return {number: kept[name] for number, name in numbered if name in kept}

    def scores_of(self, folder: Path, key: str, length: str, numbers: Iterable[int]) -> dict[int, float]:
        """Number of the trial → its score: the kept one, or the mean over the seeds of its results in ``folder``.

        Raises:
            ResultError: a result is missing or damaged.
        """
        variant = {"scores": self.trial_variant, "longer": self.final_variant}[length]
        kept, found = self.kept_scores(key, length), {}
        for number in numbers:
            if number in kept:
                found[number] = kept[number]
                continue
            paths = [folder / f"{variant(key, number).name}-{seed}.json" for seed in self.seeds]
            if missing := [path.name for path in paths if not path.exists()]:
                raise ResultError(f"{folder}: no {missing[0]}; run `{self.command}`")
            found[number] = round(mean(score(read_result(path)) for path in paths), 4)
        return found

    def table(self, short: int, long: int) -> list[str]:
        """All trials with their scores, Markdown lines; empty before the search.

        Args:
            short, long: iterations of the trials and of those that went on.
        """
        if not (chosen := self.chosen()):
            return []
        lines = [f"| method | settings | {short} iterations | {long} iterations |", "|---|---|---|---|"]
        for key, found in chosen.items():
            scores, longer = found["scores"], found["longer"]
            assert isinstance(scores, dict)
            assert isinstance(longer, dict)
            for settings, value in scores.items():
                last = longer.get(settings)
                mark = " **(chosen)**" if settings.split(" ") == found["settings"] else ""
                cells = (key, f"`{settings}`{mark}", f"{100 * value:.1f}", f"{100 * last:.1f}" if last else "")
                lines.append("| " + " | ".join(cells) + " |")
        return lines

    def tuned(self, key: str) -> tuple[str, ...]:
        """The chosen settings of a method or rule; none before its search."""
        settings = self.chosen().get(key, {}).get("settings", ())
        assert isinstance(settings, Sequence)
        return tuple(settings)

    def runs_of(self, variants: Sequence[Variant], seeds: Sequence[int]) -> list[Run]:
        """The study's runs with the tuned settings, seed by seed, so that every method has as many."""
        return [
            Run(variant, seed, self.tuned(variant.tuned_as or variant.algo)) for seed in seeds for variant in variants
        ]


def score(result: Result) -> float:
    """Sampled success on the validation tasks, in [0, 1]."""
    counts = result.counts["sampled"]
    return mean(counts[task][0] / counts[task][1] for task in result.sets["train"])
