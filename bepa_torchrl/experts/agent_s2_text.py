"""Parsing of an expert's text: Agent S2's sections, and sentences."""

from __future__ import annotations

import re

SECTIONS = ("Previous action verification", "Screenshot Analysis", "Next Action", "Grounded Action")

_HEADING = re.compile(rf"^[ \t]*\(({'|'.join(SECTIONS)})\)[ \t]*:?[ \t]*", re.MULTILINE | re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")
_FAILED = re.compile(
    r"\b(?:fail(?:ed|s)?|unsuccessful|(?:was|were|is|has|have|did|does|do)(?:\s+not|n't)|no\s+(?:effect|change)|"
    r"nothing\s+(?:happened|changed)|incorrect|wrong|mistake)\b",
    re.IGNORECASE,
)
_NOTHING_BEFORE = re.compile(
    r"\b(?:no\s+previous|nothing\s+to\s+verify|first\s+(?:action|step)|not\s+applicable)\b", re.I
)


def sections(executor_plan: str) -> dict[str, str]:
    """Agent S2's sections by name (:data:`SECTIONS`); text without headings is ``Next Action``."""
    headings = list(_HEADING.finditer(executor_plan))
    if not headings:
        return {"Next Action": executor_plan.strip()}
    names = {name.lower(): name for name in SECTIONS}
    ends = [*(heading.start() for heading in headings[1:]), len(executor_plan)]
    return {
        names[heading[1].lower()]: executor_plan[heading.end() : end].strip()
        for heading, end in zip(headings, ends, strict=True)
    }


def split_sentences(text: str) -> list[str]:
    """The sentences of the text, with line breaks replaced by spaces."""
    return [part for part in _SENTENCE_END.split(" ".join(text.split())) if part]


def sentences(text: str, count: int) -> str:
    """The first ``count`` sentences of the text, on one line."""
    return " ".join(split_sentences(text)[:count])


def says_it_failed(executor_plan: str) -> bool:
    """Whether a step's "Previous action verification" states that the previous step failed."""
    verification = sections(executor_plan).get("Previous action verification", "")
    return bool(_FAILED.search(verification)) and not _NOTHING_BEFORE.search(verification)
