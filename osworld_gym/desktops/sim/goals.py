"""Goals of tasks on the simulated desktop, as data, in the order in which an oracle reaches them.

A goal is a dict with ``kind``:

- ``set``: ``values``, setting → value (toggles, choices, sliders, lists, fields; commit buttons are pressed as needed);
- ``mark``: ``mark`` (``star``, ``archive``) on ``item`` of the list;
- ``open``, ``delete``, ``drag``, ``copy``: ``file``; ``rename``: ``file``, ``name``; ``move``: ``file``, ``folder``;
- ``restore``: ``file``; ``empty``: the trash, which contains ``files``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osworld_gym.desktops.sim.applications import TRASH, Catalogue
from osworld_gym.desktops.sim.state import SimState

Goal = Mapping[str, Any]
KINDS = ("set", "mark", "open", "delete", "drag", "copy", "rename", "move", "restore", "empty")


def reached(goal: Goal, state: SimState) -> bool:
    """Whether the state satisfies the goal."""
    kind, file = goal["kind"], goal.get("file", "")
    everywhere = [name for names in state.folders.values() for name in names]
    if kind == "set":
        return all(state.settings[name] == value for name, value in goal["values"].items())
    if kind == "mark":
        return bool(state.settings[goal["mark"]] == goal["item"])
    if kind == "open":
        return bool(state.opened == file)
    if kind in ("delete", "drag"):
        return file in state.trash
    if kind == "copy":
        return f"{file}2" in everywhere
    if kind == "rename":
        return goal["name"] in everywhere and file not in everywhere
    if kind == "move":
        return file in state.folders[goal["folder"]]
    if kind == "restore":
        return file in everywhere
    assert kind == "empty", kind
    return not state.trash


def rules(goal: Goal) -> list[tuple[list[str], str, Any]]:
    """(path, operator, value) rules for ``sim_state`` on the final state, independent of the files' initial folders."""
    kind, file = goal["kind"], goal.get("file", "")
    if kind == "set":
        return [(["settings", name], "eq", value) for name, value in goal["values"].items()]
    if kind == "mark":
        return [(["settings", goal["mark"]], "eq", goal["item"])]
    if kind == "open":
        return [(["opened"], "eq", file)]
    if kind in ("delete", "drag"):
        return [(["files", file], "eq", [TRASH])]
    if kind == "copy":
        return [(["files", f"{file}2"], "ne", [TRASH])]
    if kind == "rename":
        return [(["files", goal["name"]], "ne", [TRASH]), (["files"], "lacks", file)]
    if kind == "move":
        return [(["files", file], "eq", [goal["folder"]])]
    if kind == "restore":
        return [(["files", file], "ne", [TRASH])]
    assert kind == "empty", kind
    return [(["files"], "lacks", name) for name in goal["files"]]


def allowed_changes(goal: Goal, catalogue: Catalogue) -> list[str]:
    """The entries of ``SimState.changed`` that the goal may cause; any other change is a side effect and fails."""
    kind, file = goal["kind"], goal.get("file", "")
    if kind == "set":
        return list(goal["values"])
    if kind == "mark":
        return [goal["mark"], catalogue.place(goal["mark"]).control.name]
    if kind == "open":
        return ["opened"]
    if kind == "empty":
        return [f"file:{name}" for name in goal["files"]]
    if kind == "copy":
        return [f"file:{file}2"]
    return [f"file:{file}", f"file:{goal['name']}"] if kind == "rename" else [f"file:{file}"]
