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
_WHICH = ("current", "present", "latest", "newest", "actual", "whole", "entire", "given")
_VIEW = ("screen", "view", "picture", "image", "display", "screenshot", "frame", "desktop")
_SURELY = ("clearly", "plainly", "surely", "still", "only", "mostly", "also", "really")
_SHOWS = ("shows", "has", "holds", "displays", "presents", "contains", "reveals", "gives")
_SO_FAR = ("already", "currently", "presently", "visibly", "evidently", "apparently", "obviously", "meanwhile")
_LEAD = ("Next", "Now", "So", "Then", "Hence", "Thus", "Therefore", "Here")
_MODAL = ("will", "should", "can", "must", "shall", "may", "might", "could")
_HOW = ("gladly", "safely", "gently", "calmly", "promptly", "neatly", "kindly", "firmly")
_USE = ("use", "take", "try", "call", "pick", "apply", "choose", "employ")
_MANNER = ("first", "directly", "quickly", "again", "carefully", "simply", "today", "indeed")
_AIM = ("continue", "proceed", "advance", "progress", "succeed", "help", "finish", "work")
#: the positions that vary, in order of the text
VARIED = (_WHICH, _VIEW, _SURELY, _SHOWS, _SO_FAR, _LEAD, _MODAL, _HOW, _USE, _MANNER, _AIM)


def analysis(desktop: SimDesktop, rng: random.Random) -> str:
    """One sentence about what the screen shows."""
    which, view, surely, shows, so_far = (rng.choice(words) for words in VARIED[:5])
    return f"{FIRST_WORD} {which} {view} {surely} {shows} {_shown(desktop)} {so_far}."


def next_action(move: Move, rng: random.Random) -> str:
    """One sentence about the next step."""
    lead, modal, how, use, manner, aim = (rng.choice(words) for words in VARIED[5:])
    return f"{lead} I {modal} {how} {use} {_means(move)} {manner} to {aim}."


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
