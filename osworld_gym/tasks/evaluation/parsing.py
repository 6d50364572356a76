"""Parses XML and counts lines within limits, for metrics that read what a policy may have written."""

from __future__ import annotations

from xml.etree import ElementTree

from osworld_gym.tasks.evaluation.sidecar.calling import Exhausted

MAX_LINES = 1 << 20  # lines of a text, rows of a table: as many as a spreadsheet has


def parse_xml(content: bytes | str) -> ElementTree.Element:
    """The root of an XML document.

    Raises:
        Exhausted: it declares entities, which may expand without bound. None of the formats that are read here does.
        ParseError: it is malformed.
    """
    entities = "<!ENTITY" in content if isinstance(content, str) else b"<!ENTITY" in content.replace(b"\0", b"")
    if entities:
        raise Exhausted("its XML declares entities")
    return ElementTree.fromstring(content)


def check_lines(text: str) -> str:
    """The text itself. Raises Exhausted if it has more than ``MAX_LINES`` lines."""
    if text.count("\n") > MAX_LINES:
        raise Exhausted(f"it has more than {MAX_LINES} lines")
    return text
