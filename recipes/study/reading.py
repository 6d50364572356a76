"""The result files of one base policy, as a study."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from recipes.study.records import Result, ResultError, check_same, read_result
from recipes.study.variants import VARIANTS


def read_study(folder: Path) -> dict[str, list[Result]]:
    """All result files by variant, sorted by seed, with one set of expert-only tasks per seed.

    Raises:
        ResultError: a file is damaged, unknown, or made with another code or base policy than the others.
    """
    found: dict[str, list[Result]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        result = read_result(path)
        if path.name != result.path or result.variant not in VARIANTS:
            raise ResultError(f"{path.name}: no variant of this study has this name; remove the file")
        found[result.variant].append(result)
    results = [result for each in found.values() for result in each]
    check_same(results)
    usual = {result.seed: result for result in results if not VARIANTS[result.variant].preparation}
    return {
        name: [_with_usual_tasks(result, usual) for result in sorted(each, key=lambda result: result.seed)]
        for name, each in found.items()
    }


def _with_usual_tasks(result: Result, usual: Mapping[int, Result]) -> Result:
    """The result with the expert-only tasks of its seed's usual preparation.

    More self-rollouts make harder tasks expert-only: a mean over those would not be that of the other variants' tasks.
    """
    if result.seed not in usual or "expert_only" not in result.sets:
        return result
    return replace(result, sets={**result.sets, "expert_only": usual[result.seed].sets["expert_only"]})
