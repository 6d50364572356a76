"""Task templates of the simulated desktop: instructions, goals, and presets of the initial state that are undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from osworld_gym.desktops.sim.applications import (
    CATALOGUE,
    CHOICE,
    FIELD,
    KNOWN_FILES,
    SLIDER,
    TOGGLE,
    WORDS,
    Control,
)

Goals = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Instance:
    """One task before conversion to JSON: instruction, goals, and initial state."""

    template: str
    instruction: str
    goals: Goals
    domain: str
    known: bool
    settings: Mapping[str, Any]
    trash: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        """The setting if there is only one, else the template's name; used for splitting."""
        names = [name for goal in self.goals for name in goal.get("values", ())]
        return (
            names[0]
            if len(names) == 1 and len(self.goals) == 1 and self.template not in _BY_TEMPLATE
            else self.template
        )


#: templates whose single setting is not their topic
_BY_TEMPLATE = ("save_field",)


def _set(**values: Any) -> Mapping[str, Any]:
    return {"kind": "set", "values": values}


def _other(control: Control, value: Any) -> Any:
    """An initial value other than the goal: the opposite, or the option after the goal's."""
    if control.kind == TOGGLE:
        return not value
    if control.kind == FIELD:
        return ""
    return control.options[(control.options.index(value) + 1) % len(control.options)]


def _settings(template: str, instruction: str, values: Mapping[str, Any], known: bool | None = None) -> Instance:
    """An instance that only changes settings; it is known if all its settings are known."""
    controls = [CATALOGUE.place(name).control for name in values]
    return Instance(
        template=template,
        instruction=instruction,
        goals=({"kind": "set", "values": dict(values)},),
        domain=CATALOGUE.place(next(iter(values))).app,
        known=all(c.known for c in controls) if known is None else known,
        settings={c.name: _other(c, value) for c, value in zip(controls, values.values(), strict=True)},
    )


def _of_kind(kind: str, *, commit: bool) -> list[Control]:
    controls = []
    for control in CATALOGUE.controls():
        app, tab, _ = CATALOGUE.place(control.name)
        if control.kind == kind and not control.marks and (CATALOGUE.tab(app, tab).commit is not None) == commit:
            controls.append(control)
    return controls


def toggle_on() -> Iterator[Instance]:
    for c in _of_kind(TOGGLE, commit=False):
        yield _settings("toggle_on", f"turn on {c.name}", {c.name: True})


def toggle_off() -> Iterator[Instance]:
    for c in _of_kind(TOGGLE, commit=False):
        yield _settings("toggle_off", f"turn off {c.name}", {c.name: False})


def choose() -> Iterator[Instance]:
    for c in _of_kind(CHOICE, commit=False):
        for option in c.options:
            yield _settings("choose", f"set {c.name} to {option}", {c.name: option})


def choose_apply() -> Iterator[Instance]:
    for c in _of_kind(CHOICE, commit=True):
        for option in c.options:
            yield _settings("choose_apply", f"apply {option} as {c.name}", {c.name: option})


def slide() -> Iterator[Instance]:
    for c in _of_kind(SLIDER, commit=False):
        for level in c.options:
            yield _settings("slide", f"move {c.name} to {level}", {c.name: level})


def timer() -> Iterator[Instance]:
    for level in ("5", "10", "20", "30"):
        yield _settings("timer", f"start a timer of {level} minutes", {"minutes": level})


def connect() -> Iterator[Instance]:
    for name in CATALOGUE.place("access").control.options:
        yield _settings("connect", f"connect to {name}", {"access": name})


def pick_city() -> Iterator[Instance]:
    for name in CATALOGUE.place("city").control.options:
        yield _settings("pick_city", f"use the time of {name}", {"city": name})


def save_field() -> Iterator[Instance]:
    for name in ("server", "host"):
        for word in WORDS[:4]:
            yield _settings("save_field", f"save {word} as {name}", {name: word})


def send() -> Iterator[Instance]:
    for to, subject in (("anna", "report"), ("bob", "budget"), ("carol", "agenda"), ("dave", "essay")):
        yield _settings("send", f"send {subject} to {to}", {"to": to, "subject": subject})


def secure_host() -> Iterator[Instance]:
    for word in WORDS[4:7]:
        values = {"host": word, "secure": True}
        yield _settings("secure_host", f"save {word} as host with secure on", values, known=False)


def mark() -> Iterator[Instance]:
    for name, verb, known in (("star", "star", True), ("archive", "archive", False)):
        for item in ("anna", "carol", "erin", "gina"):
            goal = {"kind": "mark", "mark": name, "item": item}
            yield Instance(verb, f"{verb} the letter of {item}", (goal,), "mail", known, {"letter": "hugo"})


def two_toggles() -> Iterator[Instance]:
    for a, b in (("hotspot", "sync"), ("beep", "bell"), ("sync", "visible"), ("spam", "digest"), ("mute", "boost")):
        yield _settings("two_toggles", f"turn on {a} and {b}", {a: True, b: True})


def two_tabs() -> Iterator[Instance]:
    for a, group, option in (("mute", "device", "headset"), ("mute", "device", "hdmi"), ("mute", "device", "speaker"),
                             ("beep", "device", "speaker"), ("dim", "colors", "light")):  # fmt: skip
        yield _settings("two_tabs", f"turn on {a} and set {group} to {option}", {a: True, group: option})


def toggle_slide() -> Iterator[Instance]:
    for a, slider in (("mute", "level"), ("boost", "level"), ("dim", "glow"), ("contrast", "glow")):
        for level in CATALOGUE.place(slider).control.options[-3:]:
            yield _settings("toggle_slide", f"turn off {a} and move {slider} to {level}", {a: False, slider: level})


def toggle_choose() -> Iterator[Instance]:
    for a, group in (("snooze", "ring"), ("warm", "colors"), ("chime", "device"), ("spam", "reply")):
        for option in CATALOGUE.place(group).control.options:
            yield _settings("toggle_choose", f"turn on {a} and set {group} to {option}", {a: True, group: option})


def two_apps() -> Iterator[Instance]:
    for a, b in (("mute", "snooze"), ("chime", "wireless"), ("spam", "warm"), ("beep", "weekend"), ("sync", "contrast"),
                 ("digest", "mono")):  # fmt: skip
        yield _settings("two_apps", f"turn on {a} then turn off {b}", {a: True, b: False})


def connect_and_toggle() -> Iterator[Instance]:
    for name, b in (("cafe", "chime"), ("hotel", "mute"), ("office", "sync"), ("guest", "digest")):
        yield _settings("connect_toggle", f"connect to {name} then turn off {b}", {"access": name, b: False})


def _file(
    template: str, instruction: str, goal: Mapping[str, Any], known: bool, trash: tuple[str, ...] = ()
) -> Instance:
    return Instance(template, instruction, (goal,), "files", known, {}, trash)


_NEW_FILES = tuple(file for _, names in CATALOGUE.folders for file in names if file not in KNOWN_FILES)


def open_file() -> Iterator[Instance]:
    for file in (*KNOWN_FILES[::2], *_NEW_FILES[::3]):
        yield _file("open_file", f"open the file {file}", {"kind": "open", "file": file}, file in KNOWN_FILES)


def delete_file() -> Iterator[Instance]:
    for file in (*KNOWN_FILES[1::2], *_NEW_FILES[1::3]):
        yield _file("delete_file", f"delete the file {file}", {"kind": "delete", "file": file}, file in KNOWN_FILES)


def drag_file() -> Iterator[Instance]:
    for file in (*KNOWN_FILES[::3], *_NEW_FILES[2::4]):
        yield _file("drag_file", f"drag the file {file} to trash", {"kind": "drag", "file": file}, file in KNOWN_FILES)


def copy_file() -> Iterator[Instance]:
    for file in ("report", "notes", "beach", "map", "rock"):
        yield _file("copy_file", f"copy the file {file}", {"kind": "copy", "file": file}, False)


def rename_file() -> Iterator[Instance]:
    for i, file in enumerate(("budget", "invoice", "sunset", "piano", "jazz")):
        word = WORDS[i]
        goal = {"kind": "rename", "file": file, "name": word}
        yield _file("rename_file", f"rename the file {file} to {word}", goal, True)


def move_file() -> Iterator[Instance]:
    for file, folder in (("report", "pics"), ("beach", "docs"), ("opera", "docs"), ("logo", "music"), ("rock", "pics")):
        goal = {"kind": "move", "file": file, "folder": folder}
        yield _file("move_file", f"move the file {file} to {folder}", goal, False)


def restore_file() -> Iterator[Instance]:
    for file in ("report", "sunset", "jazz", "notes"):
        yield _file(
            "restore_file", f"restore the file {file}", {"kind": "restore", "file": file}, False, (file, "essay")
        )


def empty_trash() -> Iterator[Instance]:
    for file in ("draft", "poster"):
        yield _file("empty_trash", f"empty the trash with {file}", {"kind": "empty", "files": [file]}, True, (file,))


def file_and_toggle() -> Iterator[Instance]:
    for file, name in (("report", "mute"), ("beach", "chime"), ("agenda", "sync"), ("kitten", "digest")):
        goals = ({"kind": "delete", "file": file}, _set(**{name: True}))
        known = file in KNOWN_FILES and CATALOGUE.place(name).control.known
        instruction = f"delete the file {file} then turn on {name}"
        yield Instance("file_toggle", instruction, goals, "files", known, {name: False})


TEMPLATES: tuple[Callable[[], Iterator[Instance]], ...] = (
    toggle_on, toggle_off, choose, choose_apply, slide, timer, connect, pick_city, save_field, send, secure_host, mark,
    two_toggles, two_tabs, toggle_slide, toggle_choose, two_apps, connect_and_toggle, open_file, delete_file, drag_file,
    copy_file, rename_file, move_file, restore_file, empty_trash, file_and_toggle,
)  # fmt: skip
