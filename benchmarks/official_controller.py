"""Compares the speed of OSWorld's unmodified client with ours, on the same local guest at 1920×1080, alternating.

    python -m benchmarks.official_controller [--rounds 20] [--steps 5] [--no-count-sleeps] [--write]

Both reset to the same task (a text editor with a file), observe, act (clicks, text, keys, scrolling, each until the
next PNG) and score. "With its sleeps" is OSWorld as its runner drives it: 60 s after the reset, 2 s after each action
(its UI-TARS runner: 3 s), 20 s before scoring. These are added to the measured times instead of slept, unless
``--no-count-sleeps`` is given. "Bare" is its client without them: it waits neither for the task's window nor for an
unchanging screen, which ours always does. The boot of its virtual machine is in neither: every reset starts the same
new guest. The exit status is 1 if ours is less than 10 times as fast to the first observation or 5 times per step.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.official_flow import official_env, official_task
from benchmarks.section import write_section
from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.guest_process import Setting
from osworld_gym.episode import OFFICIAL_TIMING, Episode, EpisodeOptions
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, StopReason
from osworld_gym.uitars.format import format_response
from osworld_gym.uitars.pyautogui import to_pyautogui

SIZE = (1920, 1080)
NOTE = "/home/user/note.txt"
#: in OSWorld's format, read by both
RAW: dict[str, Any] = {
    "id": "note",
    "instruction": "Write into the note.",
    "config": [
        {"type": "execute", "parameters": {"command": ["bash", "-c", f"seq 200 > {NOTE}"]}},
        {"type": "launch", "parameters": {"command": ["mousepad", NOTE]}},
    ],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["head", "-n", "1", NOTE]},
        "expected": {"type": "rule", "rules": {"expected": "1\n"}},
    },
}
#: actions in order, in screen pixels
ACTIONS = (
    Action("click", start=(960.0, 540.0)),
    Action("type", content="five words of plain text "),
    Action("hotkey", key="ctrl end"),
    Action("scroll", start=(960.0, 540.0), direction="up"),
    Action("click", start=(700.0, 400.0)),
)
AT_LEAST = {"reset + first observation": 10.0, "step": 5.0}  # required ratios of the medians


@dataclass
class Times:
    """Seconds of every call, without sleeps."""

    reset: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    click: list[float] = field(default_factory=list)  #: those of ``step`` that are clicks
    score: list[float] = field(default_factory=list)

    def add_click(self, number: int) -> None:
        """Lists the last step as a click, if action ``number`` is one."""
        if ACTIONS[number % len(ACTIONS)].kind == "click":
            self.click.append(self.step[-1])


@dataclass(frozen=True, slots=True)
class Sleeps:
    """Seconds that OSWorld sleeps, either added to the measured times or slept."""

    after_reset: float = OFFICIAL_TIMING.after_reset
    after_action: float = OFFICIAL_TIMING.after_action
    before_score: float = OFFICIAL_TIMING.before_evaluation


def timed(into: list[float], call: Callable[[], Any]) -> Any:
    """Runs the call, appends its seconds, and returns its result."""
    start = time.perf_counter()
    result = call()
    into.append(time.perf_counter() - start)
    return result


def official_round(env: Any, times: Times, steps: int, slept: Sleeps) -> None:
    """One episode as in OSWorld's ``lib_run_single.py``; ``slept``: its actual sleeps.

    Raises:
        RuntimeError: a screenshot is missing, or the score is not that of the unchanged first line.
    """

    def begin() -> bytes:
        env.reset(official_task(RAW))
        time.sleep(slept.after_reset)
        return env._get_obs()["screenshot"]

    def score() -> float:
        time.sleep(slept.before_score)
        with contextlib.redirect_stdout(io.StringIO()):  # its getters print
            return float(env.evaluate())

    frames = [timed(times.reset, begin)]
    for n in range(steps):
        code = to_pyautogui([ACTIONS[n % len(ACTIONS)]])
        frames.append(timed(times.step, partial(env.step, code, slept.after_action))[0]["screenshot"])
        times.add_click(n)
    if not all(frames) or timed(times.score, score) != 1.0:
        raise RuntimeError("OSWorld's client got no screenshot, or scored an untouched file as changed")


def our_round(episode: Episode, times: Times, steps: int, seed: int) -> None:
    """The same episode with our client. Raises RuntimeError if the desktop failed or the score is wrong."""
    task = Task.from_json(RAW)
    results = [timed(times.reset, partial(episode.begin, task, seed))]
    for n in range(steps):
        text = format_response("Next.", [ACTIONS[n % len(ACTIONS)]])
        results.append(timed(times.step, partial(episode.act, text)))
        times.add_click(n)
    last = timed(times.score, partial(episode.end, StopReason.max_steps))
    if any(result.stop is not None for result in results) or last.reward != 1.0:
        raise RuntimeError(f"our episode failed: {[result.info for result in (*results, last)]}")


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value not exceeded by at least ``part`` of the values; for few values, p99 is the maximum."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a quantile of both, in seconds."""

    name: str
    official: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.official / self.ours


def rows(official: Times, ours: Times, counted: Sleeps) -> list[Row]:
    """Every measure at p50 and p99: with the sleeps, and bare.

    If OSWorld's sleeps were slept, its times include them and there are no bare rows.
    """
    out = []
    parts = (
        ("reset + first observation", official.reset, ours.reset, counted.after_reset),
        ("step", official.step, ours.step, counted.after_action),
        ("click", official.click, ours.click, counted.after_action),
        ("score", official.score, ours.score, counted.before_score),
    )
    for name, theirs, mine, sleep in parts:
        if not theirs or not mine:
            continue  # none was measured
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            with_sleep = quantile(theirs, part) + sleep
            out.append(Row(f"{name}, {label}, with its sleeps", with_sleep, quantile(mine, part)))
        if sleep:
            pairs = (("p50", 0.5), ("p99", 0.99))
            out += [Row(f"{name}, {label}, bare", quantile(theirs, p), quantile(mine, p)) for label, p in pairs]
    return out


def report(lines: Sequence[Row], counted: bool, rounds: int, steps: int) -> str:
    """The table as Markdown, below a line that states how the sleeps were included."""
    each = (OFFICIAL_TIMING.after_reset, OFFICIAL_TIMING.after_action, OFFICIAL_TIMING.before_evaluation)
    sleeps = f"OSWorld's sleeps ({', '.join(f'{seconds:g} s' for seconds in each)})"
    how = f"{sleeps} were counted, not slept." if counted else f"{sleeps} were slept."
    size = f"{rounds} resets and {rounds * steps} steps each, in turn; load {os.getloadavg()[0]:.1f} at the end."
    head = ["| | OSWorld's client | ours | ratio |", "|---|---|---|---|"]
    body = [f"| {row.name} | {row.official:.3f} s | {row.ours:.3f} s | {row.ratio:.1f}× |" for row in lines]
    return "\n".join([f"{how} {size}", "", *head, *body])


def missed(lines: Sequence[Row]) -> list[str]:
    """The medians (with sleeps) that miss the required ratio, one line each."""
    required = {f"{name}, p50, with its sleeps": ratio for name, ratio in AT_LEAST.items()}
    short = [row for row in lines if row.ratio < required.get(row.name, 0.0)]
    return [f"{row.name}: {row.ratio:.1f}×, expected at least {required[row.name]:g}×" for row in short]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="episodes of each (default 20)")
    parser.add_argument("--steps", type=int, default=5, help="steps of an episode (default 5)")
    parser.add_argument("--count-sleeps", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--write", action="store_true", help="write the table to docs/desktops-results.md")
    args = parser.parse_args()
    nothing, all_of_them = Sleeps(0.0, 0.0, 0.0), Sleeps()
    slept, counted = (nothing, all_of_them) if args.count_sleeps else (all_of_them, nothing)
    official, ours = Times(), Times()
    found = find_template()
    template = None if found is None else found.path
    with (
        LocalDesktop(*SIZE, template=template) as desktop,
        tempfile.TemporaryDirectory() as cache,
        official_env(Setting(template=template), SIZE, cache) as env,
    ):
        episode = Episode(desktop, EpisodeOptions(max_steps=args.steps + 1))
        env.is_environment_used = True  # otherwise its first reset would not start a guest
        for n in range(args.rounds):
            official_round(env, official, args.steps, slept)
            our_round(episode, ours, args.steps, n)
    lines = rows(official, ours, counted)
    text = report(lines, args.count_sleeps, args.rounds, args.steps)
    print("\n".join([text, *missed(lines)]))
    if args.write:
        write_section("OSWorld's client and timing against ours, 1920×1080", text)
    return bool(missed(lines))


if __name__ == "__main__":
    sys.exit(main())
