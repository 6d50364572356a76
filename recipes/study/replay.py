"""One short run with a fixed seed whose metrics are kept: it shows whether the code still gives the same results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from osworld_gym.atomic import write_text
from recipes.study.bases import SHIPPED
from recipes.study.records import RESULTS_VERSION, ResultError, read_result
from recipes.study.runner import Run, run_missing
from recipes.study.variants import Variant

KEPT = Path(__file__).with_name("replay.json")
#: not :data:`recipes.study.variants.COMMON`: everything once (rollouts, injection, refresh, evaluation) in a minute
VARIANT = Variant(
    "replay",
    "bepa",
    settings=("train.iterations=3", "eval.every=0", "eval.episodes=1", "eval.final_episodes=1", "expert.pass_k=1"),
    preparation=("env.train_split=validation", "env.held_out_split=null"),
)
#: two processors round differently, and a sampled token that differs changes the rest of its episode
ABSOLUTE, RELATIVE = 0.04, 0.1


def replay(work: Path) -> dict[str, float]:
    """Runs it and returns its metrics, ``<metric>@<iteration>``.

    Raises:
        ResultError: the run failed.
    """
    run = Run(VARIANT, 0)
    lines: list[str] = []
    if run_missing([run], work, work, processes=1, log=lines.append):
        raise ResultError("the run failed: " + lines[-1])
    result = read_result(work / f"{run.name}.json")
    return {
        f"{key}@{line['iteration']:.0f}": value
        for line in result.curve
        for key, value in line.items()
        if key not in ("iteration", "total/seconds")
    }


def keep(work: Path) -> None:
    """Runs it and writes what :func:`differences` compares with."""
    found = {"code": RESULTS_VERSION, "base": SHIPPED.hash(), "metrics": replay(work)}
    write_text(KEPT, json.dumps(found, indent=1) + "\n")


def differences(found: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """One line for each metric that differs by more than the tolerance; empty if the code gives the same results."""
    names = sorted(found.keys() | kept.keys())
    return [
        f"{name}: expected {kept.get(name)}, got {found.get(name)}"
        for name in names
        if name not in found
        or name not in kept
        or not math.isclose(found[name], kept[name], rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    ]
