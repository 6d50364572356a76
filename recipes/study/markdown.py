"""Lines of Markdown."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

WIDTH = 120
_RELATIVE = re.compile(r"\]\((?![a-z]+:|#|/)([^)\s]+)\)")  #: the target of a link to another file
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


def relinked(text: str, folder: Path, page: Path) -> str:
    """The text, whose links are relative to a folder, with links that are relative to the folder of a page."""
    return _RELATIVE.sub(lambda match: f"]({os.path.relpath(folder / match[1], page.parent)})", text)
