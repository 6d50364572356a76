"""Lines of Markdown."""

from __future__ import annotations

import re
import textwrap

WIDTH = 120
_WHOLE = re.compile(r"`[^`]+`|\[[^\]]+\]\([^)]+\)")  #: code and links, which are not broken


def row(*cells: str) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def rule(columns: int) -> str:
    """The line below a table's head."""
    return "|" + "---|" * columns


def wrapped(*sentences: str) -> list[str]:
    """A paragraph's lines."""
    text = " ".join(" ".join(sentences).split())
    text = _WHOLE.sub(lambda match: match.group().replace(" ", "\0"), text)
    lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]
