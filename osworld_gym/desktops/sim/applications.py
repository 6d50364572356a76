"""The inventory of the simulated desktop: applications, their tabs and controls, and the files."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

TOGGLE, CHOICE, SLIDER, LIST, FIELD = "toggle", "choice", "slider", "list", "field"
Value = bool | str


@dataclass(frozen=True)
class Control:
    """One setting.

    Args:
        name: its label on the screen and its key in the state, unique across all applications.
        kind: toggle, choice (at most 4 options), slider (4 levels), list (scrolls) or field.
        options: the values of a choice, slider or list.
        marks: buttons for the chosen item of a list: pressing ``star`` sets the setting ``star`` to the item.
        known: whether tasks of the base policy's cloning data use it.
    """

    name: str
    kind: str
    options: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    known: bool = True


@dataclass(frozen=True)
class Tab:
    """A page of a window. With ``commit``, its settings take effect when the button of that name is pressed."""

    name: str
    controls: tuple[Control, ...]
    commit: str | None = None


@dataclass(frozen=True)
class App:
    """A settings application: its name and its tabs, from left to right."""

    name: str
    tabs: tuple[Tab, ...]


class ControlPlace(NamedTuple):
    """Where a control is: the application, the tab, and the control itself."""

    app: str
    tab: str
    control: Control


@dataclass(frozen=True)
class Catalogue:
    """The inventory of a desktop: settings applications, and the files by folder."""

    apps: tuple[App, ...]
    folders: tuple[tuple[str, tuple[str, ...]], ...]

    @cached_property
    def places(self) -> dict[str, ControlPlace]:
        """Control name → its place."""
        return {
            c.name: ControlPlace(app.name, tab.name, c) for app in self.apps for tab in app.tabs for c in tab.controls
        }

    def place(self, name: str) -> ControlPlace:
        """The place of a setting, or of the list with that mark. Raises KeyError if unknown."""
        if name in self.places:
            return self.places[name]
        for place in self.places.values():
            if name in place.control.marks:
                return place
        raise KeyError(name)

    def app(self, name: str) -> App | None:
        return next((app for app in self.apps if app.name == name), None)

    def tab(self, app: str, tab: str) -> Tab:
        """The page of that name. Raises KeyError if there is none."""
        for page in self.pages(app):
            if page.name == tab:
                return page
        raise KeyError((app, tab))

    def pages(self, app: str) -> tuple[Tab, ...]:
        """The tabs of a settings application; none for ``files`` and ``trash``."""
        application = self.app(app)
        return application.tabs if application else ()

    def controls(self) -> list[Control]:
        return [place.control for place in self.places.values()]

    def folder_of(self, file: str) -> str:
        """The initial folder of a file. Raises KeyError if there is none."""
        for folder, names in self.folders:
            if file in names:
                return folder
        raise KeyError(file)


def _toggle(name: str, known: bool = True) -> Control:
    return Control(name, TOGGLE, known=known)


# Most unknown settings are on pages without a known one: without a plan nothing leads there, with a plan all is said.
_SOUND = App("sound", (
    Tab("volume", (_toggle("mute"), _toggle("boost", False), Control("level", SLIDER, ("25", "50", "75", "100")))),
    Tab("output", (Control("device", CHOICE, ("speaker", "headset", "hdmi")), _toggle("chime"))),
    Tab("alerts", (_toggle("mono", False), _toggle("beep", False), _toggle("bell", False))),
))  # fmt: skip
_DISPLAY = App("display", (
    Tab("theme", (Control("colors", CHOICE, ("light", "dark", "auto")), _toggle("warm"))),
    Tab("night", (_toggle("contrast", False), _toggle("dim", False),
                  Control("glow", SLIDER, ("20", "40", "60", "80"), known=False))),
    Tab("screen", (Control("scale", CHOICE, ("small", "medium", "large"), known=False),
                   Control("motion", CHOICE, ("slow", "normal", "fast"))), commit="apply"),
))  # fmt: skip
_NETWORK = App("network", (
    Tab("wifi", (_toggle("wireless"), Control("access", LIST, (
        "home", "cafe", "office", "guest", "library", "hotel", "airport", "station")))),
    Tab("proxy", (Control("server", FIELD), Control("host", FIELD, known=False), _toggle("secure", False)),
        commit="save"),
    Tab("share", (_toggle("hotspot", False), _toggle("sync", False), _toggle("visible", False))),
))  # fmt: skip
_MAIL = App("mail", (
    Tab("inbox", (Control("letter", LIST, ("anna", "bob", "carol", "dave", "erin", "frank", "gina", "hugo"),
                          marks=("star", "archive")),)),
    Tab("write", (Control("to", FIELD), Control("subject", FIELD)), commit="send"),
    Tab("rules", (_toggle("spam"), _toggle("digest", False),
                  Control("reply", CHOICE, ("never", "daily", "always"), known=False))),
))  # fmt: skip
_CLOCK = App("clock", (
    Tab("alarm", (_toggle("snooze"), Control("ring", CHOICE, ("soft", "loud", "silent")))),
    Tab("zone", (_toggle("weekend", False), Control("city", LIST, (
        "paris", "tokyo", "cairo", "lima", "oslo", "delhi", "sydney", "rome"), known=False))),
    Tab("timer", (Control("minutes", SLIDER, ("5", "10", "20", "30")), _toggle("repeat", False)), commit="start"),
))  # fmt: skip

CATALOGUE = Catalogue(
    apps=(_SOUND, _DISPLAY, _NETWORK, _MAIL, _CLOCK),
    folders=(
        ("docs", ("report", "budget", "notes", "invoice", "resume", "draft", "agenda", "essay")),
        ("pics", ("beach", "sunset", "logo", "map", "poster", "garden", "kitten", "bridge")),
        ("music", ("jazz", "opera", "rock", "piano", "remix", "ballad", "waltz", "tango")),
    ),
)
#: the files that tasks of the cloning data use
KNOWN_FILES = (
    "report",
    "budget",
    "notes",
    "invoice",
    "beach",
    "sunset",
    "logo",
    "map",
    "jazz",
    "opera",
    "rock",
    "piano",
)
#: words to type into fields and as new names
WORDS = ("alpha", "delta", "gamma", "omega", "final", "backup", "summer", "winter")

FILES, TRASH, START = "files", "trash", "start"
FILE_MENU = ("open", "rename", "copy", "delete")
TRASH_MENU = ("restore", "erase")
POPUP_TITLES = ("update", "battery", "printer", "news")
POPUP_TEXTS = ("ready", "low", "waiting", "now")
#: every other word that the desktop shows
FURNITURE = (
    FILES, TRASH, START, *FILE_MENU, *TRASH_MENU, *POPUP_TITLES, *POPUP_TEXTS, "close", "empty", "yes", "no", "ok",
    "cancel", "sure", "run", "opened", "renamed", "copied", "deleted", "moved", "restored", "erased", "on", "off",
)  # fmt: skip


def _permuted(names: list[Any], rng: random.Random) -> list[Any]:
    out = list(names)
    rng.shuffle(out)
    return out


def shuffled(catalogue: Catalogue, rng: random.Random) -> Catalogue:
    """Permutes the names of controls (within their kind) and files; in half of the cases those of apps, of tabs, too.

    Only the screen or a plan then shows where a setting is, also where applications and tabs look as usual. Settings
    keep their names and values, so every task keeps its verifier. A list with marks and the commit buttons stay with
    their tab.
    """
    apps = [app.name for app in catalogue.apps]
    tabs = [tab.name for app in catalogue.apps for tab in app.tabs]
    apps = _permuted(apps, rng) if rng.random() < 0.5 else apps
    tabs = _permuted(tabs, rng) if rng.random() < 0.5 else tabs[::-1]  # dealt from the end
    decks = {
        kind: _permuted([c for c in catalogue.controls() if c.kind == kind], rng)
        for kind in (TOGGLE, CHOICE, SLIDER, LIST, FIELD)
    }
    dealt = []
    for name, app in zip(apps, catalogue.apps, strict=True):
        pages = []
        for tab in app.tabs:
            pages.append(replace(tab, name=tabs.pop(), controls=tuple(decks[c.kind].pop() for c in tab.controls)))
        dealt.append(App(name, tuple(pages)))
    files = _permuted([name for _, names in catalogue.folders for name in names], rng)
    folders = []
    for folder, names in catalogue.folders:
        folders.append((folder, tuple(files.pop() for _ in names)))
    return Catalogue(tuple(dealt), tuple(folders))
