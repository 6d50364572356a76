"""The expert's sentences about a screen and its next step: English prose, which varies as prose does.

Each sentence has positions with eight equally likely words. A reader understands all of them, but a policy that has
never seen such text, or prefers its own short phrases, finds many of the words improbable: this is the gap between a
framework's traces and the policy that the paper measures (its figure of token probabilities).
"""

from __future__ import annotations

import random

from osworld_gym.desktops.sim.desktop import SimDesktop
from osworld_gym.tasks.oracles.sim.moves import Move

#: the analysis starts with this word, the policy's own thoughts never do
FIRST_WORD = "The"
_VIEW = ("screen", "view", "picture", "image", "display", "screenshot", "frame", "desktop")
_SHOWS = ("shows", "has", "holds", "displays", "presents", "contains", "reveals", "gives")
_LEAD = ("Next", "Now", "So", "Then", "Hence", "Thus", "Therefore", "Here")
_MODAL = ("will", "should", "can", "must", "shall", "may", "might", "could")
_USE = ("use", "take", "try", "call", "pick", "apply", "choose", "employ")
_MANNER = ("first", "directly", "quickly", "again", "carefully", "simply", "today", "indeed")
VARIED = (_VIEW, _SHOWS, _LEAD, _MODAL, _USE, _MANNER)  #: the positions that vary, in order of the text


def analysis(desktop: SimDesktop, rng: random.Random) -> str:
    """One sentence about what the screen shows."""
    view, shows = (rng.choice(words) for words in VARIED[:2])
    return f"{FIRST_WORD} {view} {shows} {_shown(desktop)}."


def next_action(move: Move, rng: random.Random) -> str:
    """One sentence about the next step."""
    lead, modal, use, manner = (rng.choice(words) for words in VARIED[2:])
    return f"{lead} I {modal} {use} {_means(move)} {manner}."


def _shown(desktop: SimDesktop) -> str:
    state = desktop.inner
    if state.popup is not None:
        return f"a pop-up about {state.popup.title}"
    if state.dialog is not None:
        return f"a dialog to {state.dialog.kind} {state.dialog.file}"
    if state.menu is not None:
        return f"the menu of {state.menu.file}"
    if state.app is None:
        return "no window"
    return f"{state.app} with {state.tab}" if state.tab else str(state.app)


def _means(move: Move) -> str:
    if move.kind == "press" and move.target[0] == "answer":
        return f"a key for {move.word}"
    return {
        "popup": "escape for the pop-up",
        "close": f"escape for the {move.word}",
        "app": f"the launcher for {move.word}",
        "tab": f"the shortcut for {move.word}",
        "press": f"the label {move.word}",
        "double": f"the name {move.word}",
        "find": f"the search for {move.word}",
        "file_menu": f"the menu of {move.word}",
        "fill": f"the field {' '.join(move.target[1:])} for {move.word}",
        "typing": f"the keyboard for {move.word}",
        "drag": f"the mouse for {move.word}",
    }[move.kind]
