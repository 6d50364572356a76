"""Joins single keyboard actions that were read from source: keys around a key, pasted and typed text, line ends.

Text that is pressed key by key, as the runners of Claude and EvoCUA type it, is joined, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from osworld_gym.types import Action
from osworld_gym.uitars.keys import split_keys

PASTE = ("ctrl v", "ctrl shift v", "shift insert")  #: hotkeys that enter the clipboard's content


@dataclass(frozen=True, slots=True)
class Input:
    """One action that was read.

    Args:
        action: ``keydown`` and ``keyup`` have one key each.
        clipboard: what a paste would enter; None if it is not known.
        character: what it types if it is the press of one printable character, with no key held; else empty.
    """

    action: Action
    clipboard: str | None = None
    character: str = ""

    def keys(self, kind: str) -> list[str] | None:
        """Its keys if it is of the kind, otherwise None."""
        return (self.action.key or "").split(" ") if self.action.kind == kind else None


def join_input(inputs: Sequence[Input]) -> tuple[list[Action], int]:
    """The actions, which are the same input as the single ones, and how many pastes are typed in them."""
    actions: list[Action] = []
    pasted = 0
    for each in _chords(_words(inputs)):
        action = each.action
        if action.kind == "hotkey" and action.key in PASTE and each.clipboard is not None:
            action, pasted = Action("type", content=each.clipboard), pasted + 1
        elif action.kind == "hotkey" and action.key == "shift ,":  # how OSWorld types it
            action = Action("type", content="<")
        last = actions[-1] if actions else None
        if last is not None and last.kind == "type" and (text := _text(action)) is not None:
            actions[-1] = replace(last, content=(last.content or "") + text)
        elif last is not None and last.kind == action.kind and (keys := _keys(last, action)) is not None:
            actions[-1] = replace(last, key=keys)
        else:
            actions.append(action)
    return actions, pasted


def _words(inputs: Sequence[Input]) -> list[Input]:
    """Two and more characters that are pressed one after the other are typed text; a single one stays a key."""
    joined: list[Input] = []
    for typed, group in groupby(inputs, key=lambda each: bool(each.character)):
        run = list(group)
        text = "".join(each.character for each in run)
        joined += [Input(Action("type", content=text))] if typed and len(run) > 1 else run
    return joined


def _keys(one: Action, other: Action) -> str | None:
    """The keys of two ``keydown`` or two ``keyup`` as those of one; None if they cannot be."""
    return _joined([one.key or "", other.key or ""]) if one.kind in ("keydown", "keyup") else None


def _joined(keys: Sequence[str]) -> str | None:
    """Keys as the text of one action; None if they would be read as others, such as left and shift."""
    text = " ".join(keys)
    return text if split_keys(text) == tuple(text.split(" ")) else None


def _text(action: Action) -> str | None:
    """The text that an action appends to what was typed before it; None if it is something else."""
    if action.kind == "type":
        return action.content or ""
    return "\n" if action.kind == "hotkey" and action.key == "enter" else None


def _chords(inputs: Sequence[Input]) -> list[Input]:
    """Keys pressed, at most one hotkey, and the same keys released in reverse are one hotkey."""
    merged: list[Input] = []
    for each in inputs:
        released = each.keys("keyup")
        inner = merged[-1] if merged and merged[-1].action.kind == "hotkey" else None
        before = merged[-2:-1] if inner else merged[-1:]
        pressed = before[0].keys("keydown") if before else None
        keys = [*(pressed or []), *((inner.keys("hotkey") if inner else None) or [])]
        joined = _joined(keys) if released == pressed and len(set(keys)) == len(keys) else None
        if released is None or joined is None:
            merged.append(each)
            continue
        del merged[-2 if inner else -1 :]
        merged.append(Input(Action("hotkey", key=joined), inner.clipboard if inner else None))
    return merged
