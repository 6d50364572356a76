"""Makes docs/images/desktop.gif of README: the shipped policy plays tasks on real X desktops, without training.

    python scripts/make_readme_gif.py [--out docs/images/desktop.gif] [--tries 6]

Each task is played several times with samples at temperature 1. Its first success is shown: for each step the screen,
then the same screen with the point of the action, beside what the policy wrote; at the end the verifier's reward. The
number of tries and successes is printed.

It requires the packages of scripts/apt-packages.txt.
"""

from __future__ import annotations

import argparse
import io
import textwrap
from contextlib import closing
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import ParseError
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.format import format_action
from osworld_gym.uitars.parse import parse, thought_of
from osworld_gym.vector import DesktopVector

TASKS = ("varied-write-toggle-27", "varied-trash-inside-35", "varied-drag-59")
SCREEN = (640, 360)  #: of the shipped policy, pixels
PANEL = 240  #: width of the text beside the screen, pixels
READ, ACT, END = 700, 1100, 2600  #: milliseconds that the screen, the marked screen and the last one are shown
INK, MARK, PAPER = (30, 30, 30), (220, 30, 30), (250, 250, 250)


def play(tries: int) -> list[EpisodeResult]:
    """The first success of each task.

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
    options = EpisodeOptions(max_steps=8, scaling=policy.image_scaling)
    width, height = SCREEN
    with closing(DesktopVector(lambda: make_desktop("local", width=width, height=height), 4, options)) as vector:
        results = run_episodes(policy, vector, jobs)
    shown = []
    for name in TASKS:
        solved = [result for result in results if result.job.task.id == name and result.success]
        print(f"{name}: solved in {len(solved)} of {tries} tries")
        if not solved:
            raise SystemExit(f"{name} was not solved; try --tries {2 * tries}")
        shown.append(solved[0])
    return shown


def frames_of(result: EpisodeResult, scaling: ImageScaling) -> list[tuple[Image.Image, int]]:
    """The pictures of an episode and their times in milliseconds."""
    frames = []
    rows = [] if result.rows is None else row_list(result.rows)
    for number, row in enumerate(rows):
        with Image.open(io.BytesIO(row[K.SCREENSHOT])) as file:
            screen = file.convert("RGB")
        text = row[K.RESPONSE]
        try:
            actions = parse(text).actions
        except ParseError:
            actions = ()
        title = f"step {number + 1} of {len(rows)}"
        last = number == len(rows) - 1
        frames.append((beside(screen, result, title, "", ""), READ))
        mark_actions(screen, actions, scaling)
        action = "; ".join(format_action(a) for a in actions)
        action = " ".join(action.replace("<|box_start|>", "").replace("<|box_end|>", "").split())
        verdict = f"reward {float(result.success):g}" if last else ""
        frames.append((beside(screen, result, title, f"{thought_of(text)}\n\n{action}", verdict), END if last else ACT))
    return frames


def mark_actions(screen: Image.Image, actions: tuple[Action, ...], scaling: ImageScaling) -> None:
    """Draws a circle at each point of the actions, and a line along a drag."""
    draw = ImageDraw.Draw(screen)
    for action in actions:
        placed = scaling.action_to_screen(action, screen.size)
        points = [point for point in (placed.start, placed.end) if point is not None]
        if len(points) == 2:
            draw.line(points, fill=MARK, width=2)
        for point in points:
            draw.circle(point, 9, outline=MARK, width=3)


def beside(screen: Image.Image, result: EpisodeResult, title: str, text: str, verdict: str) -> Image.Image:
    """The screen with the task, the step and the policy's text on its right."""
    frame = Image.new("RGB", (screen.width + PANEL, screen.height), PAPER)
    frame.paste(screen, (0, 0))
    draw = ImageDraw.Draw(frame)
    left = screen.width + 12
    draw.multiline_text((left, 12), wrapped(result.job.task.instruction, 27), INK, font(16), spacing=4)
    draw.text((left, 110), title, MARK, font(14))
    draw.multiline_text((left, 138), wrapped(text, 30), INK, font(14), spacing=4)
    draw.text((left, screen.height - 40), verdict, (0, 130, 60), font(20))
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
    parser.add_argument("--out", type=Path, default=Path("docs/images/desktop.gif"))
    parser.add_argument("--tries", type=int, default=6)
    options = parser.parse_args()
    scaling = make_policy(load_config(["experiment=local"]), seed=0).image_scaling
    frames = [frame for result in play(options.tries) for frame in frames_of(result, scaling)]
    save(options.out, frames)
    print(f"{options.out}: {len(frames)} frames, {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
