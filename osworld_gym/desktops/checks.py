"""The Desktop contract as checks, for any provider: ``run_checks(make_desktop)``. Part of the public interface.

Each check is a function of one desktop (``DESKTOP_CHECKS``) or of the function that creates one (``MAKE_CHECKS``); it
returns None or raises :class:`CheckFailed`. A provider's known difference is listed with its reason in
``KNOWN_DIFFERENCES``, never skipped silently; listing a check that passes is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.types import Action, Screenshot
from osworld_gym.uitars.keys import NAMED_KEYS

DesktopCheck = Callable[[Desktop], None]
MakeCheck = Callable[[Callable[[], Desktop]], None]

#: provider → check → reason of the difference
KNOWN_DIFFERENCES: dict[str, dict[str, str]] = {}

ODD_TEXTS = ('it\'s "quoted" `and` $HOME \\n', "first line\nsecond line\n", "Größe 你好 🙂", "", "a<b>&c; | rm\t%s{}")
ODD_KEYS = ("no_such_key", "ctrl no_such_key", "", "ctrl+shift+t", "hyper F99", "你", "ctrl  c")
FAR_POINTS = ((-50.0, -50.0), (1e6, 1e6), (-1.0, 1e9), (0.0, 0.0), (3.7, 2.2))
DATA = bytes(range(256)) * 3
BETWEEN = ((100.5, 50.4), (100.6, 50.6), (0.4, 0.5))  # points between pixels
INPUT_LOG, INPUT_LOG_SECONDS = "/tmp/input.log", 60
#: takes keyboard and pointer, so that no program reacts, and writes a line for each press: "key", or a button's number
_LOG_INPUT = f"""
import select, time
from Xlib import X
from Xlib.display import Display
display = Display()
root = display.screen().root
root.grab_keyboard(False, X.GrabModeAsync, X.GrabModeAsync, X.CurrentTime)
root.grab_pointer(False, X.ButtonPressMask, X.GrabModeAsync, X.GrabModeAsync, X.NONE, X.NONE, X.CurrentTime)
display.sync()
with open({INPUT_LOG!r}, "w", buffering=1) as log:
    log.write("ready\\n")
    end = time.monotonic() + {INPUT_LOG_SECONDS}
    while time.monotonic() < end:
        for _ in range(display.pending_events()):
            event = display.next_event()
            if event.type in (X.KeyPress, X.ButtonPress):
                log.write("key\\n" if event.type == X.KeyPress else f"{{event.detail}}\\n")
        select.select([display], [], [], 0.1)
"""


class CheckFailed(AssertionError):
    """A check failed; the message states what the contract requires and what the provider did."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``known`` is a failure that is listed as a known difference."""

    name: str
    outcome: Literal["passed", "failed", "known"]
    detail: str
    seconds: float


def run_checks(make_desktop: Callable[[], Desktop], known: Mapping[str, str] | None = None) -> list[CheckResult]:
    """Runs every check; all desktops are closed at the end.

    Args:
        make_desktop: creates one desktop; called four times.
        known: check → reason, for checks that this provider is known to fail.

    Raises:
        ValueError: ``known`` contains an unknown check.
        DesktopError: the first desktop cannot be created.
    """
    known = known or {}
    names = [check.__name__ for check in (*DESKTOP_CHECKS, *MAKE_CHECKS)]
    unknown = sorted(set(known) - set(names))
    if unknown:
        raise ValueError(f"unknown checks in known_differences: {', '.join(unknown)}; the checks: {', '.join(names)}")
    with make_desktop() as desktop:
        results = [_judge(check.__name__, partial(check, desktop), known) for check in DESKTOP_CHECKS]
    return results + [_judge(check.__name__, partial(check, make_desktop), known) for check in MAKE_CHECKS]


def _judge(name: str, check: Callable[[], None], known: Mapping[str, str]) -> CheckResult:
    start = perf_counter()
    try:
        check()
        problem = ""
    except Exception as error:  # noqa: BLE001 any exception of a provider fails its check and not the others
        problem = str(error) if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"
    seconds = perf_counter() - start
    if name not in known:
        return CheckResult(name, "failed" if problem else "passed", problem, seconds)
    if problem:
        return CheckResult(name, "known", f"{known[name]} ({problem})", seconds)
    return CheckResult(name, "failed", f"passes, but is named as a known difference: {known[name]}", seconds)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckFailed(message)


def _sound(desktop: Desktop, frame: Screenshot) -> None:
    width, height = desktop.screen_size
    pixels = frame.pixels
    _require(pixels.dtype == np.uint8, f"pixels: expected uint8, got {pixels.dtype}")
    _require(pixels.shape == (height, width, 3), f"pixels: expected {(height, width, 3)}, got {pixels.shape}")


def screenshot_has_the_size_of_the_screen(desktop: Desktop) -> None:
    """The frame is uint8 RGB of ``screen_size``, and its PNG contains the same pixels."""
    desktop.reset(1)
    width, height = desktop.screen_size
    _require(width > 0 and height > 0, f"screen_size: expected positive pixels, got {(width, height)}")
    frame = desktop.screenshot()
    _sound(desktop, frame)
    _require(bool((Screenshot(png=frame.png).pixels == frame.pixels).all()), "png and pixels differ")
    _require(desktop.screen_size == (width, height), "screen_size changed after a screenshot")


def same_seed_gives_the_same_screen(desktop: Desktop) -> None:
    """Two resets with the same seed show the same pixels, whatever was done between them."""
    desktop.reset(7)
    first = desktop.screenshot().pixels.copy()
    width, height = desktop.screen_size
    desktop.perform([Action("click", start=(width * x / 4, height * y / 4)) for x in (1, 2, 3) for y in (1, 2, 3)])
    desktop.reset(7)
    differing = int((desktop.screenshot().pixels != first).any(axis=-1).sum())
    _require(differing == 0, f"{differing} of {width * height} pixels differ between two resets with seed 7")


def reset_leaves_nothing(desktop: Desktop) -> None:
    """A file of an earlier episode does not exist after a reset."""
    desktop.reset(1)
    desktop.write_file("/tmp/earlier/episode.txt", b"secret")
    desktop.reset(1)
    try:
        data = desktop.read_file("/tmp/earlier/episode.txt")
    except FileNotFoundError:
        return
    raise CheckFailed(f"a file of the earlier episode survived the reset: {data!r}")


def points_outside_the_screen_are_accepted(desktop: Desktop) -> None:
    """Points outside the screen are moved to its edge: nothing raises, and screenshots still work."""
    desktop.reset(1)
    for point in FAR_POINTS:
        desktop.perform([Action("click", start=point)])
        desktop.perform([Action("drag", start=point, end=(-point[0], -point[1]))])
        desktop.perform([Action("scroll", start=point, direction="down")])
    _sound(desktop, desktop.screenshot())


def points_are_rounded(desktop: Desktop) -> None:
    """The pointer goes to the nearest pixel, halves up: (100.5, 50.4) is (101, 50)."""
    if desktop.has_shell:
        desktop.reset(1)
        for x, y in BETWEEN:
            desktop.perform([Action("hover", start=(x, y))])
            got = desktop.run(["python3", "-c", "import pyautogui; print(*pyautogui.position())"]).output.split()
            wanted = [str(floor(x + 0.5)), str(floor(y + 0.5))]
            _require(got == wanted, f"hover {(x, y)}: expected the pointer at {wanted}, got {got}")
        return
    width, height = desktop.screen_size
    corners = [(width * x // 8, height * y // 8) for x in range(1, 8) for y in range(1, 8)]
    frames = [
        _after(desktop, *(Action("click", start=(x + part, y + part)) for x, y in corners)) for part in (-0.5, 0, 0.4)
    ]
    _require(
        all((frame == frames[1]).all() for frame in frames), "a click half a pixel beside a point is another click"
    )


def _after(desktop: Desktop, *actions: Action) -> NDArray[np.uint8]:
    """Pixels after the actions, performed in one call on the desktop of seed 1."""
    desktop.reset(1)
    desktop.perform(actions)
    return desktop.screenshot().pixels.copy()


def a_line_end_is_one_enter(desktop: Desktop) -> None:
    """A CR LF in a text shows the same screen as a line feed."""
    crlf, line_feed = (_after(desktop, Action("type", content=f"a{end}b")) for end in ("\r\n", "\n"))
    _require(bool((crlf == line_feed).all()), "a text with \\r\\n shows another screen than with \\n")


def every_named_key_is_performed_or_unused(desktop: Desktop) -> None:
    """Each of ``NAMED_KEYS`` reaches the programs, or is in ``unused_keys`` and changes nothing."""
    unknown = sorted(desktop.unused_keys - set(NAMED_KEYS))
    _require(not unknown, f"unused_keys: not among NAMED_KEYS: {unknown}")
    unused = [Action("hotkey", key=key) for key in sorted(desktop.unused_keys)]
    if unused:
        nothing = _after(desktop, Action("hotkey", key="no_such_key"))
        same = bool((_after(desktop, *unused) == nothing).all())
        _require(same, f"one of the unused keys changed the screen: {', '.join(sorted(desktop.unused_keys))}")
    desktop.reset(1)
    for key in NAMED_KEYS:  # none may raise
        desktop.perform([Action("hotkey", key=key)])
    if desktop.has_shell:
        lost = _lost_keys(desktop, [key for key in NAMED_KEYS if key not in desktop.unused_keys])
        _require(not lost, f"these keys reach no program and are not in unused_keys: {', '.join(lost)}")


def _lost_keys(desktop: Desktop, keys: Sequence[str]) -> list[str]:
    """Which of the keys no X client gets. All at once first, one by one only if there are any."""
    _log_input(desktop)
    desktop.perform([Action("hotkey", key=key) for key in keys])
    if len(_presses(desktop, len(keys))) >= len(keys):
        return []
    lost = []
    for key in keys:
        before = len(_presses(desktop))
        desktop.perform([Action("hotkey", key=key)])
        if len(_presses(desktop)) == before:
            lost.append(key)
    return lost


def _log_input(desktop: Desktop) -> None:
    """Starts the log of presses on the desktop of seed 1."""
    desktop.reset(1)
    desktop.run(["rm", "-f", INPUT_LOG])  # of another check, on a desktop without a /tmp of its own
    desktop.write_file("/tmp/log_input.py", _LOG_INPUT.encode())
    desktop.run("python3 /tmp/log_input.py >/dev/null 2>&1 &", shell=True)
    end = perf_counter() + INPUT_LOG_SECONDS / 2
    while not desktop.run(["cat", INPUT_LOG]).output:
        _require(perf_counter() < end, "the program that logs presses did not start")
        desktop.wait_still(0.2)


def _presses(desktop: Desktop, awaited: int = 0) -> list[str]:
    """The logged presses, once there are as many as ``awaited`` or the time for them is over."""
    end = perf_counter() + INPUT_LOG_SECONDS / 4
    while len(events := desktop.run(["cat", INPUT_LOG]).output.split()[1:]) < awaited and perf_counter() < end:
        desktop.wait_still(0.2)
    return events


def unknown_keys_do_nothing(desktop: Desktop) -> None:
    """Hotkeys with unknown keys are accepted."""
    desktop.reset(1)
    for key in ODD_KEYS:
        desktop.perform([Action("hotkey", key=key)])
    _sound(desktop, desktop.screenshot())


def any_text_can_be_typed(desktop: Desktop) -> None:
    """Quotes, newlines, shell characters, non-ASCII characters and the empty text are accepted."""
    desktop.reset(1)
    for text in ODD_TEXTS:
        desktop.perform([Action("type", content=text)])
    _sound(desktop, desktop.screenshot())


def buttons_and_wheel_clicks_are_performed(desktop: Desktop) -> None:
    """Each click presses its button, and the wheel turns by ``clicks``, or by 5."""
    if not desktop.has_shell:
        return
    _log_input(desktop)
    middle = (desktop.screen_size[0] / 2, desktop.screen_size[1] / 2)
    kinds = {"click": "1", "left_double": "1 1", "middle_single": "2", "right_single": "3", "left_triple": "1 1 1"}
    ways = {"up": "4", "down": "5", "left": "6", "right": "7"}
    actions = [Action(kind, start=middle) for kind in kinds]
    actions += [Action("scroll", direction=way, clicks=3) for way in ways]
    actions += [Action("scroll", start=middle, direction="up"), Action("scroll", direction="down", clicks=0)]
    wanted = " ".join([*kinds.values(), *(" ".join([button] * 3) for button in ways.values()), "4 4 4 4 4"]).split()
    desktop.perform(actions)
    got = _presses(desktop, len(wanted))
    _require(got == wanted, f"expected the buttons {' '.join(wanted)}, got {' '.join(got)}")


def actions_without_a_point_begin_at_the_pointer(desktop: Desktop) -> None:
    """A click, drag or scroll without ``start`` begins where the last action left the pointer."""
    width, height = desktop.screen_size
    if desktop.has_shell:
        desktop.reset(1)
        place, other = (width // 4, height // 4), (width // 2, height // 3)
        still = [Action("hover", start=place), Action("middle_single"), Action("scroll", direction="down", clicks=1)]
        for actions, (x, y) in ((still, place), ([Action("drag", end=other)], other)):
            desktop.perform(actions)
            got = desktop.run(["python3", "-c", "import pyautogui; print(*pyautogui.position())"]).output.split()
            _require(got == [str(x), str(y)], f"expected the pointer at {(x, y)}, got {got}")
        return
    for x, y in [(width * x // 8, height * y // 8) for x in range(1, 8, 2) for y in range(1, 8)]:
        for kind in ("click", "left_double", "right_single"):
            apart = _after(desktop, Action("hover", start=(x, y)), Action(kind))
            same = bool((apart == _after(desktop, Action(kind, start=(x, y)))).all())
            _require(same, f"{kind} at the pointer differs from {kind} at {(x, y)}, where the pointer is")


def every_desktop_action_is_performed(desktop: Desktop) -> None:
    """Every kind of action is accepted, alone and in one list; ``finished``, ``call_user`` and [] do nothing."""
    desktop.reset(1)
    width, height = desktop.screen_size
    middle, corner = (width / 2, height / 2), (width - 1.0, height - 1.0)
    actions = [Action(kind, start=middle) for kind in ("click", "left_double", "left_triple", "right_single")]
    actions += [Action("middle_single", start=middle), Action("hover", start=middle), Action("click")]
    actions += [Action("scroll", start=middle, direction=way) for way in ("up", "down", "left", "right")]
    actions += [Action("scroll", direction=way, clicks=2) for way in ("up", "down", "left", "right")]
    actions += [Action("drag", start=middle, end=corner), Action("drag", end=middle)]
    actions += [Action("keydown", key="shift"), Action("keyup", key="shift")]
    actions += [Action("hotkey", key="escape"), Action("type", content="a")]
    actions += [Action("wait"), Action("finished", content="done"), Action("call_user")]
    for action in actions:
        desktop.perform([action])
    desktop.perform(actions)
    desktop.perform([])
    _sound(desktop, desktop.screenshot())


def files_come_back_as_written(desktop: Desktop) -> None:
    """Any bytes are read as written; folders are created; a second, shorter write replaces the first."""
    desktop.reset(1)
    path = "/tmp/a folder/naïve 'name'.bin"
    for data in (DATA, b"short", b""):
        desktop.write_file(path, data)
        got = desktop.read_file(path)
        _require(got == data, f"wrote {len(data)} bytes, read {len(got)} others")


def a_missing_file_is_file_not_found(desktop: Desktop) -> None:
    """``read_file`` of a missing file raises FileNotFoundError, and the desktop can still be used."""
    desktop.reset(1)
    try:
        data = desktop.read_file("/tmp/no/such/file")
    except FileNotFoundError:
        _sound(desktop, desktop.screenshot())
        return
    raise CheckFailed(f"a missing file: expected FileNotFoundError, got {data!r}")


def an_unknown_setup_step_is_a_task_error(desktop: Desktop) -> None:
    """``setup`` with an unknown step raises TaskError with its name: the task is wrong, not the desktop."""
    desktop.reset(1)
    try:
        desktop.setup({"type": "no_such_step", "parameters": {}})
    except TaskError as error:
        _require("no_such_step" in str(error), f"the TaskError must name the step, got {str(error)!r}")
        return
    raise CheckFailed("an unknown setup step: expected TaskError, it was accepted")


def run_gives_status_and_output(desktop: Desktop) -> None:
    """``run`` returns exit status, stdout and stderr, with and without ``shell``; NotImplementedError if no shell."""
    desktop.reset(1)
    if not desktop.has_shell:
        try:
            desktop.run(["true"])
        except NotImplementedError:
            return
        raise CheckFailed("has_shell is False, so run must raise NotImplementedError, it was accepted")
    got = desktop.run("printf 'Größe'; printf wrong >&2; exit 3", shell=True)
    _require((got.returncode, got.output, got.error) == (3, "Größe", "wrong"), f"expected (3, Größe, wrong), got {got}")
    got = desktop.run(["printf", "%s", "$HOME 'a b'"])
    _require(got.output == "$HOME 'a b'", f"a list must reach the program without a shell, got {got.output!r}")
    desktop.write_file("/tmp/check.txt", b"seen")
    got = desktop.run(["cat", "/tmp/check.txt"])
    _require(got.output == "seen", f"a command must see a written file, got {got}")


def run_ends_at_its_timeout(desktop: Desktop) -> None:
    """``run`` raises ``hung`` at its timeout, not later; the next reset works."""
    desktop.reset(1)
    if not desktop.has_shell:
        return
    start = perf_counter()
    try:
        got = desktop.run(["sleep", "30"], timeout=0.5)
    except DesktopError as error:
        _require(error.reason is FailureReason.hung, f"a timeout: expected the reason hung, got {error.reason.value}")
    else:
        raise CheckFailed(f"sleep 30 with a timeout of 0.5 s: expected DesktopError, got {got}")
    seconds = perf_counter() - start
    _require(seconds < 10, f"a timeout of 0.5 s took {seconds:.1f} s")
    desktop.reset(1)
    _sound(desktop, desktop.screenshot())


def desktops_are_apart(make_desktop: Callable[[], Desktop]) -> None:
    """A file of one desktop is not visible in another; closing one does not affect the other."""
    with make_desktop() as first, make_desktop() as second:
        first.reset(1)
        second.reset(1)
        first.write_file("/tmp/mine.txt", b"first")
        try:
            data = second.read_file("/tmp/mine.txt")
        except FileNotFoundError:
            first.close()
            _sound(second, second.screenshot())
            return
        raise CheckFailed(f"a file of one desktop is seen by another: {data!r}")


def close_can_be_called_twice(make_desktop: Callable[[], Desktop]) -> None:
    """A second ``close``, also before the first reset, does nothing."""
    desktop = make_desktop()
    desktop.close()
    desktop.close()


DESKTOP_CHECKS: tuple[DesktopCheck, ...] = (
    screenshot_has_the_size_of_the_screen,
    same_seed_gives_the_same_screen,
    reset_leaves_nothing,
    points_outside_the_screen_are_accepted,
    points_are_rounded,
    unknown_keys_do_nothing,
    every_named_key_is_performed_or_unused,
    a_line_end_is_one_enter,
    any_text_can_be_typed,
    every_desktop_action_is_performed,
    buttons_and_wheel_clicks_are_performed,
    actions_without_a_point_begin_at_the_pointer,
    files_come_back_as_written,
    a_missing_file_is_file_not_found,
    an_unknown_setup_step_is_a_task_error,
    run_gives_status_and_output,
    run_ends_at_its_timeout,
)
MAKE_CHECKS: tuple[MakeCheck, ...] = (desktops_are_apart, close_can_be_called_twice)
