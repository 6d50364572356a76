"""Hyper-parameters: every method gets the same trials on the validation tasks, with a seed of their own.

Four trials of 12 iterations, and two more for a method whose winner was at an edge of those; the best two go on to the
study's 40, since a rate that learns fastest at first can fail later. Methods without iterations (SFT alone)
are trained to the end in their trials. A trial whose score is in the file of choices (``tuned.json``) is not run again:
to search from the start, remove that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

from recipes.study.bases import SHIPPED, Base
from recipes.study.search import Edges, Grid, Search
from recipes.study.variants import COMMON, LENGTH, METHODS

#: training and evaluation on the validation tasks only
TASKS = ("env.train_split=validation", "env.held_out_split=null")
#: shorter than the study's runs
TRIAL = (
    "train.iterations=12",
    "eval.every=0",
    "eval.episodes=1",
    "eval.final_episodes=16",
    "record.every=0",
    "expert.pass_k=1",
)
LOW, MIDDLE, HIGH = "optimizer.lr=1e-4", "optimizer.lr=3e-4", "optimizer.lr=1e-3"
#: learning rates with four updates per iteration, and one with a single update
RL = ((LOW,), (MIDDLE,), (HIGH,), (HIGH, "train.minibatch_groups=16"))
SFT = tuple(product(("sft.lr=1e-4", "sft.lr=3e-4"), ("sft.epochs=1", "sft.epochs=5")))
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
RULES: Mapping[str, str] = dict.fromkeys(
    (
        *("bepa_anchor", "bepa_distill", "bepa_kl", "bepa_entropy", "bepa_dynamic", "bepa_maxrl"),
        *("bepa_leave_one_out", "bepa_sequence"),
    ),
    "bepa",
)
GRIDS: Mapping[str, Grid] = {algo: (*grid, *_BEYOND_THE_EDGE.get(algo, ())) for algo, grid in FIRST.items()}
CHOICES = Path(__file__).with_name("tuned.json")  #: the winners and all validation scores


def simulated_search(
    grids: Mapping[str, Grid], choices: Path, beyond: Mapping[str, Edges] | None = None, base: Base = SHIPPED
) -> Search:
    """A search on the validation tasks of the simulated desktop; the arguments are those of :class:`.search.Search`."""
    return Search(
        grids,
        choices,
        common=COMMON,
        tasks=TASKS,
        trial=TRIAL,
        length=LENGTH,
        command=f"python -m recipes.study --{f'base {base.argument}' if beyond else 'bed terse'} --tune",
        rules=RULES,
        beyond=beyond or {},
        base=base,
    )


TERSE = simulated_search(GRIDS, CHOICES)
assert {variant.algo for variant in METHODS} == set(GRIDS) - set(RULES), "every method is tuned"
