"""Words and letters of the simulated desktop: short, unique where necessary, distinguishable on the screen."""

from __future__ import annotations

import numpy as np
from sim_words import vocabulary

from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.desktops.sim.applications import CATALOGUE, KNOWN_FILES
from osworld_gym.desktops.sim.draw import Look, tile_pixels
from osworld_gym.desktops.sim.font import text_mask
from osworld_gym.desktops.sim.theme import THEMES
from osworld_gym.types import Action


def test_one_letter_pixel_by_pixel():
    # "t": a bar over a stem, three pixels wide, centred in the tile: columns 6..8, rows 1..5
    expected = np.zeros((16, 16), dtype=bool)
    expected[1, 6:9] = True
    expected[2:6, 7] = True
    np.testing.assert_array_equal(text_mask("t"), expected)


def test_long_labels_take_two_lines():
    mask = text_mask("speaker")
    assert mask[:6].any()
    assert mask[7:12].any()
    assert not mask[12:].any()
    np.testing.assert_array_equal(text_mask("speaker42"), text_mask("speaker4x"))  # eight letters are shown


def test_every_word_fits_a_tile_and_no_two_look_alike():
    words = vocabulary()
    assert max(len(word) for word in words) <= 8
    assert all(word.isascii() and word == word.lower() and " " not in word for word in words)
    assert len({text_mask(word).tobytes() for word in words}) == len(words)


def test_text_contrasts_in_every_theme():
    styles = ("dock", "title", "tab", "body", "button", "panel", "popup")
    for i in range(len(THEMES)):
        for style in styles:
            tile = tile_pixels(Look(style, "mute"), i, 1).astype(int)
            mask = text_mask("mute", 1)
            text, ground = tile[mask].mean(axis=0), tile[8, 8]
            assert np.abs(text - ground).sum() > 150, (THEMES[i].name, style)


def test_names_of_settings_files_tabs_and_applications_are_unique():
    names = [c.name for c in CATALOGUE.controls()] + [m for c in CATALOGUE.controls() for m in c.marks]
    names += [app.name for app in CATALOGUE.apps] + [tab.name for app in CATALOGUE.apps for tab in app.tabs]
    names += [file for _, files in CATALOGUE.folders for file in files] + [folder for folder, _ in CATALOGUE.folders]
    assert len(set(names)) == len(names)
    assert set(KNOWN_FILES) < set(names)


def test_everything_on_the_screen_is_in_the_vocabulary():
    words = set(vocabulary())
    desktop = SimDesktop(popup_probability=0.2)
    for seed in range(20):
        desktop.reset(seed)
        for app in desktop.layout.tabs:
            desktop.perform([Action("hotkey", key="escape")])
            desktop.perform([Action("hotkey", key="super"), Action("type", content=f"{app}\n")])
            for page in "123":
                desktop.perform([Action("hotkey", key=f"ctrl {page}")])
                assert {e.label for e in desktop.elements()} <= words
