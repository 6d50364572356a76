"""State of the simulated desktop: settings, files, the open window, menus, dialogs and pop-ups. No drawing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from osworld_gym.desktops.sim.applications import (
    CHOICE,
    FIELD,
    FILES,
    LIST,
    POPUP_TEXTS,
    POPUP_TITLES,
    SLIDER,
    TOGGLE,
    TRASH,
    Catalogue,
    Control,
    Tab,
    Value,
)

MAX_TEXT = 64  #: most characters of a field


@dataclass
class Menu:
    """A context menu of ``file`` with its first entry on tile (x, y)."""

    file: str
    x: int
    y: int


@dataclass
class Dialog:
    """A dialog: ``delete``, ``empty`` or ``erase`` (yes/no), or ``rename`` (a text, ok/cancel)."""

    kind: str
    file: str
    text: str = ""
    fresh: bool = True  #: the text is selected: typing replaces it


@dataclass
class Popup:
    """An unrequested message that blocks all other widgets until it is closed."""

    title: str
    text: str
    x: float  #: position as a fraction of the free space, 0..1
    y: float


@dataclass
class SimState:
    """The mutable state. ``settings`` are the committed values, ``pending`` those a page shows before they are."""

    catalogue: Catalogue
    settings: dict[str, Value | None]
    folders: dict[str, list[str]]
    trash: list[str] = field(default_factory=list)
    baseline: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, Value] = field(default_factory=dict)
    app: str | None = None
    tab: str = ""
    scroll: int = 0  #: number of rows that the page's list is scrolled
    focus: tuple[str, ...] | None = None  #: target of the widget that has the keyboard focus
    editing: str | None = None  #: the field that receives typed text
    fresh: bool = False  #: its text is selected: typing replaces it
    find: str = ""  #: letters typed outside a field: they search for a label
    selected: str | None = None
    clipboard: str | None = None
    status: tuple[str, str] | None = None
    menu: Menu | None = None
    dialog: Dialog | None = None
    popup: Popup | None = None
    launcher: str | None = None
    opened: str | None = None

    @classmethod
    def fresh_desktop(cls, catalogue: Catalogue, rng: random.Random) -> SimState:
        """A new state with random settings and file order and no open window."""
        settings: dict[str, Value | None] = {}
        for control in catalogue.controls():
            settings[control.name] = _initial(control, rng)
            settings.update(dict.fromkeys(control.marks))
        folders = {}
        for name, files in catalogue.folders:
            folders[name] = list(files)
            rng.shuffle(folders[name])
        state = cls(catalogue, settings, folders)
        state.take_baseline()
        return state

    def take_baseline(self) -> None:
        """Makes the current state the baseline of :meth:`changed`."""
        self.baseline = self._facts()

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {f"file:{file}": places for file, places in self.files().items()}
        facts.update(self.settings)
        facts["opened"] = self.opened
        return facts

    def files(self) -> dict[str, list[str]]:
        """File → the folders that contain it (including ``trash``), sorted."""
        out: dict[str, list[str]] = {}
        for folder, names in (*self.folders.items(), (TRASH, self.trash)):
            for name in names:
                out.setdefault(name, []).append(folder)
        return {name: sorted(places) for name, places in out.items()}

    def changed(self) -> list[str]:
        """Settings, ``file:<name>`` and ``opened`` that were changed, added or removed since the baseline, sorted."""
        now = self._facts()
        return sorted(k for k in now.keys() | self.baseline.keys() if now.get(k) != self.baseline.get(k))

    def to_json(self) -> dict[str, Any]:
        """The content of ``/state.json``, which verifiers read."""
        return {
            "settings": dict(self.settings),
            "files": self.files(),
            "opened": self.opened,
            "window": self.app,
            "tab": self.tab if self.app else None,
            "changed": self.changed(),
        }

    # -- settings -------------------------------------------------------------------------------------------------
    def page(self) -> Tab | None:
        """The open page of a settings window; None if there is none."""
        for page in self.catalogue.pages(self.app) if self.app else ():
            if page.name == self.tab:
                return page
        return None

    def shown(self, name: str) -> Value | None:
        """The value on the screen: the pending one until it is committed."""
        return self.pending.get(name, self.settings[name])

    def put(self, name: str, value: Value) -> None:
        """Sets a control of the open page; on a page with a commit button it only becomes pending."""
        page = self.page()
        if page is not None and page.commit is not None:
            self.pending[name] = value
            if self.settings[name] == value:
                del self.pending[name]
        else:
            self.settings[name] = value

    def commit(self) -> None:
        """Presses the commit button of the open page."""
        page = self.page()
        for control in page.controls if page else ():
            if control.name in self.pending:
                self.settings[control.name] = self.pending.pop(control.name)
        self.editing = None

    def dirty(self) -> bool:
        """Whether the open page has uncommitted values."""
        page = self.page()
        return page is not None and any(control.name in self.pending for control in page.controls)

    # -- windows --------------------------------------------------------------------------------------------------
    def open_app(self, app: str, tab: str) -> None:
        """Opens a window at its first page ``tab`` and closes the previous one. Does nothing if it is open."""
        self.launcher = None
        if self.app != app:
            self.app = app
            self.go_to(tab)

    def go_to(self, tab: str) -> None:
        """Shows another page: scrolls its list to the top, drops uncommitted values, closes the menu of a file."""
        self.tab, self.scroll, self.focus, self.editing, self.find = tab, 0, None, None, ""
        self.selected, self.status, self.menu = None, None, None
        self.pending.clear()

    def close_window(self) -> None:
        """Closes the window; settings are kept."""
        self.go_to("")
        self.app = None

    def listing(self) -> list[str]:
        """The items of the page's list: files, or the options of a list control."""
        if self.app == FILES:
            return self.folders.get(self.tab, [])
        if self.app == TRASH:
            return self.trash
        control = self.list_control()
        return list(control.options) if control else []

    def list_control(self) -> Control | None:
        """The list control of the open page; None if it has none."""
        page = self.page()
        return next((c for c in page.controls if c.kind == LIST), None) if page else None

    # -- files ----------------------------------------------------------------------------------------------------
    def here(self) -> list[str]:
        """The files that the open window shows; empty if it is not a file window."""
        return self.listing() if self.app in (FILES, TRASH) else []

    def to_trash(self, file: str, word: str = "deleted") -> None:
        files = self.folders.get(self.tab, [])
        if self.app == FILES and file in files:
            files.remove(file)
            self.trash.append(file)
            self._done(word, file)

    def rename(self, file: str, new: str) -> None:
        """Renames a file of the open folder; does nothing if the name is empty or exists."""
        files = self.folders.get(self.tab, [])
        if self.app == FILES and file in files and new and new not in files:
            files[files.index(file)] = new
            self._done("renamed", new)

    def copy(self, file: str) -> None:
        """Copies a file to ``<file>2`` in the same folder."""
        files = self.folders.get(self.tab, [])
        new = f"{file}2"[:MAX_TEXT]
        if self.app == FILES and file in files and new not in files:
            files.insert(files.index(file) + 1, new)
            self._done("copied", file)

    def move(self, file: str, folder: str) -> None:
        """Moves a file of the open folder to another one."""
        files = self.folders.get(self.tab, [])
        if self.app == FILES and file in files and folder in self.folders and file not in self.folders[folder]:
            files.remove(file)
            self.folders[folder].append(file)
            self._done("moved", file)

    def restore(self, file: str) -> None:
        """Moves a file from the trash to its initial folder, or to the first folder if it had none."""
        if self.app == TRASH and file in self.trash:
            home = next((n for n, names in self.catalogue.folders if file in names), self.catalogue.folders[0][0])
            if file not in self.folders[home]:
                self.trash.remove(file)
                self.folders[home].append(file)
                self._done("restored", file)

    def erase(self, file: str) -> None:
        if self.app == TRASH and file in self.trash:
            self.trash.remove(file)
            self._done("erased", file)

    def empty_trash(self) -> None:
        if self.app == TRASH:
            self.trash.clear()
            self._done("empty", TRASH)

    def open_file(self, file: str) -> None:
        if self.app == FILES and file in self.here():
            self.opened = file
            self._done("opened", file)

    def _done(self, word: str, file: str) -> None:
        self.status, self.selected, self.focus, self.find = (word, file), None, None, ""
        self.scroll = 0

    # -- pop-ups --------------------------------------------------------------------------------------------------
    def maybe_popup(self, rng: random.Random, probability: float) -> None:
        """Shows a pop-up with this probability. Always draws four numbers, so later draws depend on the step only."""
        luck, words, x, y = rng.random(), rng.random(), rng.random(), rng.random()
        if luck < probability and self.popup is None:
            i = int(words * len(POPUP_TITLES) * len(POPUP_TEXTS))
            self.popup = Popup(POPUP_TITLES[i % len(POPUP_TITLES)], POPUP_TEXTS[i // len(POPUP_TITLES)], x, y)


def _initial(control: Control, rng: random.Random) -> Value:
    if control.kind == TOGGLE:
        return rng.random() < 0.5
    if control.kind in (CHOICE, SLIDER, LIST):
        return rng.choice(control.options)
    assert control.kind == FIELD, control.kind
    return ""
