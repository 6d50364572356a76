"""The UI-TARS action space as a table, from which prompt text, parser grammar and documentation are derived.

Names and arguments: BEPA paper, table "The UITARS action space" and the prompt of Appendix F; ``open_app`` and the
argument names ``point``, ``start_point``, ``end_point`` and ``app_name``: UI-TARS's own prompts (prompts/SOURCES.txt).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Platform = Literal["desktop", "mobile"]
Kind = Literal["box", "keys", "text", "direction"]

PLATFORMS: tuple[Platform, ...] = ("desktop", "mobile")
DIRECTIONS = ("down", "up", "right", "left")
BOX_START, BOX_END = "<|box_start|>", "<|box_end|>"


@dataclass(frozen=True, slots=True)
class Argument:
    """One keyword argument of an action.

    Args:
        name: its name in responses.
        field: the field of :class:`osworld_gym.types.Action` that stores it.
        kind: how the value is parsed.
        example: the value shown in the prompt, without box tokens and quotes.
        required: whether a response without it is a parse error.
        aliases: other names that UI-TARS's prompts or models use.
    """

    name: str
    field: str
    kind: Kind
    example: str
    required: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action.

    Args:
        name: its name in responses.
        arguments: the keyword arguments of the action.
        platforms: the platforms that have it.
        description: what it does, for the documentation.
        remark: the comment in its prompt line.
        aliases: other names that the parser accepts.
        prompted: whether prompts list it; False for actions that only OSWorld's agent accepts, or OpenCUA's responses
            have.
    """

    name: str
    arguments: tuple[Argument, ...]
    platforms: tuple[Platform, ...]
    description: str
    remark: str = ""
    aliases: tuple[str, ...] = ()
    prompted: bool = True

    def argument(self, name: str) -> Argument | None:
        """The argument with this name or alias, or None."""
        for argument in self.arguments:
            if name == argument.name or name in argument.aliases:
                return argument
        return None


_START = Argument("start_box", "start", "box", "(x1,y1)", aliases=("point", "start_point"))
_START_OPTIONAL = Argument("start_box", "start", "box", "(x1,y1)", required=False, aliases=("point", "start_point"))
_END = Argument("end_box", "end", "box", "(x3,y3)", aliases=("end_point",))
_KEY = Argument("key", "key", "keys", "ctrl c", aliases=("hotkey", "press"))
_CONTENT = Argument("content", "content", "text", "xxx")
_CONTENT_OPTIONAL = Argument("content", "content", "text", "xxx", required=False)
_DIRECTION = Argument("direction", "direction", "direction", " or ".join(("down", "up", "right", "left")))
_APP = Argument("app_name", "content", "text", "xxx", aliases=("content",))

_BOTH: tuple[Platform, ...] = ("desktop", "mobile")
_DESKTOP: tuple[Platform, ...] = ("desktop",)
_MOBILE: tuple[Platform, ...] = ("mobile",)

ACTIONS: tuple[ActionSpec, ...] = (
    ActionSpec("click", (_START,), _BOTH, "Clicks (taps) at the point.", aliases=("left_single",)),
    ActionSpec("left_double", (_START,), _DESKTOP, "Double-clicks at the point."),
    ActionSpec("left_triple", (_START,), _DESKTOP, "Triple-clicks at the point.", prompted=False),
    ActionSpec("right_single", (_START,), _DESKTOP, "Right-clicks at the point."),
    ActionSpec("long_press", (_START,), _MOBILE, "Presses the point for a second."),
    ActionSpec("drag", (_START, _END), _BOTH, "Drags from the first point to the second.", aliases=("select",)),
    ActionSpec(
        "hotkey",
        (_KEY,),
        _DESKTOP,
        "Presses the keys together; names are separated by spaces.",
        "Split keys with a space and use lowercase.",
        aliases=("press",),
    ),
    ActionSpec(
        "type",
        (_CONTENT,),
        _BOTH,
        "Types the text; a newline presses enter.",
        "Use \\', \\\" and \\n in content. If you want to submit your input, use \\n at the end of content.",
    ),
    ActionSpec(
        "scroll",
        (_START_OPTIONAL, _DIRECTION),
        _BOTH,
        "Scrolls at the point, or where the pointer is, to show more on that side.",
    ),
    ActionSpec("hover", (_START,), _DESKTOP, "Moves the pointer to the point.", prompted=False),
    ActionSpec("keydown", (_KEY,), _DESKTOP, "Presses the keys and holds them, until `keyup`.", prompted=False),
    ActionSpec("keyup", (_KEY,), _DESKTOP, "Releases the keys.", aliases=("release",), prompted=False),
    ActionSpec("open_app", (_APP,), _MOBILE, "Opens the application of that name."),
    ActionSpec("press_home", (), _MOBILE, "Presses the home button."),
    ActionSpec("press_back", (), _MOBILE, "Presses the back button."),
    ActionSpec("press_enter", (), _MOBILE, "Presses the enter key."),
    ActionSpec(
        "wait", (), _BOTH, "Waits for the screen.", "Sleep for 5s and take a screenshot to check for any changes."
    ),
    ActionSpec("finished", (_CONTENT_OPTIONAL,), _BOTH, "Says that the task is done; the text is an answer."),
    ActionSpec(
        "call_user",
        (),
        _BOTH,
        "Asks for the user: the task cannot be solved alone.",
        "Submit the task and call the user when the task is unsolvable, or when you need the user's help.",
    ),
)


def _grammar(platform: Platform) -> MappingProxyType[str, ActionSpec]:
    names: dict[str, ActionSpec] = {}
    for spec in ACTIONS:
        if platform in spec.platforms:
            for name in (spec.name, *spec.aliases):
                names[name] = spec
    return MappingProxyType(names)


#: platform → action name or alias in a response → its row of the table
GRAMMAR: MappingProxyType[Platform, MappingProxyType[str, ActionSpec]] = MappingProxyType(
    {platform: _grammar(platform) for platform in PLATFORMS}
)


def call_form(spec: ActionSpec, *, box_tokens: bool = True) -> str:
    """The action as shown in prompts, e.g. ``click(start_box='<|box_start|>(x1,y1)<|box_end|>')``."""
    start, end = (BOX_START, BOX_END) if box_tokens else ("", "")
    parts = []
    for argument in spec.arguments:
        value = f"{start}{argument.example}{end}" if argument.kind == "box" else argument.example
        parts.append(f"{argument.name}='{value}'")
    return f"{spec.name}({', '.join(parts)})"


def action_space_text(platform: Platform = "desktop", *, box_tokens: bool = True) -> str:
    """The "Action Space" section of a prompt, one line per action, remarks after ``#``."""
    lines = []
    for spec in ACTIONS:
        if platform in spec.platforms and spec.prompted:
            line = call_form(spec, box_tokens=box_tokens)
            lines.append(f"{line} # {spec.remark}" if spec.remark else line)
    return "\n".join(lines)


def action_table_markdown() -> str:
    """The table as Markdown for the documentation, one row per action; a star marks actions that are not in prompts."""
    rows = ["| action | desktop | mobile | what it does | also read as |", "|---|---|---|---|---|"]
    for spec in ACTIONS:
        marks = ["yes" if platform in spec.platforms else "" for platform in PLATFORMS]
        form = call_form(spec, box_tokens=False)
        star = "" if spec.prompted else "*"
        rows.append(f"| `{form}`{star} | {marks[0]} | {marks[1]} | {spec.description} | {', '.join(spec.aliases)} |")
    return "\n".join(rows)
