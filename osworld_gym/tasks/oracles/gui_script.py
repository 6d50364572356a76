"""LocalOracle: plays a task's GUI script with mouse and keyboard, in the format of a framework expert.

A script is data: ``{"type": "local", "steps": [step, ...], "end": condition}``. A step has ``do`` (``click``,
``double``, ``right``, ``drag``, ``keys``, ``type``, ``wait``, ``fail``), ``intent`` (its line of a plan), ``subtask``,
and the arguments of ``do``: ``on`` and ``onto`` (positions), ``what`` (the position's description), ``keys`` (pressed
together; a list: one after the other), ``text``
with ``overwrite``. ``native``, optional, has the steps of the style ``native``. A position is one of

- ``{"icon": name, "folder": path}``: a file's icon in the file manager's window, whose title is the folder's name;
- ``{"window": title, "at": [x, y]}``: pixels from the window's top left corner (negative: from the opposite edge);
- ``{"window": title, "part": [0.5, 0.5]}``: fractions of the window's width and height;
- ``{"popup": [x, y], "level": 0}``: pixels from the corner of an open menu (negative: from the opposite edge), 0 being
  the first one that was opened; without ``level`` the last one;
- ``{"entry": label}``: an item of the desktop's menu, where the menu that has it is open;
- ``{"screen": [0.5, 0.5]}``: fractions of the screen's width and height.

Positions are resolved when their step is played.

The script's optional ``layout`` has the arguments of :class:`Layout`.

Conditions (``conditions.py``) close the loop: the oracle waits for ``when`` before a step, for ``end`` after the last
one, and skips a step whose ``only_if`` is not met. Having to wait adds a step ``wait``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.oracles.conditions import Conditions, popups, windows
from osworld_gym.tasks.setup.themes import MENU
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, Point
from osworld_gym.uitars.pyautogui import to_pyautogui

STYLES = ("expert", "native")
CALL_USER_TIMES = 3  # the official setting gives up at the third call_user()

Step = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """Where the file manager's icons are, and on which grid points on windows lie; all in pixels.

    Args:
        first: centre of the first icon in the file manager's window.
        step: distances to the next column and row of icons.
        margin: width of the window without icons.
        grid: points on windows and menus are moved to the centre of their square of this size; 1: not moved.
    """

    first: tuple[int, int] = (206, 99)
    step: tuple[int, int] = (94, 94)
    margin: int = 165
    grid: int = 1

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Layout:
        """From ``oracle["layout"]``."""
        return cls(tuple(data["first"]), tuple(data["step"]), data["margin"], data["grid"])

    def snapped(self, point: Point) -> Point:
        """The centre of the square that contains the point."""
        if self.grid == 1:
            return point
        x, y = (int(value) // self.grid * self.grid + self.grid // 2 for value in point)
        return x, y


class LocalOracle:
    """The oracle of one task; one instance plays one episode.

    Args:
        task: a task whose ``oracle`` has ``type`` ``local`` and ``steps``.
        style: ``expert``: Agent S2's verbose plan, a step may have several inputs; ``native``: one input per step, with
            the intent as its thought.

    Raises:
        TaskError: the task has no such script, or a step is malformed.
        ValueError: unknown style.
    """

    def __init__(self, task: Task, style: str = "expert") -> None:
        if style not in STYLES:
            raise ValueError(f"unknown oracle style {style!r}; known: {', '.join(STYLES)}")
        oracle = task.oracle or {}
        steps = oracle.get("native" if style == "native" and "native" in oracle else "steps")
        if oracle.get("type") != "local" or not isinstance(steps, (list, tuple)) or not steps:
            raise TaskError(
                f"task {task.id!r}: LocalOracle requires oracle.type 'local' and steps, got {task.oracle!r}"
            )
        for step in steps:
            if not isinstance(step, Mapping) or step.get("do") not in tuple(_INPUTS):
                raise TaskError(f"task {task.id!r}: unknown oracle step {step!r}; do: {', '.join(_INPUTS)}")
            if problem := _problem(step):
                raise TaskError(f"task {task.id!r}: {problem} in the oracle step {dict(step)!r}")
        self._style = style
        self._layout = Layout.of(oracle["layout"]) if "layout" in oracle else Layout()
        self._end: Step = {"subtask": steps[-1]["subtask"], "when": oracle.get("end")}
        self._conditions = Conditions(
            condition for step in [*steps, self._end] for condition in (step.get("when"), step.get("only_if"))
        )
        self._left: list[tuple[Step, int | None]] = []
        for step in steps:
            self._left += [(step, i) for i in range(_parts(step))] if style == "native" else [(step, None)]
        self._first = True

    def next_step(self, desktop: Desktop) -> ExpertStep | None:
        """The next step, or None when the script is at its end.

        Raises:
            DesktopError: ``evaluator_failed`` when a step's window does not exist, or its condition is not met in time.
        """
        self._conditions.begin(desktop)
        while True:
            step, part = self._left[0] if self._left else (self._end, None)
            if self._conditions.wait(step.get("when"), desktop):
                return self._waited(step, desktop)
            if not self._left:
                return None
            self._left.pop(0)
            if self._conditions.met(step.get("only_if"), desktop):
                return self._step(step, part, desktop)

    def _waited(self, step: Step, desktop: Desktop) -> ExpertStep:
        return self._expert_step(step, "Wait", (Action("wait"),), "agent.wait(1)", desktop)

    def _step(self, step: Step, part: int | None, desktop: Desktop) -> ExpertStep:
        actions, call = _INPUTS[step["do"]](_with_positions(step, desktop, self._layout))
        if part is not None:
            actions = actions[part : part + 1]
        return self._expert_step(step, str(step["intent"]), actions, call, desktop)

    def _expert_step(
        self, step: Step, intent: str, actions: tuple[Action, ...], call: str, desktop: Desktop
    ) -> ExpertStep:
        first, self._first = self._first, False
        return ExpertStep(
            subtask=str(step["subtask"]),
            plan=intent if self._style == "native" else _executor_plan(intent, call, first, desktop),
            reflection=None if first or self._style == "native" else "The trajectory is going as planned.",
            call=call,
            pyautogui=to_pyautogui(actions),
            intent=intent,
            actions=actions,
        )


def _problem(step: Step) -> str | None:
    """What is wrong with the arguments of a step; None: nothing that can be seen without a desktop."""
    places = [name for name in ("on", "onto") if name in step]
    needed = [*(f"{name}.{key}" for name in places for key in _lacking(step[name])), *({"intent", "subtask"} - {*step})]
    if needed:
        return f"{min(needed)} is missing"
    try:
        _INPUTS[step["do"]]({**step, **dict.fromkeys(places, (0, 0))})
    except KeyError as error:
        return f"{error.args[0]} is missing"
    except (AttributeError, TypeError):
        return "keys is no text or list of texts"
    return None


def _lacking(where: Any) -> list[str]:
    """The keys that a position lacks."""
    known: dict[str, tuple[str, ...]] = {"screen": (), "icon": ("folder",), "entry": (), "popup": (), "window": ()}
    kind = next((kind for kind in known if isinstance(where, Mapping) and kind in where), None)
    if kind is None:
        return ["|".join(known)]
    if kind == "window" and not {"at", "part"} & where.keys():
        return ["at|part"]
    return [key for key in known[kind] if key not in where]


def _parts(step: Step) -> int:
    """The number of inputs of a step."""
    return 2 if step["do"] == "type" and step.get("overwrite", False) else 1


def _executor_plan(intent: str, call: str, first: bool, desktop: Desktop) -> str:
    """Agent S2's ``executor_plan``: verification, screenshot analysis, next action, grounded action."""
    before = (
        "No previous action has been taken yet, so nothing to verify."
        if first
        else "The previous action was successful: the screen shows what was expected."
    )
    titles = [window["title"] for window in windows(desktop)]
    seen = f"These windows are open: {', '.join(titles)}." if titles else "No window is open."
    return (
        f"(Previous action verification)\n{before}\n\n(Screenshot Analysis)\n{seen}\n\n"
        f"(Next Action)\n{intent}.\n\n(Grounded Action)\n```python\n{call}\n```"
    )


def _with_positions(step: Step, desktop: Desktop, layout: Layout) -> Step:
    """The step with the pixels that ``on`` and ``onto`` describe."""
    return {**step, **{key: _position(step[key], desktop, layout) for key in ("on", "onto") if key in step}}


def _position(where: Mapping[str, Any], desktop: Desktop, layout: Layout) -> Point:
    if "screen" in where:
        across, down = where["screen"]
        return round(across * desktop.screen_size[0]), round(down * desktop.screen_size[1])
    return layout.snapped(_on_a_window(where, desktop, layout))


def _on_a_window(where: Mapping[str, Any], desktop: Desktop, layout: Layout) -> Point:
    if "icon" in where:
        return _icon(str(where["icon"]), str(where["folder"]), desktop, layout)
    if "entry" in where:
        return _entry(str(where["entry"]), desktop)
    if "popup" in where:
        return _inside(_menu(where.get("level", -1), desktop), where["popup"])
    window = _window(str(where["window"]), desktop)
    if "part" in where:
        across, down = where["part"]
        return window["x"] + across * window["width"], window["y"] + down * window["height"]
    return _inside(window, where["at"])


def _inside(box: Mapping[str, Any], at: Sequence[int]) -> Point:
    """A point of a window or menu; negative numbers count from its right and bottom edges."""
    x, y = at
    return box["x"] + (x if x >= 0 else box["width"] + x), box["y"] + (y if y >= 0 else box["height"] + y)


def _window(title: str, desktop: Desktop) -> Mapping[str, Any]:
    for window in windows(desktop):
        if title.lower() in window["title"].lower():
            return window
    raise DesktopError(FailureReason.evaluator_failed, f"the oracle finds no window {title!r}")


def _menu(number: int, desktop: Desktop) -> Mapping[str, Any]:
    menus = popups(desktop)
    if not -len(menus) <= number < len(menus):
        message = f"the oracle finds no open menu of level {number}, {len(menus)} are open"
        raise DesktopError(FailureReason.evaluator_failed, message)
    return menus[number]


def _entry(label: str, desktop: Desktop) -> Point:
    """The pixel of an item of the desktop's menu or of its open submenu, whose items have equal heights."""
    root = ElementTree.fromstring(desktop.read_file(f"~/{MENU}")).find("{*}menu")
    for menu in () if root is None else (root, *root):
        labels = [item.get("label") for item in menu]
        if label in labels:
            box, count = _menu(0 if menu is root else -1, desktop), len(labels)
            return box["x"] + box["width"] // 2, box["y"] + (2 * labels.index(label) + 1) * box["height"] // (2 * count)
    raise DesktopError(FailureReason.evaluator_failed, f"the oracle finds no {label!r} in the desktop's menu")


def _icon(name: str, folder: str, desktop: Desktop, layout: Layout) -> Point:
    """The pixel of a file's icon in the file manager, which sorts folders first, then by name, in rows."""
    listed = desktop.run(["ls", "-1", "--group-directories-first", folder]).output.splitlines()
    if name not in listed:
        raise DesktopError(FailureReason.evaluator_failed, f"the oracle finds no {name!r} in {folder}: {listed}")
    window = _window(folder.rpartition("/")[2], desktop)
    columns = (window["width"] - layout.margin) // layout.step[0]
    row, column = divmod(listed.index(name), columns)
    x, y = layout.first[0] + column * layout.step[0], layout.first[1] + row * layout.step[1]
    return window["x"] + x, window["y"] + y


Inputs = tuple[tuple[Action, ...], str]  #: the actions to perform, and the tool-level call


def _mouse(kind: str, clicks: int, button: str) -> Callable[[Step], Inputs]:
    def inputs(step: Step) -> Inputs:
        action = Action(kind, start=step["on"])
        return (action,), f'agent.click("{step["what"]}", {clicks}, "{button}")'

    return inputs


def _drag(step: Step) -> Inputs:
    action = Action("drag", start=step["on"], end=step["onto"])
    return (action,), f'agent.drag_and_drop("{step["what"]}", "{step["goal"]}")'


def _keys(step: Step) -> Inputs:
    presses = [step["keys"]] if isinstance(step["keys"], str) else list(step["keys"])
    return tuple(Action("hotkey", key=keys) for keys in presses), "; ".join(
        f"agent.hotkey({keys.split()})" for keys in presses
    )


def _type(step: Step) -> Inputs:
    text, overwrite = str(step["text"]), bool(step.get("overwrite", False))
    enter = text.endswith("\n")
    call = f"agent.type(text={text.removesuffix(chr(10))!r}, overwrite={overwrite}, enter={enter})"
    typed = Action("type", content=text)
    return ((Action("hotkey", key="ctrl a"), typed) if overwrite else (typed,)), call


def _fail(_: Step) -> Inputs:
    return (Action("call_user"),), "agent.fail()"


def _pause(_: Step) -> Inputs:
    return (Action("wait"),), "agent.wait(1)"


_INPUTS: dict[str, Callable[[Step], Inputs]] = {
    "click": _mouse("click", 1, "left"),
    "double": _mouse("left_double", 2, "left"),
    "right": _mouse("right_single", 1, "right"),
    "drag": _drag,
    "keys": _keys,
    "type": _type,
    "wait": _pause,
    "fail": _fail,
}
