"""Reads the accessibility tree of the desktop. A separate program for the system's Python, which has gi and AT-SPI.

``python3 atspi_tree.py tree|terminal SECONDS`` prints one line of JSON: ``{"AT": xml, "truncated": bool}`` in OSWorld's
format, or ``{"output": text or null}``. A program that does not answer is left out, and the tree is truncated.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

Pairs = Iterator[tuple[str, str]]

DEPTH, WIDTH = 50, 1024  # OSWorld's limits of nesting and of children
NODES = 50_000  # most nodes of the tree
ANSWER = 2000  # milliseconds for one query to a program
START = 5000  # milliseconds for the first query
HUNG = 0.9 * ANSWER / 1000  # a query that fails after this many seconds means that the program hangs

_HOST = "https://accessibility.ubuntu.example.org/ns/"
NAMESPACES = {
    "st": _HOST + "state",
    "attr": _HOST + "attributes",
    "cp": _HOST + "component",
    "doc": _HOST + "document",
    "docattr": _HOST + "document/attributes",
    "txt": _HOST + "text",
    "val": _HOST + "value",
    "act": _HOST + "action",
}
#: program names here → names that the evaluators look for
ALIASES = {"Chromium": "Google Chrome"}

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\ufffc\ufffd]")
_NOT_NAME = re.compile(r"[^\w.-]|^(?=[^A-Za-z_])")


class Hung(Exception):
    """A program does not answer."""


class Over(Exception):
    """Time or nodes have run out."""


def text_only(text: str | None) -> str:
    """The text without characters that XML forbids and without AT-SPI's placeholders for objects."""
    return _NOT_XML.sub("", text or "")


def name_only(text: str) -> str:
    """The text as a valid XML name."""
    return _NOT_NAME.sub("_", text.replace(" ", "-"))


def ask(question: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
    """The program's reply, or ``default`` if the query fails. Raises Hung if it fails only at its time limit."""
    start = time.monotonic()
    try:
        return question(*arguments)
    except GLib.Error:
        if time.monotonic() - start >= HUNG:
            raise Hung from None
        return default


class Tree:
    """Writes the tree as text, piece by piece."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.left = NODES
        self.parts: list[str] = []
        self.truncated = False

    def write(self) -> str:
        names = " ".join(f"xmlns:{prefix}={quoteattr(uri)}" for prefix, uri in NAMESPACES.items())
        self.parts.append(f"<desktop-frame {names}>")
        for program in children(Atspi.get_desktop(0)):
            try:
                self.node(program, 1, False)
            except Hung:
                self.truncated = True
            except Over:
                self.truncated = True
                break
        self.parts.append("</desktop-frame>")
        return "".join(self.parts)

    def node(self, node: Any, depth: int, in_sheet: bool) -> None:
        if time.monotonic() > self.end or self.left <= 0:
            raise Over
        self.left -= 1
        role = (ask(node.get_role_name, default="") or "").strip()
        states = states_of(node)
        tag = name_only(role or "unknown")
        start = len(self.parts)
        self.parts.append(
            f"<{tag} {' '.join(f'{key}={quoteattr(value)}' for key, value in attributes(node, role, states))}>"
        )
        self.parts.append(escape(text_of(node)))
        in_sheet = in_sheet or role == "document spreadsheet"
        try:
            if depth < DEPTH:
                inner = cells(node) if in_sheet and role == "table" else children(node)
                for child in inner:
                    self.node(child, depth + 1, in_sheet)
        finally:  # also when time runs out: every opened element is closed
            if self.parts[-1] == "" and len(self.parts) == start + 2:
                self.parts[start:] = [self.parts[start][:-1] + "/>"]
            else:
                self.parts.append(f"</{tag}>")


def states_of(node: Any) -> set[str]:
    states = ask(node.get_state_set)
    return {state.value_nick.replace("-", "_") for state in states.get_states()} if states is not None else set()


def attributes(node: Any, role: str, states: set[str]) -> Pairs:
    """(name, value) of every attribute that OSWorld's tree has for a node."""
    name = text_only(ask(node.get_name, default=""))
    yield "name", ALIASES.get(name, name) if role == "application" else name
    for state in sorted(states):
        yield f"st:{state}", "true"
    for key, value in sorted((ask(node.get_attributes) or {}).items()):
        if key:
            yield f"attr:{name_only(key)}", text_only(value)
    box = node.get_component_iface() if {"visible", "showing"} <= states else None
    extents = ask(Atspi.Component.get_extents, box, Atspi.CoordType.SCREEN) if box is not None else None
    if extents is not None:
        yield "cp:screencoord", str((extents.x, extents.y))
        yield "cp:size", str((extents.width, extents.height))
    if node.get_image_iface() is not None:
        yield "image", "true"
    if node.get_selection_iface() is not None:
        yield "selection", "true"
    yield from values(node)
    yield from actions(node)


def values(node: Any) -> Pairs:
    if (value := node.get_value_iface()) is None:
        return
    questions = {
        "value": Atspi.Value.get_current_value,
        "min": Atspi.Value.get_minimum_value,
        "max": Atspi.Value.get_maximum_value,
        "step": Atspi.Value.get_minimum_increment,
    }
    for key, question in questions.items():
        answer = ask(question, value)
        if answer is not None:
            yield f"val:{key}", str(answer)


def actions(node: Any) -> Pairs:
    if (action := node.get_action_iface()) is None:
        return
    seen: set[str] = set()
    for i in range(ask(Atspi.Action.get_n_actions, action, default=0)):
        name = name_only(ask(Atspi.Action.get_action_name, action, i, default="") or "")
        if name in seen:
            continue
        seen.add(name)
        yield f"act:{name}_desc", text_only(ask(Atspi.Action.get_action_description, action, i, default=""))
        yield f"act:{name}_kb", text_only(ask(Atspi.Action.get_key_binding, action, i, default=""))


def text_of(node: Any) -> str:
    if (text := node.get_text_iface()) is None:
        return ""
    length = ask(Atspi.Text.get_character_count, text, default=0)
    return text_only(ask(Atspi.Text.get_text, text, 0, length, default="")) if length else ""


def children(node: Any) -> Iterator[Any]:
    for i in range(min(ask(node.get_child_count, default=0), WIDTH)):
        child = ask(node.get_child_at_index, i)
        if child is not None:
            yield child


def cells(table: Any) -> Iterator[Any]:
    """The visible cells of a spreadsheet, which has 16,384 × 1,048,576 cells."""
    grid, box = table.get_table_iface(), table.get_component_iface()
    columns = ask(Atspi.Table.get_n_columns, grid, default=0) if grid is not None else 0
    extents = ask(Atspi.Component.get_extents, box, Atspi.CoordType.SCREEN) if box is not None else None
    if not columns or extents is None:
        return
    corner = (extents.x + 2, extents.y + 2, Atspi.CoordType.SCREEN)
    first = ask(Atspi.Component.get_accessible_at_point, box, *corner)
    at = max(ask(first.get_index_in_parent, default=0), 0) if first is not None else 0
    top, left = divmod(at, columns)
    for row in range(top, top + WIDTH):
        shown = 0
        for column in range(left, min(left + WIDTH, columns)):
            cell = ask(table.get_child_at_index, row * columns + column)
            if cell is None or "showing" not in states_of(cell):
                break
            shown += 1
            yield cell
        if not shown:
            return


def terminal() -> str | None:
    """The text of the focused GNOME terminal in the active window; None if there is not exactly one."""
    texts = []
    for program in children(Atspi.get_desktop(0)):
        if ask(program.get_name) != "gnome-terminal-server":
            continue
        queue = [(frame, 0) for frame in children(program) if "active" in states_of(frame)]
        while queue:
            node, depth = queue.pop()
            if ask(node.get_role_name) == "terminal" and "focused" in states_of(node):
                texts.append(text_of(node).rstrip())
            elif depth < DEPTH:
                queue += [(child, depth + 1) for child in children(node)]
    return texts[0] if len(texts) == 1 else None


def main(what: str, seconds: float) -> None:
    Atspi.init()
    Atspi.set_timeout(ANSWER, START)
    if what == "terminal":
        print(json.dumps({"output": terminal()}))
        return
    tree = Tree(seconds)
    print(json.dumps({"AT": tree.write(), "truncated": tree.truncated}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
