"""Colour themes of the applications and of the window manager, as files of HOME, chosen by an episode's seed.

Windows, and the items of the desktop's menu, lie on a grid of :data:`GRID` pixels, so that a policy whose image tokens
represent squares of that size sees each label in few of them, wherever the window is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from osworld_gym.guest.home import FILES

RC = ".config/openbox/rc.xml"
MENU = ".config/openbox/menu.xml"
KEYFILE = ".config/glib-2.0/settings/keyfile"
LIBFM = ".config/libfm/libfm.conf"
PCMANFM = ".config/pcmanfm/default/pcmanfm.conf"
ROOT_MENU = "root-menu"
MENU_KEY = "A-space"  #: openbox's name of the key that opens the desktop's menu
GRID = 20  #: pixels between the positions of windows; height of an item of the desktop's menu
WINDOW = (560, 280)  #: largest (width, height) in pixels of a window without its frame


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours ``#rrggbb`` of one theme: surfaces, text fields, and what is selected; each with its text colour."""

    surface: str
    text: str
    field: str
    field_text: str
    selected: str
    selected_text: str


PALETTES = (
    Palette("#f0f0f0", "#101010", "#ffffff", "#000000", "#2060c0", "#ffffff"),
    Palette("#303438", "#f0f0f0", "#202428", "#ffffff", "#d08020", "#000000"),
    Palette("#e8dcc0", "#302010", "#fff8e8", "#201000", "#804020", "#ffffff"),
    Palette("#c8d8e8", "#001830", "#f0f8ff", "#001020", "#104080", "#ffffff"),
    Palette("#d0e4d0", "#082008", "#f4fff4", "#041004", "#206030", "#ffffff"),
    Palette("#402840", "#ffe8ff", "#281828", "#fff0ff", "#c060c0", "#000000"),
)
#: themes of openbox's package whose menus have items of GRID pixels → width of a frame's left and top side, pixels
OPENBOX_THEMES = {
    "Clearlooks-Olive": (1, 20),
    "Clearlooks-3.4": (1, 18),
    "Bear2": (1, 22),
    "Natura": (1, 20),
    "Syscrash": (1, 20),
    "Orang": (1, 16),
}
FONT = "DejaVu Sans"

_CSS = """window, dialog, menubar, toolbar, statusbar, notebook, scrolledwindow, menu, .menu, .context-menu {{
  background-color: {0.surface}; background-image: none; color: {0.text}; }}
menuitem, menuitem label, menuitem accelerator, toolbar label, statusbar label, dialog label {{ color: {0.text}; }}
menuitem:hover {{ background-color: {0.selected}; }}
menuitem:hover > label, menuitem:hover > box > label {{ color: {0.selected_text}; }}
menuitem:disabled label {{ color: alpha({0.text}, 0.5); }}
textview, textview text, entry {{ background-color: {0.field}; color: {0.field_text}; }}
"""
_GTKRC = """style "seeded" {{
  bg[NORMAL] = "{0.surface}" bg[ACTIVE] = "{0.surface}" bg[PRELIGHT] = "{0.selected}" bg[SELECTED] = "{0.selected}"
  fg[NORMAL] = "{0.text}" fg[ACTIVE] = "{0.text}" fg[PRELIGHT] = "{0.selected_text}" fg[SELECTED] = "{0.selected_text}"
  base[NORMAL] = "{0.field}" base[ACTIVE] = "{0.selected}" base[SELECTED] = "{0.selected}"
  text[NORMAL] = "{0.field_text}" text[ACTIVE] = "{0.selected_text}" text[SELECTED] = "{0.selected_text}"
}}
class "GtkWidget" style "seeded"
"""
_XRESOURCES = "xterm*background: {0.field}\nxterm*foreground: {0.field_text}\n"


def toolkit_files(palette: Palette) -> dict[str, str]:
    """Path in HOME → text, for GTK 3, GTK 2 and xterm."""
    return {
        ".config/gtk-3.0/gtk.css": _CSS.format(palette),
        # the editor's highlight of the current line has the colour of a light theme
        KEYFILE: _replace(FILES[KEYFILE], {"highlight-current-line=true": "highlight-current-line=false"}),
        ".gtkrc-2.0": FILES[".gtkrc-2.0"] + "gtk-enable-tooltips = 0\n" + _GTKRC.format(palette),
        ".Xresources": FILES[".Xresources"] + _XRESOURCES.format(palette),
        # the file manager's icons at a distance that is a multiple of GRID, the first one in the middle of a square
        LIBFM: _replace(FILES[LIBFM], {"big_icon_size=48": "big_icon_size=54"}),
        PCMANFM: _replace(FILES[PCMANFM], {"splitter_pos=150": "splitter_pos=130"}),
    }


def window_manager_file(theme: str, window: tuple[int, int, int, int]) -> str:
    """Openbox's configuration: a theme, windows at (x, y, width, height) in pixels, and a menu of the desktop.

    Raises:
        ValueError: the bare HOME's own configuration has changed, so that it cannot be extended.
    """
    x, y, width, height = window
    size = f"<size><width>{width}</width><height>{height}</height></size>"
    fonts = "".join(f'<font place="{p}"><name>{FONT}</name><size>10</size></font>' for p in ("MenuItem", "MenuHeader"))
    open_menu = f'<action name="ShowMenu"><menu>{ROOT_MENU}</menu></action>'
    return _replace(
        FILES[RC],
        {
            "<name>Clearlooks</name>": f"<name>{theme}</name>{fonts}",
            "<maximized>yes</maximized>": (
                f'<maximized>no</maximized><position force="yes"><x>{x}</x><y>{y}</y></position>{size}'
            ),
            "</keyboard>": f'<keybind key="{MENU_KEY}">{open_menu}</keybind></keyboard>',
            "</mouse>": (
                f'<context name="Root"><mousebind button="Right" action="Press">{open_menu}</mousebind></context>'
                "</mouse>"
            ),
            "</openbox_config>": (
                "<menu><file>menu.xml</file><middle>no</middle><submenuShowDelay>0</submenuShowDelay></menu>"
                "</openbox_config>"
            ),
        },
    )


def menu_file(groups: list[tuple[str, list[tuple[str, str]]]]) -> str:
    """The desktop's menu: (label, [(label, command)]) of each submenu."""
    parts = []
    for number, (group, items) in enumerate(groups):
        inner = "".join(
            f'<item label={quoteattr(label)}><action name="Execute"><command>{command}</command></action></item>'
            for label, command in items
        )
        parts.append(f'<menu id="group-{number}" label={quoteattr(group)}>{inner}</menu>')
    menu = f'<menu id="{ROOT_MENU}" label="Desktop">{"".join(parts)}</menu>'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<openbox_menu xmlns="http://openbox.org/3.4/menu">{menu}</openbox_menu>\n'
    )


def themed(rng: random.Random, screen: tuple[int, int]) -> dict[str, str]:
    """Path in HOME → text: a random palette and theme, and a random position of windows on ``screen`` (pixels)."""
    palette, theme = rng.choice(PALETTES), rng.choice(list(OPENBOX_THEMES))
    left, top = OPENBOX_THEMES[theme]
    width, height = min(screen[0] - 4 * GRID, WINDOW[0]), min(screen[1] - 4 * GRID, WINDOW[1])
    # the pointer starts in the screen's centre: over the content, since over a toolbar it would open a tooltip
    above, below = max(2 * GRID, screen[1] // 2 - 230), min(screen[1] - height - GRID, screen[1] // 2 - 80)
    x = rng.choice(range(GRID, screen[0] - width, GRID))
    y = rng.choice(range(-(-above // GRID) * GRID, below + 1, GRID))
    return {**toolkit_files(palette), RC: window_manager_file(theme, (x - left, y - top, width, height))}


def _replace(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        if old not in text:
            raise ValueError(f"the settings of a bare HOME: expected {old!r} in them")
        text = text.replace(old, new, 1)
    return text
