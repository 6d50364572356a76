"""Hyper-parameters: every method gets the same trials on the validation tasks, with a seed of their own.

Four trials of 12 iterations, and two more for a method whose winner was at an edge of those; the best two go
on to the study's 40, since a rate that learns fastest at first can fail later. Methods without iterations (SFT alone)
are trained to the end in their trials. A trial whose score is in ``tuned.json`` is not run again: to search from the
start, remove that file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from recipes.study.runner import Run
from recipes.study.search import Grid, Search
from recipes.study.variants import COMMON, LENGTH, METHODS, Variant

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
_FIRST: Mapping[str, Grid] = {
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
_BEYOND_THE_EDGE: Mapping[str, Grid] = {
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
GRIDS: Mapping[str, Grid] = {algo: (*grid, *_BEYOND_THE_EDGE.get(algo, ())) for algo, grid in _FIRST.items()}
CHOICES = Path(__file__).with_name("tuned.json")  #: the winners and all validation scores


def search() -> Search:
    """The search on the simulated desktop."""
    return Search(
        GRIDS, CHOICES, COMMON, SETTINGS[:2], SETTINGS[2:], LENGTH, "python -m recipes.study --tune", RULES, SEEDS
    )


def trials() -> list[Run]:
    """Every run of the search without a kept score."""
    return search().trials()


def finals(folder: Path) -> list[Run]:
    """The runs that go on, see :meth:`Search.finals`."""
    return search().finals(folder)


def choose(folder: Path) -> dict[str, object]:
    """Writes the winners, see :meth:`Search.choose`."""
    return search().choose(folder)


def tuning_table() -> list[str]:
    """All trials with their scores, Markdown lines; empty before the search."""
    return search().table(12, 40)


def tuned(algo: str) -> tuple[str, ...]:
    """The chosen settings of a method or rule; none before its search."""
    return search().tuned(algo)


def runs_of(variants: Sequence[Variant], seeds: Sequence[int]) -> list[Run]:
    """The study's runs with the tuned settings, see :meth:`Search.runs_of`."""
    return search().runs_of(variants, seeds)


assert {variant.algo for variant in METHODS} == set(GRIDS) - set(RULES), "every method is tuned"
