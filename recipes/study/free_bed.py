"""The bed with free words: what is searched and where its results are. See docs/small-policies.md.

The trials are those of the shipped policy's search, but for ``sft_self``, whose winner there was far beyond its first
four: here these are around that one. The two further trials of a method whose winner is at an edge of its first four
are fixed for each edge, so that the search needs no decision by hand. The winners found on one base policy are used for
the other one, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment.config import load_config
from recipes.study.bases import Base
from recipes.study.estimates import Study
from recipes.study.free_rules import HIGHER as _HIGHER
from recipes.study.free_rules import LOWER as _LOWER
from recipes.study.free_rules import ONCE as _ONCE
from recipes.study.free_rules import RATE_EDGES, RULE_EDGES, RULE_GRIDS
from recipes.study.records import FOLDER, Result, kept_settings
from recipes.study.search import Edges, Grid, Search
from recipes.study.tuning import FIRST, HIGH, LOW, MIDDLE, simulated_search
from recipes.study.variants import VARIANTS
from recipes.tiny.free_gate import TERSE_START

RESULTS = FOLDER / "free"  #: a folder for each base policy
CHOICES = Path(__file__).with_name("tuned_free.json")
WORK = Path("runs/study-free")
#: of every run: how often a response begins as a terse thought does
SETTINGS = (f"record.starts.terse='{TERSE_START}'",)
#: seeds of parts that have fewer than the others
SEEDS: Mapping[str, tuple[int, ...]] = {"long": (0, 1, 2)}

_SFT = "sft.lr=3e-4"
GRIDS: Mapping[str, Grid] = {
    **FIRST,
    **RULE_GRIDS,
    "sft_self": (
        *((_SFT, "sft.epochs=5"), (_SFT, "sft.epochs=20")),
        *(("sft.lr=1e-4", "sft.epochs=20"), ("sft.lr=1e-3", "sft.epochs=5")),
    ),
    "sft_self_rl": (
        *((MIDDLE, _SFT, "sft.epochs=5"), (MIDDLE, _SFT, "sft.epochs=20")),
        *((LOW, _SFT, "sft.epochs=20"), (HIGH, _ONCE, _SFT, "sft.epochs=20")),
    ),
}
_SFT_EDGES: Edges = {
    ("sft.lr=1e-4", "sft.epochs=1"): (("sft.lr=3e-5", "sft.epochs=1"), ("sft.lr=3e-5", "sft.epochs=5")),
    ("sft.lr=1e-4", "sft.epochs=5"): (("sft.lr=3e-5", "sft.epochs=5"), ("sft.lr=1e-4", "sft.epochs=20")),
    (_SFT, "sft.epochs=1"): (("sft.lr=1e-3", "sft.epochs=1"), ("sft.lr=1e-3", "sft.epochs=5")),
    (_SFT, "sft.epochs=5"): (("sft.lr=1e-3", "sft.epochs=5"), (_SFT, "sft.epochs=20")),
}
#: method → winner at an edge of its grid → its two further trials
BEYOND: Mapping[str, Edges] = {
    **dict.fromkeys(("grpo", "bepa", "level1", "level2", "replacement", "arpo"), RATE_EDGES),
    **RULE_EDGES,
    "sft": _SFT_EDGES,
    "sft_self": {
        (_SFT, "sft.epochs=5"): (("sft.lr=1e-4", "sft.epochs=5"), (_SFT, "sft.epochs=1")),
        (_SFT, "sft.epochs=20"): ((_SFT, "sft.epochs=40"), ("sft.lr=1e-3", "sft.epochs=20")),
        ("sft.lr=1e-4", "sft.epochs=20"): (("sft.lr=3e-5", "sft.epochs=20"), ("sft.lr=1e-4", "sft.epochs=40")),
        ("sft.lr=1e-3", "sft.epochs=5"): (("sft.lr=3e-3", "sft.epochs=5"), ("sft.lr=1e-3", "sft.epochs=20")),
    },
    "bepa_anchor": {
        (MIDDLE, "loss.anchor=0.03"): ((MIDDLE, "loss.anchor=0.01"), (LOW, "loss.anchor=0.03")),
        (MIDDLE, "loss.anchor=0.3"): ((MIDDLE, "loss.anchor=1.0"), (HIGH, _ONCE, "loss.anchor=0.3")),
        (HIGH, _ONCE, "loss.anchor=0.1"): ((HIGH, _ONCE, "loss.anchor=0.3"), (HIGH, _ONCE, "loss.anchor=0.03")),
    },
    "luffy": {
        (MIDDLE, "algo.gamma=0.1"): ((MIDDLE, "algo.gamma=0.03"), (LOW, "algo.gamma=0.1")),
        (MIDDLE, "algo.gamma=0.3"): ((MIDDLE, "algo.gamma=1.0"), (LOW, "algo.gamma=0.3")),
        (HIGH, "algo.gamma=0.1"): ((HIGH, "algo.gamma=0.03"), (_HIGHER, "algo.gamma=0.1")),
        (HIGH, "algo.gamma=0.3"): ((HIGH, "algo.gamma=1.0"), (_HIGHER, "algo.gamma=0.3")),
    },
    "rl_sft": {
        (MIDDLE, "sft.weight=0.01"): ((LOW, "sft.weight=0.01"), (MIDDLE, "sft.weight=0.001")),
        (MIDDLE, "sft.weight=0.1"): ((LOW, "sft.weight=0.1"), (LOW, "sft.weight=0.01")),
        (MIDDLE, "sft.weight=1.0"): ((LOW, "sft.weight=1.0"), (MIDDLE, "sft.weight=10.0")),
        (HIGH, "sft.weight=0.1"): ((HIGH, "sft.weight=0.01"), (_HIGHER, "sft.weight=0.1")),
    },
    "sft_rl": {
        (MIDDLE, "sft.lr=3e-5"): ((MIDDLE, "sft.lr=1e-5"), (LOW, "sft.lr=3e-5")),
        (MIDDLE, "sft.lr=1e-4"): ((MIDDLE, _SFT), (LOW, "sft.lr=1e-4")),
        (HIGH, "sft.lr=3e-5"): ((HIGH, "sft.lr=1e-5"), (_HIGHER, "sft.lr=3e-5")),
        (HIGH, "sft.lr=1e-4"): ((HIGH, _SFT), (_HIGHER, "sft.lr=1e-4")),
    },
    "sft_self_rl": {
        (MIDDLE, _SFT, "sft.epochs=5"): ((MIDDLE, _SFT, "sft.epochs=1"), (LOW, _SFT, "sft.epochs=5")),
        (MIDDLE, _SFT, "sft.epochs=20"): ((MIDDLE, _SFT, "sft.epochs=40"), (MIDDLE, "sft.lr=1e-3", "sft.epochs=5")),
        (LOW, _SFT, "sft.epochs=20"): ((_LOWER, _SFT, "sft.epochs=20"), (LOW, _SFT, "sft.epochs=5")),
        (HIGH, _ONCE, _SFT, "sft.epochs=20"): (
            *((_HIGHER, _ONCE, _SFT, "sft.epochs=20"), (HIGH, _ONCE, _SFT, "sft.epochs=5")),
        ),
    },
}  # fmt: skip


def free_search(base: Base) -> Search:
    """The search of the bed on a base policy."""
    return simulated_search(GRIDS, CHOICES, BEYOND, base)


def untuned(study: Study) -> list[str]:
    """The variants with a result whose settings are not those that the search has chosen; all before the search.

    A searched setting that a variant sets itself, as its description says, counts as chosen.
    """
    search, defaults = free_search(Base("")), kept_settings(load_config())
    chosen = search.read()
    grids = (*GRIDS.values(), *(further for edges in BEYOND.values() for further in edges.values()))
    searched = {each.split("=", 1)[0] for grid in grids for trial in grid for each in trial}

    def as_chosen(result: Result) -> bool:
        variant = VARIANTS[result.variant]
        key = variant.tuned_as or variant.algo
        wanted = dict(each.split("=", 1) for each in (*search.tuned(key), *variant.settings))
        made = defaults | dict(result.settings)
        return key in chosen and all(_value(wanted.get(name, defaults[name])) == made[name] for name in searched)

    return [name for name, results in study.items() if not all(map(as_chosen, results))]


def _value(setting: Any) -> Any:
    """A setting's value, which is text where it is written as on the command line."""
    try:
        return json.loads(setting) if isinstance(setting, str) else setting
    except ValueError:
        return setting
