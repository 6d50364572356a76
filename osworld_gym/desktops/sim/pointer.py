"""Pointer actions: press a target, double-click, right-click, drag, scroll. They modify the state."""

from __future__ import annotations

from collections.abc import Callable

from osworld_gym.desktops.sim.applications import FILE_MENU, FILES, START, TRASH, TRASH_MENU
from osworld_gym.desktops.sim.layout import FILE_COLUMNS, FILE_ROWS, LIST_COLUMNS, LIST_ROWS, Layout, Place
from osworld_gym.desktops.sim.scene import MENU, Scene, Target
from osworld_gym.desktops.sim.state import Dialog, Menu, SimState


def activate(state: SimState, layout: Layout, target: Target) -> None:
    """Presses a widget, by a click or by the keyboard. An empty target does nothing."""
    if not target:
        return
    kind, *names = target
    if kind not in ("text", "field", "scroll"):
        state.editing = None
    state.find = ""
    if kind == "app":
        _dock(state, layout, names[0])
    elif kind in PRESSES:
        PRESSES[kind](state, *names)


def _dock(state: SimState, layout: Layout, icon: str) -> None:
    if icon == START:
        state.launcher = "" if state.launcher is None else None
    else:
        state.open_app(icon, layout.tabs[icon][0])


def _mark(state: SimState, mark: str) -> None:
    control = state.list_control()
    if control is not None and mark in control.marks:
        state.settings[mark] = state.shown(control.name)


def _menu_entry(state: SimState, entry: str) -> None:
    assert state.menu is not None
    file, state.menu, state.focus = state.menu.file, None, None
    if entry == "open":
        state.open_file(file)
    elif entry == "copy":
        state.copy(file)
    elif entry == "restore":
        state.restore(file)
    elif entry == "rename":
        state.dialog = Dialog("rename", file, file)
    else:
        state.dialog = Dialog(entry, file)


def _go_to(state: SimState, tab: str) -> None:
    if tab != state.tab:
        state.go_to(tab)


def _toggle(state: SimState, control: str) -> None:
    state.put(control, not state.shown(control))


def _edit(state: SimState, control: str) -> None:
    state.editing, state.fresh, state.focus = control, True, ("field", control)


def _select(state: SimState, file: str) -> None:
    state.selected, state.focus = file, ("file", file)


def _unselect(state: SimState) -> None:
    state.selected, state.focus = None, None


def _ask_to_empty(state: SimState) -> None:
    state.dialog = Dialog("empty", TRASH)


def _close_popup(state: SimState) -> None:
    state.popup = None


def answer(state: SimState, word: str) -> None:
    """Presses the dialog's button ``word``."""
    assert state.dialog is not None
    dialog, state.dialog, state.focus = state.dialog, None, None
    if word in ("no", "cancel"):
        return
    if dialog.kind == "rename":
        state.rename(dialog.file, dialog.text.strip())
    elif dialog.kind == "delete":
        state.to_trash(dialog.file)
    elif dialog.kind == "erase":
        state.erase(dialog.file)
    else:
        state.empty_trash()


def left_click(state: SimState, layout: Layout, scene: Scene, place: Place) -> None:
    """Clicks a tile; a click outside an open context menu only closes the menu."""
    target = scene.target_at(place)
    if scene.top == MENU and not target:
        state.menu = None
        return
    activate(state, layout, target)


def double_click(state: SimState, layout: Layout, scene: Scene, place: Place) -> None:
    """Opens a file; anything else is clicked once (a second click would undo a toggle)."""
    target = scene.target_at(place)
    left_click(state, layout, scene, place)
    if target[:1] == ("file",):
        state.open_file(target[1])


def right_click(state: SimState, layout: Layout, scene: Scene, place: Place) -> None:
    """Opens the context menu of a file; elsewhere only closes an open menu."""
    target = scene.target_at(place)
    if scene.top == MENU:
        state.menu = None
    elif target[:1] == ("file",):
        state.selected, state.editing = target[1], None
        open_menu(state, layout, target[1], place)


def open_menu(state: SimState, layout: Layout, file: str, place: Place) -> None:
    """Opens a file's context menu to the right of the tile, moved inside the screen."""
    entries = len(FILE_MENU if state.app == FILES else TRASH_MENU)
    x = place[0] + 1 if place[0] + 1 < layout.columns else place[0] - 1
    state.menu, state.focus = Menu(file, x, min(place[1], layout.rows - entries)), None


def drag(state: SimState, scene: Scene, start: Place, end: Place) -> None:
    """Drops a file on the trash or a folder, or moves a slider to a level; any other drag does nothing."""
    source, goal = scene.target_at(start), scene.target_at(end)
    if source[:1] == ("choose",) and source[:2] == goal[:2]:
        state.put(goal[1], goal[2])
    if source[:1] != ("file",) or not goal:
        return
    if goal == ("app", TRASH):
        state.to_trash(source[1])
    elif goal[0] == "tab" and goal[1] != state.tab:
        state.move(source[1], goal[1])


def scroll(state: SimState, direction: str) -> None:
    """Scrolls the page's list by one row; directions other than up and down do nothing."""
    columns, rows = (FILE_COLUMNS, FILE_ROWS) if state.app in (FILES, TRASH) else (LIST_COLUMNS, LIST_ROWS)
    total = -(-len(state.listing()) // columns)
    step = {"up": -1, "down": 1}.get(direction, 0)
    state.scroll = max(0, min(state.scroll + step, total - rows))


def reveal(state: SimState, item: str) -> None:
    """Scrolls the page's list just far enough to show the item."""
    listing = state.listing()
    if item in listing:
        columns, rows = (FILE_COLUMNS, FILE_ROWS) if state.app in (FILES, TRASH) else (LIST_COLUMNS, LIST_ROWS)
        row = listing.index(item) // columns
        state.scroll = min(max(state.scroll, row - rows + 1), row)


#: kind of a target → what pressing it does, called with the state and the rest of the target; ``app`` needs the layout
PRESSES: dict[str, Callable[..., None]] = {
    "x": SimState.close_window,
    "tab": _go_to,
    "toggle": _toggle,
    "choose": SimState.put,
    "field": _edit,
    "commit": SimState.commit,
    "mark": _mark,
    "file": _select,
    "blank": _unselect,
    "scroll": scroll,
    "empty": _ask_to_empty,
    "menu": _menu_entry,
    "answer": answer,
    "popup": _close_popup,
}
