"""The oracle's decision: goal and state → the next move, as data; a style (``*_habits.py``) carries it out."""

from __future__ import annotations

from typing import Any, NamedTuple

from osworld_gym.desktops.sim.applications import FIELD, FILE_MENU, FILES, TOGGLE, TRASH, TRASH_MENU, Control
from osworld_gym.desktops.sim.desktop import SimDesktop
from osworld_gym.desktops.sim.goals import Goal
from osworld_gym.desktops.sim.scene import Target
from osworld_gym.desktops.sim.state import SimState


class Move(NamedTuple):
    """One step of a solution.

    ``kind``: popup, close (a menu, dialog or launcher that covers the target), app, tab, press, scroll, fill, typing,
    file_menu, double, find, drag. ``target`` is the widget, ``word`` its label or the text to type, ``other`` the
    target of a drag.
    """

    kind: str
    word: str
    target: Target = ()
    other: Target = ()
    subtask: str = ""
    turn: str = ""  #: on/off for a toggle


def next_move(goal: Goal, desktop: SimDesktop, *, native: bool) -> Move:
    """The next move towards a goal that is not reached. Pop-ups and open menus and dialogs are handled first."""
    state = desktop.inner
    if state.popup is not None:
        return Move("popup", "pop-up", ("popup",), subtask="Close the pop-up")
    if state.launcher is not None:
        return Move("close", "start", ("app", "start"), subtask="Close the launcher")
    answer = _answer(goal, state)
    if answer is not None:
        return answer
    app, tab = place_of(goal, desktop)
    if state.app != app:
        return open_move(app)
    if tab and state.tab != tab:
        return tab_move(tab)
    if goal["kind"] == "set":
        return _set(goal["values"], desktop, native)
    if goal["kind"] == "mark":
        return _mark(goal, desktop, native)
    if goal["kind"] == "empty":
        return Move("press", "empty", ("empty",), subtask="Empty the trash")
    return _file(goal, desktop, native)


def open_move(app: str) -> Move:
    """The move that opens an application."""
    return Move("app", app, ("app", app), subtask=f"Open {app}")


def tab_move(tab: str) -> Move:
    """The move to a tab of the open application."""
    return Move("tab", tab, ("tab", tab), subtask=f"Go to the tab {tab}")


def place_of(goal: Goal, desktop: SimDesktop) -> tuple[str, str]:
    """(application, tab) of the goal's next unfinished part; the tab is empty for the trash."""
    state, catalogue = desktop.inner, desktop.catalogue
    if goal["kind"] == "set":
        name = next(n for n, v in goal["values"].items() if state.settings[n] != v)
        return catalogue.place(name)[:2]
    if goal["kind"] == "mark":
        return catalogue.place(goal["mark"])[:2]
    if goal["kind"] in ("restore", "empty"):
        return TRASH, ""
    return FILES, next((n for n, files in state.folders.items() if goal["file"] in files), state.tab)


def _answer(goal: Goal, state: SimState) -> Move | None:
    """The move inside an open menu or dialog, or None when there is neither."""
    kind, file = goal["kind"], goal.get("file")
    if state.menu is not None:
        entries = FILE_MENU if state.app == FILES else TRASH_MENU
        if state.menu.file == file and kind in entries:
            return Move("press", kind, ("menu", kind), subtask=f"Choose {kind}")
        return Move("close", "menu", ("close menu",), subtask="Close the menu")
    if state.dialog is None:
        return None
    dialog = state.dialog
    if dialog.kind == "rename" and kind == "rename" and dialog.file == file:
        if dialog.text == goal["name"]:
            return Move("press", "ok", ("answer", "ok"), subtask="Confirm the new name")
        if dialog.fresh:
            return Move("typing", goal["name"], ("text",), subtask=f"Type the new name {goal['name']}")
    elif dialog.kind == kind and kind in ("delete", "empty") and (kind == "empty" or dialog.file == file):
        return Move("press", "yes", ("answer", "yes"), subtask="Confirm")
    no = "cancel" if dialog.kind == "rename" else "no"
    return Move("press", no, ("answer", no), subtask="Leave the dialog")


def _set(values: dict[str, Any], desktop: SimDesktop, native: bool) -> Move:
    """On the open page: sets the controls that show a wrong value, in the goal's order; then commits."""
    state = desktop.inner
    page = state.page()
    assert page is not None
    by_name = {control.name: control for control in page.controls}
    for name, value in values.items():
        if name in by_name and state.shown(name) != value:
            return _put(by_name[name], value, desktop, native)
    for control in page.controls:
        if control.name in state.pending and control.name not in values:
            return _put(control, state.settings[control.name], desktop, native)
    return Move("press", str(page.commit), ("commit",), subtask=f"Confirm with {page.commit}")


def _put(control: Control, value: Any, desktop: SimDesktop, native: bool) -> Move:
    state, name = desktop.inner, control.name
    if control.kind == TOGGLE:
        turn = "on" if value else "off"
        return Move("press", name, ("toggle", name), subtask=f"Turn {turn} {name}", turn=turn)
    if control.kind == FIELD:
        if not native:
            return Move("fill", str(value), ("field", name), subtask=f"Type {value} in {name}")
        if state.editing == name and (state.fresh or not state.shown(name)):
            return Move("typing", str(value), ("field", name), subtask=f"Type {value} in {name}")
        return Move("press", name, ("field", name), subtask=f"Type {value} in {name}")
    return _choose(("choose", name, value), str(value), desktop, native, f"Set {name} to {value}")


def _choose(target: Target, word: str, desktop: SimDesktop, native: bool, subtask: str) -> Move:
    """Chooses an option, level, list item or file; ``native`` scrolls to it first, the expert searches by typing."""
    if not native or desktop.scene().where(target) is not None:
        return Move("press", word, target, subtask=subtask)
    return _scroll(word, desktop, subtask)


def _scroll(word: str, desktop: SimDesktop, subtask: str) -> Move:
    """Scrolls towards an item that is not visible."""
    listing = desktop.inner.listing()
    visible = [c.target[-1] for c in desktop.scene().cells.values() if c.target and c.target[0] in ("choose", "file")]
    first = min((listing.index(item) for item in visible if item in listing), default=0)
    direction = "down" if listing.index(word) > first else "up"
    return Move("scroll", direction, ("scroll", direction), subtask=subtask)


def _mark(goal: Goal, desktop: SimDesktop, native: bool) -> Move:
    control = desktop.catalogue.place(goal["mark"]).control
    if desktop.inner.shown(control.name) != goal["item"]:
        subtask = f"Choose the letter of {goal['item']}"
        return _choose(("choose", control.name, goal["item"]), goal["item"], desktop, native, subtask)
    return Move("press", goal["mark"], ("mark", goal["mark"]), subtask=f"Press {goal['mark']}")


def _file(goal: Goal, desktop: SimDesktop, native: bool) -> Move:
    kind, file = goal["kind"], goal["file"]
    target = ("file", file)
    visible = desktop.scene().where(target) is not None
    subtask = f"{kind.capitalize()} the file {file}"
    if kind in ("drag", "move"):
        if not visible:
            return _scroll(file, desktop, subtask) if native else Move("find", file, target, subtask=subtask)
        other = ("app", TRASH) if kind == "drag" else ("tab", goal["folder"])
        return Move("drag", file, target, other, subtask)
    if native and not visible:
        return _scroll(file, desktop, subtask)
    return Move("double" if kind == "open" else "file_menu", file, target, subtask=subtask)
