"""Builds the content of every tile from state and layout, for drawing, hit testing, keyboard focus and the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from osworld_gym.desktops.sim.applications import FILES
from osworld_gym.desktops.sim.draw import EDGE_BOTTOM, EDGE_LEFT, EDGE_RIGHT, TILE, Look
from osworld_gym.desktops.sim.layout import (
    FILE_COLUMNS,
    LIST_COLUMNS,
    WINDOW_COLUMNS,
    WINDOW_ROWS,
    Layout,
    Place,
    Slot,
)
from osworld_gym.desktops.sim.state import SimState

DESK, MENU, DIALOG, LAUNCHER, POPUP = range(5)  #: layers; only the highest visible one accepts input
Target = tuple[str, ...]
NOTHING: Target = ()
MAX_SHOWN = 8  #: most letters on a tile


class Cell(NamedTuple):
    """One tile: its look, its accessibility role, and the target of a click on it."""

    look: Look
    role: str = ""
    target: Target = NOTHING
    layer: int = DESK


class Element(NamedTuple):
    """A visible labelled widget. ``box`` is x0, y0, x1, y1 in pixels; x1 and y1 are exclusive."""

    label: str
    role: str
    box: tuple[int, int, int, int]

    @property
    def centre(self) -> tuple[int, int]:
        return (self.box[0] + self.box[2]) // 2, (self.box[1] + self.box[3]) // 2


@dataclass
class Scene:
    """All visible tiles. ``top`` is the layer that accepts input."""

    cells: dict[Place, Cell]
    top: int

    def target_at(self, place: Place) -> Target:
        """The target of a click; empty if a higher layer blocks the tile."""
        cell = self.cells[place]
        return cell.target if cell.layer == self.top else NOTHING

    def reachable(self) -> list[tuple[Place, Cell]]:
        """Tiles that accept input, in reading order, which is the keyboard's focus order."""
        cells = [(p, c) for p, c in self.cells.items() if c.target and c.layer == self.top]
        return sorted(cells, key=lambda pair: (pair[0][1], pair[0][0]))

    def where(self, target: Target) -> Place | None:
        """The first tile with that target that accepts input; None if there is none."""
        for place, cell in self.cells.items():
            if cell.target == target and cell.layer == self.top:
                return place
        return None

    def elements(self) -> list[Element]:
        """Labelled tiles in reading order."""
        out = []
        for (x, y), cell in sorted(self.cells.items(), key=lambda item: (item[0][1], item[0][0])):
            if cell.look.label:
                out.append(Element(cell.look.label, cell.role, (x * TILE, y * TILE, (x + 1) * TILE, (y + 1) * TILE)))
        return out


def build_scene(state: SimState, layout: Layout) -> Scene:
    """The current scene, built from back to front."""
    cells = dict(_backdrop(layout))
    if state.app is not None:
        place = next(place for place, icon in layout.dock.items() if icon == state.app)
        cells[place] = Cell(Look("dock", state.app, "open"), "icon", ("app", state.app))
    top = DESK
    if state.app is not None:
        _window(cells, state, layout, state.app)
    if state.menu is not None:
        top = MENU
        _menu(cells, state, layout)
    if state.dialog is not None:
        top = DIALOG
        _dialog(cells, state, layout)
    if state.launcher is not None:
        top = LAUNCHER
        _launcher(cells, state, layout)
    if state.popup is not None:
        top = POPUP
        _popup(cells, state, layout)
    return Scene(cells, top)


@lru_cache(maxsize=256)
def _backdrop(layout: Layout) -> dict[Place, Cell]:
    """Wallpaper and dock, in reading order. Cached: copy it, do not modify it."""
    wall, bar = Cell(Look("wall")), Cell(Look("dock"))
    places = [(x, y) for y in range(layout.rows) for x in range(layout.columns)]
    cells = {place: bar if layout.on_dock_line(place) else wall for place in places}
    for place, icon in layout.dock.items():
        cells[place] = Cell(Look("dock", icon), "icon", ("app", icon))
    return cells


def _window(cells: dict[Place, Cell], state: SimState, layout: Layout, app: str) -> None:
    left, above = layout.windows[app]
    last = WINDOW_COLUMNS - 1
    for column in range(WINDOW_COLUMNS):
        edge = (EDGE_LEFT if column == 0 else 0) | (EDGE_RIGHT if column == last else 0)
        cells[left + column, above] = Cell(Look("title"), "title")
        cells[left + column, above + 1] = Cell(Look("tab", edge=edge))
        for row in range(2, WINDOW_ROWS):
            bottom = EDGE_BOTTOM if row == WINDOW_ROWS - 1 else 0
            cells[left + column, above + row] = Cell(Look("body", edge=edge | bottom), "", ("blank",))
    cells[left, above] = Cell(Look("title", app), "title")
    cells[left + last, above] = Cell(Look("title", "", "cross"), "window_close", ("x",))
    for i, tab in enumerate(layout.tabs[app]):
        if tab:
            mark = "active" if tab == state.tab else ""
            look = Look("body" if mark else "tab", tab, mark, ("tab", tab) == state.focus)
            cells[left + i, above + 1] = Cell(look, "tab", ("tab", tab))
    listing = state.listing()
    for slot in layout.content(app, state.tab):
        place = (left + slot.column, above + 2 + slot.row)
        cell = _content(slot, state, listing)
        if cell is not None:
            edge = cells[place].look.edge
            look = cell.look._replace(edge=edge, focus=bool(cell.target) and cell.target == state.focus)
            cells[place] = cell._replace(look=look)


def _content(slot: Slot, state: SimState, listing: list[str]) -> Cell | None:
    """The cell of one slot of the open page; None if it is empty now."""
    kind, name, option = slot.kind, slot.name, slot.option
    if kind == "label":
        return Cell(Look("body", name), "label")
    if kind == "toggle":
        return Cell(Look("body", name, "on" if state.shown(name) else "off"), "toggle", ("toggle", name))
    if kind == "choose":
        return Cell(
            Look("body", option, "chosen" if state.shown(name) == option else "free"),
            "option",
            ("choose", name, option),
        )
    if kind == "item":
        return _item(int(option) + state.scroll * LIST_COLUMNS, name, state, listing)
    if kind == "file":
        return _file(int(option) + state.scroll * FILE_COLUMNS, state, listing)
    if kind == "scroll":
        return Cell(Look("button", "", option), "scroll", ("scroll", option))
    if kind in ("field", "value"):
        return _field(kind, name, option, state)
    if kind == "commit":
        return Cell(Look("button", name, "ready" if state.dirty() else ""), "button", ("commit",))
    if kind == "mark":
        return Cell(Look("button", name), "button", ("mark", name))
    if kind == "result":
        value = state.settings[name]
        return Cell(Look("body", str(value) if value else ""), "text")
    if kind == "button":
        return Cell(Look("button", name), "button", ("empty",))
    assert kind == "status", kind
    return Cell(Look("panel", state.status[int(option)][:MAX_SHOWN]), "status") if state.status else None


def _item(i: int, name: str, state: SimState, listing: list[str]) -> Cell | None:
    if i >= len(listing):
        return None
    chosen = state.shown(name) == listing[i]
    return Cell(Look("body", listing[i], "selected" if chosen else "file"), "item", ("choose", name, listing[i]))


def _file(i: int, state: SimState, listing: list[str]) -> Cell | None:
    if i >= len(listing):
        return None
    chosen = state.selected == listing[i]
    return Cell(Look("body", listing[i][:MAX_SHOWN], "selected" if chosen else "file"), "file", ("file", listing[i]))


def _field(kind: str, name: str, option: str, state: SimState) -> Cell:
    if kind == "field":
        return Cell(Look("body", name), "field", ("field", name))
    text = str(state.shown(name))
    part = text[-2 * MAX_SHOWN :][MAX_SHOWN:] if option else text[-2 * MAX_SHOWN :][:MAX_SHOWN]
    mark = "field"
    if state.editing == name:
        mark = "select" if state.fresh and text and part else "edit"
    return Cell(Look("body", part, mark), "value", ("field", name))


def _menu(cells: dict[Place, Cell], state: SimState, layout: Layout) -> None:
    assert state.menu is not None
    for i, entry in enumerate(layout.file_menu if state.app == FILES else layout.trash_menu):
        look = Look("panel", entry, "", state.focus == ("menu", entry), EDGE_LEFT | EDGE_RIGHT)
        cells[state.menu.x, state.menu.y + i] = Cell(look, "menu", ("menu", entry), MENU)


def _dialog(cells: dict[Place, Cell], state: SimState, layout: Layout) -> None:
    assert state.dialog is not None
    x, y = layout.dialog
    kind = state.dialog.kind
    words = (kind, state.dialog.text if kind == "rename" else state.dialog.file)
    for i in range(3):
        cells[x + i, y] = Cell(Look("panel"), "", NOTHING, DIALOG)
        cells[x + i, y + 1] = Cell(Look("panel", edge=EDGE_BOTTOM), "", NOTHING, DIALOG)
    cells[x, y] = Cell(Look("title", words[0]), "dialog", NOTHING, DIALOG)
    cells[x + 2, y] = Cell(Look("title"), "", NOTHING, DIALOG)
    mark = ("select" if state.dialog.fresh else "edit") if kind == "rename" else ""
    cells[x + 1, y] = Cell(Look("body", words[1][-MAX_SHOWN:], mark), "text", ("text",) if mark else NOTHING, DIALOG)
    answers = ("ok", "cancel") if kind == "rename" else ("yes", "no")
    for i, answer in enumerate(answers if layout.yes_first else answers[::-1]):
        look = Look("button", answer, "", state.focus == ("answer", answer))
        cells[x + i, y + 1] = Cell(look, "button", ("answer", answer), DIALOG)


def _launcher(cells: dict[Place, Cell], state: SimState, layout: Layout) -> None:
    assert state.launcher is not None
    x, y = layout.launcher
    cells[x, y] = Cell(Look("title", "run"), "launcher", NOTHING, LAUNCHER)
    text = state.launcher[-2 * MAX_SHOWN :]
    cells[x + 1, y] = Cell(Look("body", text[:MAX_SHOWN], "edit"), "value", ("text",), LAUNCHER)
    cells[x + 2, y] = Cell(Look("body", text[MAX_SHOWN:], "field"), "value", ("text",), LAUNCHER)
    for place, cell in cells.items():
        if cell.target == ("app", "start"):
            cells[place] = cell._replace(layer=LAUNCHER)


def _popup(cells: dict[Place, Cell], state: SimState, layout: Layout) -> None:
    assert state.popup is not None
    x, y = layout.place_at(2, 2, state.popup.x, state.popup.y)
    cells[x, y] = Cell(Look("popup", state.popup.title), "popup", NOTHING, POPUP)
    cells[x + 1, y] = Cell(Look("popup", state.popup.text), "popup", NOTHING, POPUP)
    cells[x, y + 1] = Cell(Look("popup"), "popup", NOTHING, POPUP)
    cells[x + 1, y + 1] = Cell(Look("button", "close"), "popup_close", ("popup",), POPUP)
