"""Makes the moving pictures of the documentation: real applications under a policy's, or an oracle's, control.

    python scripts/make_readme_gif.py                            # docs/images/desktop.gif: the shipped policy
    python scripts/make_readme_gif.py --oracle desktop:desktop-multi-browser-calc    # docs/images/office.gif

The policy plays each task several times with samples at temperature 1, without training; its first success is shown,
and the number of tries and successes is printed. For each step there is the screen, then the same screen with the
point of the action, beside what was written; at the end the verifier's reward.

It requires the packages of scripts/apt-packages.txt; tasks of the suite "desktop" require osworld-gym install-desktop.
"""

from __future__ import annotations

import argparse
import io
import textwrap
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import ParseError
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.types import Action
from osworld_gym.uitars.format import format_action, format_response
from osworld_gym.uitars.parse import parse, thought_of
from osworld_gym.vector import DesktopVector

TASKS = ("varied-write-toggle-27", "varied-trash-inside-35", "varied-drag-59")
SCREEN = (640, 360)  #: of the shipped policy, pixels
WIDE = (1280, 720)  #: of the oracle's desktop, pixels
SHOWN, PANEL = 640, 240  #: width of the screen in the picture, and of the text beside it, pixels
READ, ACT, END = 700, 1100, 2600  #: milliseconds that the screen, the marked screen and the last one are shown
INK, MARK, GREEN, PAPER = (30, 30, 30), (220, 30, 30), (0, 130, 60), (250, 250, 250)


class Step(NamedTuple):
    """A screen and what was done on it, with points in pixels of the screen."""

    png: bytes
    thought: str
    actions: tuple[Action, ...]


class Play(NamedTuple):
    """An episode that is shown."""

    instruction: str
    steps: Sequence[Step]
    reward: float


def policy_plays(tries: int) -> list[Play]:
    """The shipped policy's first success of each task.

    Raises:
        DesktopError: a desktop cannot be created.
        SystemExit: a task was not solved.
    """
    policy = make_policy(load_config(["experiment=local"]), seed=0)
    suite = load_suite("varied")
    jobs = []
    for number, name in enumerate(TASKS):
        for slot in range(tries):
            key = episode_key(0, Stream.EVALUATION, 0, number, slot)
            jobs.append(EpisodeJob(suite.task(name), key, desktop_seed(key), number, slot))
    scaling, (width, height) = policy.image_scaling, SCREEN
    options = EpisodeOptions(max_steps=8, scaling=scaling)
    with closing(DesktopVector(lambda: make_desktop("local", width=width, height=height), 4, options)) as vector:
        results = run_episodes(policy, vector, jobs)
    shown = []
    for name in TASKS:
        solved = [result for result in results if result.job.task.id == name and result.success]
        print(f"{name}: solved in {len(solved)} of {tries} tries")
        if not solved or solved[0].rows is None:
            raise SystemExit(f"{name} was not solved; try --tries {2 * tries}")
        steps = []
        for row in row_list(solved[0].rows):
            text = row[K.RESPONSE]
            actions = tuple(scaling.action_to_screen(action, SCREEN) for action in actions_of(text))
            steps.append(Step(row[K.SCREENSHOT], thought_of(text), actions))
        shown.append(Play(solved[0].job.task.instruction, steps, 1.0))
    return shown


def actions_of(text: str) -> tuple[Action, ...]:
    """The actions of a response; none if it cannot be parsed."""
    try:
        return tuple(parse(text).actions)
    except ParseError:
        return ()


def oracle_plays(name: str) -> Play:
    """A task's own script, on a screen of 1280 × 720 pixels.

    Args:
        name: ``SUITE:ID``.

    Raises:
        DesktopError: the desktop cannot be created, or failed.
    """
    suite, _, task_id = name.partition(":")
    task = load_suite(suite).task(task_id)
    with make_desktop("local", width=WIDE[0], height=WIDE[1]) as desktop:
        episode = Episode(desktop, EpisodeOptions(max_steps=30))
        result, oracle, steps = episode.begin(task, 0), make_oracle(task), []
        while not result.done and result.screenshot is not None:
            step = oracle.next_step(desktop)
            actions = (Action("finished"),) if step is None else step.actions
            thought = "done" if step is None else step.intent
            steps.append(Step(result.screenshot.png, thought, actions))
            result = episode.act(format_response(thought, actions))
    print(f"{name}: {result.stop}, reward {result.reward}")
    return Play(task.instruction, steps, result.reward or 0.0)


def frames_of(play: Play) -> list[tuple[Image.Image, int]]:
    """The pictures of an episode and their times in milliseconds."""
    frames = []
    for number, step in enumerate(play.steps):
        title = f"step {number + 1} of {len(play.steps)}"
        frames.append((beside(screen_of(step, ()), play.instruction, title, "", ""), READ))
        written = "; ".join(format_action(action) for action in step.actions)
        written = " ".join(written.replace("<|box_start|>", "").replace("<|box_end|>", "").split())
        last = number == len(play.steps) - 1
        verdict = f"reward {play.reward:g}" if last else ""
        text = f"{step.thought}\n\n{written}"
        marked = beside(screen_of(step, step.actions), play.instruction, title, text, verdict)
        frames.append((marked, END if last else ACT))
    return frames


def screen_of(step: Step, actions: Sequence[Action]) -> Image.Image:
    """The screen at the picture's size, with a circle at each point of the actions and a line along a drag."""
    with Image.open(io.BytesIO(step.png)) as file:
        screen = file.convert("RGB")
    scale = SHOWN / screen.width
    if scale != 1:
        screen = screen.resize((SHOWN, round(screen.height * scale)), Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(screen)
    for action in actions:
        points = [(x * scale, y * scale) for x, y in (p for p in (action.start, action.end) if p is not None)]
        if len(points) == 2:
            draw.line(points, fill=MARK, width=2)
        for point in points:
            draw.circle(point, 9, outline=MARK, width=3)
    return screen


def beside(screen: Image.Image, instruction: str, title: str, text: str, verdict: str) -> Image.Image:
    """The screen with the task, the step and what was written on its right."""
    frame = Image.new("RGB", (screen.width + PANEL, screen.height), PAPER)
    frame.paste(screen, (0, 0))
    draw = ImageDraw.Draw(frame)
    left = screen.width + 12
    large = len(instruction) < 100
    draw.multiline_text(
        (left, 12), wrapped(instruction, 27 if large else 32), INK, font(16 if large else 13), spacing=4
    )
    draw.text((left, 150), title, MARK, font(14))
    draw.multiline_text((left, 178), wrapped(text, 30), INK, font(14), spacing=4)
    draw.text((left, screen.height - 40), verdict, GREEN, font(20))
    return frame


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most ``width`` characters."""
    return "\n".join(line for part in text.split("\n") for line in (textwrap.wrap(part, width) or [""]))


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, the same on every machine."""
    return ImageFont.load_default(size)


def save(path: Path, frames: list[tuple[Image.Image, int]]) -> None:
    """Writes a GIF with one palette for all frames, so that a still part of the screen keeps its colour."""
    width, height = frames[0][0].size
    every = Image.new("RGB", (width, height * len(frames)))
    for number, (frame, _) in enumerate(frames):
        every.paste(frame, (0, number * height))
    palette = every.quantize(128)
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame, _ in frames]
    first.save(path, save_all=True, append_images=rest, duration=[time for _, time in frames], loop=0, optimize=True)


def main() -> None:
    """Plays, draws and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", metavar="SUITE:ID", help="show a task's own script instead of the policy")
    parser.add_argument("--tries", type=int, default=4, help="of the policy, per task (default: 4)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or Path("docs/images") / ("office.gif" if options.oracle else "desktop.gif")
    plays = [oracle_plays(options.oracle)] if options.oracle else policy_plays(options.tries)
    frames = [frame for play in plays for frame in frames_of(play)]
    save(out, frames)
    print(f"{out}: {len(frames)} frames, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
