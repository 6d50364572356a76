"""Carries out a move in the expert's style: launcher, shortcuts, search by typing, with Agent S2's texts and calls.

Deliberately unlike the policy: one step may be several inputs, almost none of them a click, and the text is prose.
``intent`` is the step as a line of a plan: it names labels, never keys or coordinates, so that a policy that acts
differently can follow it.
"""

from __future__ import annotations

import random

from osworld_gym.desktops.sim.desktop import SimDesktop
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.oracles.sim.expert_prose import analysis, next_action
from osworld_gym.tasks.oracles.sim.moves import Move
from osworld_gym.tasks.oracles.sim.native_habits import spot
from osworld_gym.types import Action

Inputs = tuple[tuple[Action, ...], str, str]  #: the actions to perform, the tool-level call, its pyautogui code


def expert_step(move: Move, desktop: SimDesktop, first: bool, rng: random.Random) -> ExpertStep:
    """The move as one step of the expert.

    Args:
        move: the oracle's decision.
        desktop: the desktop in its present state.
        first: whether there is no previous action to verify.
        rng: chooses the words of the text.
    """
    actions, call, code = _inputs(move, desktop)
    return ExpertStep(
        subtask=move.subtask,
        plan=_executor_plan(move, desktop, call, first, rng),
        reflection=None if first else "The trajectory is going as planned; the last action had the expected effect.",
        call=call,
        pyautogui=code,
        intent=plan_line(move),
        actions=actions,
    )


def plan_line(move: Move) -> str:
    """The step as a line of a plan."""
    if move.kind == "press":
        return f"Turn {move.turn} {move.word}" if move.turn else f"Choose {move.word}"
    if move.kind == "fill":
        return f"Type {move.word} in {move.target[1]}"
    if move.kind == "drag":
        return f"Drag {move.word} to {move.other[1]}"
    verbs = {"popup": "Close", "close": "Close", "app": "Open", "tab": "Go to tab", "typing": "Type",
             "file_menu": "Open menu of", "double": "Open file", "find": "Find"}  # fmt: skip
    return f"{verbs[move.kind]} {move.word}"


def _inputs(move: Move, desktop: SimDesktop) -> Inputs:
    kind, word = move.kind, move.word
    if kind in ("popup", "close"):
        return _keys("escape")
    if kind == "app":
        return (
            (Action("hotkey", key="super"), Action("type", content=f"{word}\n")),
            f"agent.open({word!r})",
            f"pyautogui.hotkey('win'); pyautogui.write({word!r}); pyautogui.press('enter')",
        )
    if kind == "tab":
        pages = desktop.layout.tabs[str(desktop.inner.app)]
        return _keys(f"ctrl {pages.index(word) + 1}")
    if kind == "press" and move.target[0] == "answer":
        return _keys("enter" if word in ("yes", "ok") else "escape")
    if kind in ("press", "double"):
        return _typing(word, enter=True)
    if kind == "find":
        return _typing(word, enter=False)
    if kind == "file_menu":
        actions, _, code = _typing(word, enter=False)
        menu, _, keys = _keys("shift f10")
        return actions + menu, f'agent.click("the file {word} in the file list", 1, "right")', f"{code}; {keys}"
    if kind in ("fill", "typing"):
        return _overwrite(move)
    assert kind == "drag", kind
    return _drag(move, desktop)


def _keys(combo: str) -> Inputs:
    names = combo.split()
    shown = ", ".join(repr(name) for name in names)
    return (Action("hotkey", key=combo),), f"agent.hotkey([{shown}])", f"pyautogui.hotkey({shown})"


def _typing(text: str, *, enter: bool) -> Inputs:
    code = f"pyautogui.write({text!r})" + ("; pyautogui.press('enter')" if enter else "")
    action = Action("type", content=text + ("\n" if enter else ""))
    return (action,), f"agent.type(text={text!r}, overwrite=False, enter={enter})", code


def _overwrite(move: Move) -> Inputs:
    """Overwrites a field's text. A page's field is focused by typing its label first; a dialog's has the focus."""
    label = move.target[1] if move.kind == "fill" else "new name"
    find = (Action("type", content=f"{label}\n"),) if move.kind == "fill" else ()
    end = "\n" if move.kind == "fill" else ""
    actions = (*find, Action("hotkey", key="ctrl a"), Action("type", content=move.word + end))
    call = f'agent.type("the field {label}", text={move.word!r}, overwrite=True, enter={bool(end)})'
    code = "".join(f"pyautogui.write({label!r}); pyautogui.press('enter'); " for _ in find)
    code += f"pyautogui.hotkey('ctrl', 'a'); pyautogui.write({move.word!r})"
    return actions, call, code + ("; pyautogui.press('enter')" if end else "")


def _drag(move: Move, desktop: SimDesktop) -> Inputs:
    start, end = spot(desktop, move.target), spot(desktop, move.other)
    call = f'agent.drag_and_drop("the file {move.word}", "{move.other[1]}")'
    code = f"pyautogui.moveTo({start[0]}, {start[1]}); pyautogui.dragTo({end[0]}, {end[1]}, duration=1.0)"
    return (Action("drag", start=start, end=end),), call, code


def _executor_plan(move: Move, desktop: SimDesktop, call: str, first: bool, rng: random.Random) -> str:
    before = (
        "No previous action has been taken yet, so nothing to verify."
        if first
        else "The previous action was successful: the desktop now shows what was expected."
    )
    return (
        f"(Previous action verification)\n{before}\n\n"
        f"(Screenshot Analysis)\n{analysis(desktop, rng)}\n\n"
        f"(Next Action)\n{next_action(move, rng)}\n\n"
        f"(Grounded Action)\n```python\n{call}\n```"
    )
