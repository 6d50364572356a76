"""Hyper-parameters: every method gets the same number of trials on the validation tasks, with seeds of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.study.records import Result, read_result
from benchmarks.study.runner import Run
from benchmarks.study.variants import METHODS, Variant
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


def choose(folder: Path) -> dict[str, object]:
    """Reads all trials and writes the winners; the score is the sampled success on the validation tasks.

    Raises:
        ResultError: a result is missing or damaged.
    """
    found: dict[str, object] = {}
    for algo, grid in GRIDS.items():
        scores = []
        for number in range(len(grid)):
            results = [read_result(folder / f"tune_{algo}_{number}-{seed}.json") for seed in SEEDS]
            scores.append(mean(score(result) for result in results))
        best = scores.index(max(scores))
        found[algo] = {
            "settings": list(grid[best]),
            "scores": {" ".join(settings): round(value, 4) for settings, value in zip(grid, scores, strict=True)},
        }
    write_text(CHOICES, json.dumps(found, indent=1) + "\n")
    return found


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
    return [Run(variant, seed, tuned(variant.algo)) for seed in seeds for variant in variants]


assert {variant.algo for variant in METHODS} == set(GRIDS), "every method is tuned"
