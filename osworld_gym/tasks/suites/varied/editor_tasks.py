"""Tasks in the text editor: settings in its menus, texts, and both. Positions are Mousepad's, with a font of 10 pt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from osworld_gym.tasks.suites.authoring import DOCUMENTS, Data, every, in_editor, keys_step, mouse, prints, type_step
from osworld_gym.tasks.suites.varied.instances import TEXTS, Instance, arrange, click_item, contains

NAME = "notes.txt"
ITEM = 25  #: height of an item of a menu, pixels; a separator has one
#: menu → x of its title in the window, pixels; its first letter with Alt opens it
MENUS = {"File": 20, "Edit": 58, "Search": 109, "View": 163, "Document": 228}
TITLES = 12  #: y of the titles in the window
PREFERENCES = "org.xfce.mousepad.preferences"


@dataclass(frozen=True)
class Setting:
    """A setting of the editor: its menu, its item (index, separators above, mnemonic or ""), its key in GSettings."""

    label: str
    menu: str
    index: int
    separators: int
    mnemonic: str
    schema: str
    key: str
    known: bool

    @property
    def item(self) -> Data:
        """The position of the item."""
        return menu_item(self.index, self.separators)


TOGGLES = (
    Setting("Line Numbers", "View", 2, 0, "", f"{PREFERENCES}.view", "show-line-numbers", True),
    Setting("Toolbar", "View", 4, 1, "t", f"{PREFERENCES}.window", "toolbar-visible", True),
    Setting("Statusbar", "View", 5, 1, "a", f"{PREFERENCES}.window", "statusbar-visible", True),
    Setting("Word Wrap", "Document", 0, 0, "w", f"{PREFERENCES}.view", "word-wrap", False),
    Setting("Auto Indent", "Document", 1, 0, "a", f"{PREFERENCES}.view", "auto-indent", False),
    Setting("Incremental Search", "Search", 4, 1, "i", "org.xfce.mousepad.state.search", "incremental", False),
    Setting("Highlight All", "Search", 5, 1, "a", "org.xfce.mousepad.state.search", "highlight-all", False),
)
SCHEME = Setting("Color Scheme", "View", 1, 0, "c", f"{PREFERENCES}.view", "color-scheme", True)
TAB_SIZE = Setting("Tab Size", "Document", 2, 0, "", f"{PREFERENCES}.view", "tab-width", False)
#: item of a submenu → (its index, its value)
SCHEMES = {"Classic": (1, "'classic'"), "Cobalt": (2, "'cobalt'"), "Kate": (3, "'kate'"), "Oblivion": (4, "'oblivion'")}
TAB_SIZES = {"2": (0, "uint32 2"), "3": (1, "uint32 3"), "4": (2, "uint32 4")}


def menu_item(index: int, separators: int) -> Data:
    """The position of an item in the menu that was opened last."""
    return {"popup": [60, 1 + ITEM * index + ITEM // 2 + separators]}


def editor_tasks() -> Iterator[Instance]:
    """Settings on and off, values of submenus, texts, a setting and a text."""
    for setting in TOGGLES:
        for value in (True, False):
            yield _toggle(setting, value)
    for setting, options in ((SCHEME, SCHEMES), (TAB_SIZE, TAB_SIZES)):
        for option in options:
            yield _choose(setting, option, *options[option])
    for text in TEXTS:
        yield _text(text)
    for text, setting in zip(TEXTS, TOGGLES[1:5], strict=False):
        yield _both(text, setting)


def _toggle(setting: Setting, value: bool) -> Instance:
    return Instance(
        template="toggle",
        topic=f"toggle {setting.label}",
        known=setting.known,
        domain="editor",
        instruction=f"Turn {'on' if value else 'off'} {setting.label} in the editor.",
        config=(arrange(files={NAME: "\n".join(TEXTS)}), _set(setting, not value), in_editor(NAME)),
        evaluator=_are({setting: _as_text(value)}),
        expert=(*_open_by_keys(setting), *_by_keys(setting.mnemonic, setting.index, f"Choose {setting.label}")),
        native=(_open(setting.menu), click_item(setting.item, setting.label, f"click {setting.label}")),
    )


def _choose(setting: Setting, option: str, index: int, value: str) -> Instance:
    return Instance(
        template="submenu",
        topic=f"submenu {setting.label}",
        known=setting.known,
        domain="editor",
        instruction=f"Set {setting.label} to {option} in the editor.",
        config=(arrange(files={NAME: "\n".join(TEXTS)}), in_editor(NAME)),
        evaluator=_are({setting: value}),
        expert=(
            *_open_by_keys(setting),
            *_by_keys(setting.mnemonic, setting.index, f"Open {setting.label}"),
            *_by_keys("", index, f"Choose {option}"),
        ),
        native=(
            _open(setting.menu),
            click_item(setting.item, setting.label, f"open {setting.label}"),
            click_item(menu_item(index, 0), option, f"click {option}", menus=2),
        ),
    )


def _text(text: str) -> Instance:
    return Instance(
        template="write",
        topic="write",
        known=True,
        domain="editor",
        instruction=f"Write {text} and save the file.",
        config=(arrange(files={NAME: ""}), in_editor(NAME)),
        evaluator=contains(f"{DOCUMENTS}/{NAME}", text),
        expert=(type_step(text, f"Type {text}"), keys_step("ctrl s", "Choose Save")),
        native=(type_step(text, f"type {text}"), *save_by_mouse()),
    )


def _both(text: str, setting: Setting) -> Instance:
    """Hides or shows something and writes a text."""
    written, switched = _text(text), _toggle(setting, False)
    return Instance(
        template="write-toggle",
        topic=f"write-toggle {setting.label}",
        known=setting.known,
        domain="editor",
        instruction=f"Turn off {setting.label}, then write {text} and save the file.",
        config=(arrange(files={NAME: ""}), _set(setting, True), in_editor(NAME)),
        evaluator=every(written.evaluator, switched.evaluator),
        expert=(*switched.expert, *written.expert),
        native=(*switched.native, *written.native),
    )


def _set(setting: Setting, value: bool) -> Data:
    command = ["gsettings", "set", setting.schema, setting.key, _as_text(value)]
    return {"type": "execute", "parameters": {"command": command}}


def _as_text(value: bool) -> str:
    return str(value).lower()


def _are(expected: dict[Setting, str]) -> Data:
    """Evaluator: settings have these values, as GSettings prints them."""
    commands = [f"gsettings get {setting.schema} {setting.key}" for setting in expected]
    return prints("; ".join(commands), "".join(f"{value}\n" for value in expected.values()))


def _open(menu: str) -> Data:
    return mouse("click", {"window": "Mousepad", "at": [MENUS[menu], TITLES]}, f"the menu {menu}", f"open {menu}")


def _open_by_keys(setting: Setting) -> tuple[Data]:
    return (keys_step(f"alt {setting.menu[0].lower()}", f"Open {setting.menu}"),)


def _by_keys(mnemonic: str, index: int, intent: str) -> list[Data]:
    """Chooses an item by its mnemonic, or by arrow keys from the first one, which is selected."""
    if mnemonic:
        return [keys_step(mnemonic, intent)]
    return [keys_step("enter", intent) | {"keys": [*["down"] * index, "enter"]}]


def save_by_mouse() -> tuple[Data, Data]:
    """Native steps that save the file."""
    # the menu is as high as the screen, so it opens under the pointer, and with it the submenu that is there
    return _open("File"), click_item(menu_item(5, 2) | {"level": 0}, "Save", "click Save")
