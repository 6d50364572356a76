"""What is compared on real desktops, with which settings, and how each method is tuned there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

from recipes.study.bases import Base
from recipes.study.search import Grid, Search
from recipes.study.variants import Variant

SEEDS = (0, 1, 2, 3, 4)
ITERATIONS, TRIAL_ITERATIONS = 24, 12  #: either way each training task is drawn four times
LENGTH = f"train.iterations={ITERATIONS}"
EPISODES = 12  #: per task of the evaluation: :mod:`recipes.study.precision` says how wide that leaves the intervals
HELD_OUT = "held_out+held_out_more"  #: 36 tasks
#: settings of every run: those of ``make train-local``, measured more closely and on three times as many held-out tasks
COMMON = (
    "experiment=local",
    LENGTH,
    f"env.held_out_split={HELD_OUT}",
    "eval.greedy=false",
    "eval.every=12",
    f"eval.final_episodes={EPISODES}",
    "expert.pass_k=8",
    "record.every=0",
    "record.outcomes=false",
)
METHODS = tuple(
    Variant(name, algo, about, tuned_as=name, common=COMMON)
    for name, algo, about in (
        ("bepa", "bepa", ""),
        ("grpo", "grpo", ""),
        ("level1", "level1", ""),
        ("bepa_anchor", "bepa", "BEPA with a cross-entropy on own successes (`loss.anchor`)"),
    )
)
_LOW, _MIDDLE, _HIGH = "optimizer.lr=1e-4", "optimizer.lr=3e-4", "optimizer.lr=1e-3"
_ONCE = "train.minibatch_groups=4"  #: one update per iteration instead of two
#: run when they are named only; their settings are those of the method that they take apart
CONTROLS = (
    Variant(
        "bepa_once",
        "bepa",
        "BEPA with one update per iteration instead of two",
        (_ONCE,),
        tuned_as="bepa",
        common=COMMON,
    ),
    Variant("bepa_slow", "bepa", "BEPA at a third of its tuned learning rate", (_LOW,), tuned_as="bepa", common=COMMON),
)
VARIANTS = {variant.name: variant for variant in (*METHODS, *CONTROLS)}
#: four trials per method, as on the simulated desktop
GRIDS: Mapping[str, Grid] = {
    **dict.fromkeys(("bepa", "grpo", "level1"), ((_LOW,), (_MIDDLE,), (_HIGH,), (_HIGH, _ONCE))),
    "bepa_anchor": (
        *product((_MIDDLE,), ("loss.anchor=0.03", "loss.anchor=0.1", "loss.anchor=0.3")),
        (_HIGH, _ONCE, "loss.anchor=0.1"),
    ),
}
BASE = Base("tiny_local")  #: the policy that ``experiment=local`` names
CHOICES = Path(__file__).with_name("tuned_local.json")  #: the winners and all validation scores
#: names of the settings in which methods may differ, since they are tuned
TUNED = frozenset(setting.split("=", 1)[0] for grid in GRIDS.values() for trial in grid for setting in trial)


def search(*more: str) -> Search:
    """The search on the suite's validation tasks.

    Args:
        more: settings that override those of every run.
    """
    return Search(
        grids=GRIDS,
        choices=CHOICES,
        common=(*COMMON, *more),
        tasks=("env.train_split=validation", "env.held_out_split=null"),
        trial=(f"train.iterations={TRIAL_ITERATIONS}", "eval.every=0", "expert.pass_k=1"),
        length=LENGTH,
        command="python -m recipes.study.local_runs --tune",
        rules={"bepa_anchor": "bepa"},
        more=more,
        base=BASE,
    )
