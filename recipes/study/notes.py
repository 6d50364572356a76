"""What is written by hand about the tables, with the figures filled in from the result files.

``{bepa - grpo, train}`` stands for the paired difference on a set of tasks, ``{bepa, train}`` for a rate, each with its
interval; ``base`` is the policy before training.
"""

from __future__ import annotations

import re

from recipes.study.estimates import BASE, Study, all_rates, interval_text, paired, rate_text
from recipes.study.records import ResultError

FIGURE = re.compile(r"\{(\w+)(?: - (\w+))?, ([\w/]+)\}")


def filled(text: str, study: Study) -> str:
    """The text with its figures.

    Raises:
        ResultError: there are not results of enough seeds for a figure; it is named.
    """

    def figure(match: re.Match[str]) -> str:
        name, other, part = match.groups()
        if other:
            found = interval_text(paired(study, name, other, part))
        else:
            results = study.get(next(iter(study)) if name == BASE else name, ())
            found = rate_text(all_rates(results, part, base=name == BASE) if results else None)
        if "(" not in found:
            raise ResultError(f"notes: no interval for {match.group()}; expected results of enough seeds")
        return found

    return FIGURE.sub(figure, text)
