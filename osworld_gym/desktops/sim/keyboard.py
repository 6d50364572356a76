"""Keyboard actions: typing into fields and the launcher, finding by typing, shortcuts. They modify the state.

===================== ==========================================================================================
``super``             opens and closes the launcher; type an application's name and ``enter``
letters, no field     focus the label that starts with them (a list scrolls to it); ``enter`` presses it
``tab, shift tab``    next, previous widget; ``space`` and ``enter`` press it (``enter`` answers a dialog yes/ok)
``ctrl tab``          next page; ``ctrl shift tab`` previous one; ``ctrl 1`` .. ``ctrl 9`` by number
``up, down``          scroll; ``pageup, pagedown`` too
``escape``            closes the topmost of pop-up, launcher, dialog (no), menu; else leaves the field
``alt f4, ctrl w``    closes the window
``delete, f2``        on the selected file: delete (asks), rename; ``ctrl c``, ``ctrl v`` copy
``menu, shift f10``   context menu of the selected file
``ctrl a``            selects the field's text; ``backspace`` deletes a letter
===================== ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable

from osworld_gym.desktops.sim.applications import FILES
from osworld_gym.desktops.sim.layout import Layout
from osworld_gym.desktops.sim.pointer import activate, answer, open_menu, reveal, scroll
from osworld_gym.desktops.sim.scene import DESK, Cell, Scene, Target, build_scene
from osworld_gym.desktops.sim.state import MAX_TEXT, Dialog, SimState
from osworld_gym.uitars.keys import NAMED_KEYS, split_keys

Shortcut = Callable[[SimState, Layout], None]

#: canonical name (:func:`osworld_gym.uitars.keys.key_name`) → the name in the table of shortcuts
_NAMES = {
    "win": "super", "winright": "super", "esc": "escape", "apps": "menu", " ": "space", "altleft": "alt",
    "ctrlleft": "ctrl", "ctrlright": "ctrl", "shiftleft": "shift", "shiftright": "shift", "altright": "alt",
}  # fmt: skip


def type_text(state: SimState, layout: Layout, text: str) -> None:
    """Types a string; each line end is an ``enter``. Any character can be typed."""
    for i, line in enumerate(text.split("\n")):
        if i:
            _enter(state, layout)
        if line:
            _letters(state, layout, line)


def _letters(state: SimState, layout: Layout, line: str) -> None:
    if state.popup is not None:
        return
    if state.launcher is not None:
        state.launcher = (state.launcher + line)[:MAX_TEXT]
    elif state.dialog is not None:
        if state.dialog.kind == "rename":
            before = "" if state.dialog.fresh else state.dialog.text
            state.dialog.text, state.dialog.fresh = (before + line)[:MAX_TEXT], False
    elif state.editing is not None:
        before = "" if state.fresh else str(state.shown(state.editing))
        state.put(state.editing, (before + line)[:MAX_TEXT])
        state.fresh = False
    else:
        state.find = (state.find + line)[:MAX_TEXT]
        _look_for(state, layout, state.find.strip().lower())


def _look_for(state: SimState, layout: Layout, text: str) -> None:
    """Focuses the widget with that label, else the first that starts with it, also in hidden rows of the list."""
    if not text:
        return
    if state.menu is None:
        listing = state.listing()
        item = text if text in listing else next((name for name in listing if name.startswith(text)), "")
        reveal(state, item)
    labels = [(c.target, _spoken(c)) for _, c in build_scene(state, layout).reachable() if c.target[0] != "app"]
    matches = [target for target, label in labels if label == text]
    matches += [target for target, label in labels if label.startswith(text)]
    if matches:
        state.focus = matches[0]
        if state.focus[0] == "file":
            state.selected = state.focus[1]


def _spoken(cell: Cell) -> str:
    return cell.target[1] if cell.target[0] == "file" else cell.look.label


def _enter(state: SimState, layout: Layout) -> None:
    if state.popup is not None:
        state.popup = None
    elif state.launcher is not None:
        _launch(state, layout)
    elif state.dialog is not None:
        focused = state.focus[1] if state.focus and state.focus[0] == "answer" else None
        answer(state, focused or ("ok" if state.dialog.kind == "rename" else "yes"))
    elif state.editing is not None:
        state.editing = None
    elif state.app == FILES and state.menu is None and state.selected in state.here() and _on_file(state):
        state.open_file(str(state.selected))
    else:
        _press_focus(state, layout)


def _on_file(state: SimState) -> bool:
    return state.focus is None or state.focus[0] == "file"


def _press_focus(state: SimState, layout: Layout) -> None:
    scene = build_scene(state, layout)
    if state.focus is not None and scene.where(state.focus) is not None:
        focus = state.focus
        activate(state, layout, focus)


def _launch(state: SimState, layout: Layout) -> None:
    """Opens the application whose name starts with the typed text; an unknown name only closes the launcher."""
    text = (state.launcher or "").strip().lower()
    state.launcher = None
    for icon in sorted(layout.tabs):
        if text and icon.startswith(text):
            state.open_app(icon, layout.tabs[icon][0])
            return


def hotkey(state: SimState, layout: Layout, keys: str) -> None:
    """Presses a key combination, with any spelling of :func:`split_keys`. Unknown combinations do nothing."""
    names = [_NAMES.get(key, key) for key in split_keys(keys)]
    combo = " ".join(names)
    if state.popup is not None:
        if combo in ("escape", "enter", "space"):
            state.popup = None
        return
    if combo in _SHORTCUTS:
        _SHORTCUTS[combo](state, layout)
    elif len(names) == 2 and names[0] == "ctrl" and names[1] in "123456789":
        _page(state, layout, int(names[1]) - 1)
    elif len(names) == 1 and len(combo) == 1:
        type_text(state, layout, combo)


def _super(state: SimState, _: Layout) -> None:
    state.launcher = "" if state.launcher is None else None


def _escape(state: SimState, _: Layout) -> None:
    if state.launcher is not None:
        state.launcher = None
    elif state.dialog is not None:
        state.dialog = None
    elif state.menu is not None:
        state.menu = None
    else:
        state.editing, state.focus, state.find = None, None, ""


def _free(state: SimState) -> bool:
    """Whether the window has the keyboard focus."""
    return state.launcher is None and state.dialog is None and state.menu is None and state.app is not None


def _page(state: SimState, layout: Layout, number: int) -> None:
    if _free(state) and state.app is not None and number < len(layout.tabs[state.app]):
        activate(state, layout, ("tab", layout.tabs[state.app][number]))


def _turn(state: SimState, layout: Layout, by: int) -> None:
    if state.app is not None:
        pages = layout.tabs[state.app]
        _page(state, layout, (pages.index(state.tab) + by) % len(pages))


def _close(state: SimState, _: Layout) -> None:
    if _free(state):
        state.close_window()


def _move_focus(state: SimState, layout: Layout, by: int) -> None:
    scene = build_scene(state, layout)
    stops = _stops(scene)
    if not stops:
        return
    now = stops.index(state.focus) if state.focus in stops else (-1 if by > 0 else 0)
    state.editing, state.find = None, ""
    state.focus = stops[(now + by) % len(stops)]
    if state.focus[0] == "file":
        state.selected = state.focus[1]


def _stops(scene: Scene) -> list[Target]:
    """Widgets that can be focused, each once: not the dock, the empty space or the window's own buttons."""
    targets: dict[Target, None] = {}
    for _, cell in scene.reachable():
        if cell.target[0] not in ("app", "blank", "text", "scroll", "x") and not (
            scene.top == DESK and cell.target[0] == "tab"
        ):
            targets[cell.target] = None
    return list(targets)


def _space(state: SimState, layout: Layout) -> None:
    if state.launcher is not None or state.editing is not None or (state.dialog and state.dialog.kind == "rename"):
        _letters(state, layout, " ")
    elif state.focus is not None and state.focus[0] != "file":
        _press_focus(state, layout)


def _select_all(state: SimState, _: Layout) -> None:
    if state.dialog is not None:
        state.dialog.fresh = True
    elif state.editing is not None:
        state.fresh = True


def _backspace(state: SimState, _: Layout) -> None:
    if state.launcher is not None:
        state.launcher = state.launcher[:-1]
    elif state.dialog is not None:
        state.dialog.text, state.dialog.fresh = ("" if state.dialog.fresh else state.dialog.text[:-1]), False
    elif state.editing is not None:
        text = "" if state.fresh else str(state.shown(state.editing))[:-1]
        state.put(state.editing, text)
        state.fresh = False


def _delete(state: SimState, layout: Layout) -> None:
    if state.dialog is not None or state.editing is not None or state.launcher is not None:
        _backspace(state, layout)
    elif _free(state) and state.selected in state.here():
        state.dialog = Dialog("delete" if state.app == FILES else "erase", str(state.selected))


def _rename(state: SimState, _: Layout) -> None:
    if _free(state) and state.app == FILES and state.selected in state.here():
        state.dialog = Dialog("rename", str(state.selected), str(state.selected))


def _copy(state: SimState, _: Layout) -> None:
    if _free(state) and state.selected in state.here():
        state.clipboard = state.selected


def _paste(state: SimState, _: Layout) -> None:
    if _free(state) and state.app == FILES and state.clipboard in state.here():
        state.copy(str(state.clipboard))


def _context(state: SimState, layout: Layout) -> None:
    place = build_scene(state, layout).where(("file", str(state.selected)))
    if _free(state) and place is not None:
        open_menu(state, layout, str(state.selected), place)


def _scroll(direction: str) -> Shortcut:
    def press(state: SimState, _: Layout) -> None:
        if _free(state):
            scroll(state, direction)

    return press


_SHORTCUTS: dict[str, Shortcut] = {
    "super": _super,
    "escape": _escape,
    "enter": _enter,
    "tab": lambda state, layout: _move_focus(state, layout, 1),
    "shift tab": lambda state, layout: _move_focus(state, layout, -1),
    "ctrl tab": lambda state, layout: _turn(state, layout, 1),
    "ctrl shift tab": lambda state, layout: _turn(state, layout, -1),
    "space": _space,
    "up": _scroll("up"),
    "pageup": _scroll("up"),
    "down": _scroll("down"),
    "pagedown": _scroll("down"),
    "alt f4": _close,
    "ctrl w": _close,
    "ctrl a": _select_all,
    "ctrl c": _copy,
    "ctrl v": _paste,
    "backspace": _backspace,
    "delete": _delete,
    "f2": _rename,
    "shift f10": _context,
    "menu": _context,
}

_USED = {name for combo in _SHORTCUTS for name in combo.split()}
#: named keys without a shortcut
UNUSED_KEYS = frozenset(key for key in NAMED_KEYS if _NAMES.get(key, key) not in _USED)
