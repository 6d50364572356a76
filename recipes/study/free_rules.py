"""The trials of the rules that are not in the paper, on the bed with free words: four each, as every method has.

A rule with a weight has two weights at each of two rates, those of the winners of GRPO and BEPA; a rule without one has
BEPA's four. Sources of the values: docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from recipes.study.search import Edges, Grid
from recipes.study.tuning import HIGH, LOW, MIDDLE, RL

ONCE = "train.minibatch_groups=16"  #: one update per iteration
LOWER, HIGHER = "optimizer.lr=3e-5", "optimizer.lr=3e-3"
RATE_EDGES: Edges = {
    (LOW,): ((LOWER,), (MIDDLE, ONCE)),
    (HIGH,): ((HIGHER,), (MIDDLE, ONCE)),
    (HIGH, ONCE): ((HIGHER, ONCE), (MIDDLE, ONCE)),
}
_RATES: tuple[tuple[str, ...], ...] = ((MIDDLE,), (HIGH, ONCE))
_BEYOND_RATE = {(MIDDLE,): (LOW,), (HIGH, ONCE): (HIGHER, ONCE)}
#: rule → its setting, and the values of which the middle two are tried first
_WEIGHTS: Mapping[str, tuple[str, float, float, float, float]] = {
    "bepa_distill": ("loss.distill_weight", 0.001, 0.01, 0.1, 1.0),
    "bepa_kl": ("loss.kl_weight", 0.001, 0.01, 0.1, 1.0),
    "bepa_entropy": ("loss.entropy_weight", 0.0001, 0.001, 0.01, 0.1),
}
#: rule → what it is, in every one of its trials
_RULES: Mapping[str, tuple[str, ...]] = {
    "prefix": (),
    "bepa_dynamic": ("collect.dynamic=8",),
    "bepa_maxrl": ("advantage.kind=maxrl",),
    "bepa_leave_one_out": ("advantage.kind=leave_one_out",),
    "bepa_sequence": ("loss.ratio=sequence", "loss.clip=[0.0003,0.0004]"),
}


def _weighted(key: str, *weights: float) -> tuple[Grid, Edges]:
    """The four trials of a rule with a weight, each with the two further ones if it wins: a weight, and a rate."""
    weaker, weak, strong, stronger = (f"{key}={weight}" for weight in weights)
    beyond = {weak: weaker, strong: stronger}
    trials = list(product(_RATES, (weak, strong)))
    edges = {(*rate, at): ((*rate, beyond[at]), (*_BEYOND_RATE[rate], at)) for rate, at in trials}
    return tuple((*rate, at) for rate, at in trials), edges


def _fixed(rule: tuple[str, ...]) -> tuple[Grid, Edges]:
    """The four rates with a rule, and the two further ones of an edge."""
    edges = {(*rate, *rule): tuple((*each, *rule) for each in further) for rate, further in RATE_EDGES.items()}
    return tuple((*rate, *rule) for rate in RL), edges


_SEARCHES = {
    **{name: _weighted(*weights) for name, weights in _WEIGHTS.items()},
    **{name: _fixed(rule) for name, rule in _RULES.items()},
}
RULE_GRIDS: Mapping[str, Grid] = {name: grid for name, (grid, _) in _SEARCHES.items()}
RULE_EDGES: Mapping[str, Edges] = {name: edges for name, (_, edges) in _SEARCHES.items()}
