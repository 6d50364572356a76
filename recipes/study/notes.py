"""What is written by hand about the tables, with the figures filled in from the result files.

``{bepa - grpo, train}`` stands for the paired difference on a set of tasks, ``{bepa, train}`` for a rate, each with its
interval; ``base`` is the policy before training. ``{tiny_free: bepa - grpo, train}`` is that from another base policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from recipes.study.estimates import BASE, Study, all_rates, interval_text, paired, rate_text
from recipes.study.records import ResultError

FIGURE = re.compile(r"\{(?:([\w-]+): )?(\w+)(?: - (\w+))?, ([\w/]+)\}")


def filled(text: str, study: Study, others: Mapping[str, Study] | None = None) -> str:
    """The text with its figures.

    Args:
        text: Markdown with figures in braces.
        study: of figures without a base policy.
        others: base policy → its results, for figures that name one.

    Raises:
        ResultError: there are not results of enough seeds for a figure; it is named.
    """

    def figure(match: re.Match[str]) -> str:
        policy, name, other, part = match.groups()
        if policy and policy not in (others or {}):
            raise ResultError(f"notes: no results from {policy} for {match.group()}; there are {sorted(others or {})}")
        chosen = (others or {})[policy] if policy else study
        if other:
            found = interval_text(paired(chosen, name, other, part))
        else:
            results = chosen.get(next(iter(chosen)) if name == BASE else name, ())
            found = rate_text(all_rates(results, part, base=name == BASE) if results else None)
        if "(" not in found:
            raise ResultError(f"notes: no interval for {match.group()}; expected results of enough seeds")
        return found

    return FIGURE.sub(figure, text)
