"""Whether a thought gives away that the policy had a plan: it mentions it, or quotes it. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bepa_torchrl.experts.plan import plan_lines

#: number of consecutive words of a plan that count as a quotation
QUOTE_WORDS = 5
#: characters that stand for so many words where words have no spaces: Chinese words have about 1.6 characters
QUOTE_CHARACTERS = 8
_MENTION = re.compile(r"\b(?:the|my|this|expert'?s?)\s+plan\b|\bstep\s+\d+\b|\baccording to\b", re.IGNORECASE)
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
#: hiragana, bopomofo and Han, of which each character is a unit; a run of katakana is a word, mostly a foreign one
_UNSPACED = (
    "\u3005-\u3007\u3041-\u309f\u3105-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_CHARACTER = re.compile(f"[{_UNSPACED}]")
_UNIT = re.compile(rf"[{_UNSPACED}]|[{_KATAKANA}]+|[^\W{_UNSPACED}{_KATAKANA}]+")


def plan_leaks(thought: str, plan: str) -> bool:
    """Whether a thought mentions the plan, in English, or quotes a line of it.

    A quotation has :data:`QUOTE_WORDS` words in a row, or :data:`QUOTE_CHARACTERS` characters of Chinese or Japanese,
    which are written without spaces, or some of both.
    """
    if _MENTION.search(thought):
        return True
    said = set(_quotations(thought))
    return any(quotation in said for line in plan_lines(plan) for quotation in _quotations(line))


def _quotations(text: str) -> Iterator[tuple[str, ...]]:
    """The shortest sequence from each word on that is long enough: texts share one if they share a longer one."""
    units: list[str] = _UNIT.findall(text.lower())
    for start in range(len(units)):
        length = 0
        for end, unit in enumerate(units[start:], start + 1):
            length += QUOTE_WORDS if _CHARACTER.match(unit) else QUOTE_CHARACTERS
            if length >= QUOTE_WORDS * QUOTE_CHARACTERS:
                yield tuple(units[start:end])
                break
