"""Which code made the results, as far as it can still be told."""

from __future__ import annotations

from collections.abc import Sequence

from recipes.study.markdown import wrapped
from recipes.study.records import Result, in_history


def commits_text(results: Sequence[Result], *, replayed: bool) -> list[str]:
    """A paragraph about the commits and source trees of these results, and about commits that nobody can check out.

    Args:
        results: the results of one section.
        replayed: whether a test repeats a short run of their kind.
    """
    commits = sorted({result.commit for result in results})
    lost = [commit for commit in commits if not in_history(commit)]
    kept = [commit for commit in commits if commit not in lost]
    sentences = []
    if kept:
        sentences.append(f"Commit{_s(kept)} of the runs: {_listed(kept)} (`+`: with uncommitted changes).")
    if lost:
        runs = sum(result.commit in lost for result in results)
        sentences.append(
            f"The files of {runs} runs name commit{_s(lost)} {_listed(lost)}, which {'are' if _s(lost) else 'is'} no "
            "longer in this repository's history: the code of these runs cannot be checked out "
            f"([log](history/log.md)). What ties today's code to them: {', '.join(_guards(replayed))}."
        )
    sources = sorted({result.source for result in results if result.source})
    if sources:
        sentences.append(
            f"Hash{'es' * (len(sources) > 1)} of the source trees that ran (`source`): {', '.join(sources)}."
        )
    if older := sum(not result.source for result in results):
        sentences.append(
            f"{older} files were made before the key `source`, a hash of the source tree that ran, existed."
        )
    return wrapped(*sentences)


def _guards(replayed: bool) -> list[str]:
    repeated = "a test that repeats a short run and compares its metrics"
    version = "the number `RESULTS_VERSION` in `recipes/study/records.py`, which every change of results raises"
    return [*([repeated] if replayed else []), version, "the settings and the hash of the base policy in each file"]


def _s(found: Sequence[str]) -> str:
    return "s" * (len(found) > 1)


def _listed(commits: Sequence[str]) -> str:
    return ", ".join(commit[:9] + "+" * commit.endswith("+") for commit in commits)
