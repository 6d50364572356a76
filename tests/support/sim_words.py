"""The words of the simulated desktop: what can appear on its screen, and the verbs of its native oracle."""

from __future__ import annotations

from osworld_gym.desktops.sim.applications import CATALOGUE, FURNITURE, WORDS

#: verbs of the native oracle's thoughts; each is followed by one label or typed word
THOUGHT_VERBS = ("open", "tab", "click", "type", "scroll", "menu", "double", "drag", "close")


def vocabulary() -> list[str]:
    """All words that can appear on the screen, sorted: labels, options, files (and copies), words to type."""
    words = {*FURNITURE, *WORDS}
    for app in CATALOGUE.apps:
        words.add(app.name)
        for tab in app.tabs:
            words.add(tab.name)
            words.update([tab.commit] if tab.commit else [])
            for control in tab.controls:
                words.update((control.name, *control.options, *control.marks))
    for folder, files in CATALOGUE.folders:
        words.update((folder, *files, *(f"{file}2" for file in files)))
    return sorted(words)
