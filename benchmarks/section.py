"""Writes one section of a results page, leaving the other sections unchanged."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "desktops-results.md"


def write_section(title: str, body: str, page: Path = PAGE) -> None:
    """Replaces the section ``## title`` of the page, or appends it, with today's date and the number of cores."""
    text = page.read_text(encoding="utf-8") if page.exists() else "# Real desktops: measured\n"
    dated = f"{date.today()}, {len(os.sched_getaffinity(0))} cores.\n\n{body.strip()}"
    page.write_text(replaced_section(text, title, dated), encoding="utf-8")


def replaced_section(text: str, title: str, body: str) -> str:
    """The page's text with the section ``## title`` replaced, or appended."""
    head = f"## {title}\n"
    section = f"{head}\n{body.strip()}\n"
    before, found, after = text.partition(f"\n{head}")
    if not found:
        return f"{text.rstrip()}\n\n{section}"
    _, following, rest = after.partition("\n## ")
    return f"{before}\n{section}{following}{rest}"
