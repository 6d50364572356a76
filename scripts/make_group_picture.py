"""Makes docs/images/group.png: one real group of the simulated desktop before and after trace replacement.

    python -m scripts.make_group_picture [--out docs/images/group.png] [--seed 0]

The shipped tiny policy plays groups of eight rollouts, in the order of training, with the functions of
examples/bepa_loop.py (tested to equal the trainer). The first group without a success whose task has a self-rolled
trace of at least three steps is drawn: last screens, rewards, advantages before and after, and the injected trace.
"""

from __future__ import annotations

import argparse
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.rollout.task_schedule import TaskSchedule
from examples.bepa_loop import Episode, advantages, injected, level1, play
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.uitars.parse import thought_of
from osworld_gym.vector import DesktopVector

N = 8  #: rollouts of a group
SCREEN, GAP, LEFT = 128, 12, 150  #: side of a screen, space between two, and width of the names of rows, pixels
INK, GREY, GREEN, RED, PAPER = (30, 30, 30), (110, 110, 110), (0, 130, 60), (200, 40, 40), (255, 255, 255)


def find_group(seed: int) -> tuple[list[Episode], list[Episode], str]:
    """The group as it was played, the group after replacement, and the expert's plan.

    Raises:
        SystemExit: no group of the first pass over the tasks is replaced.
    """
    torch.set_num_threads(1)
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    tasks = sim_suite().split("train")
    schedule = TaskSchedule(len(tasks), seed)
    with DesktopVector(SimDesktop, 64, EpisodeOptions(scaling=policy.image_scaling)) as vector:
        cache = level1(policy, vector, tasks, seed)
        for number in schedule.next_batch(len(tasks)):
            keys = [episode_key(seed, Stream.ROLLOUT, 0, number, slot) for slot in range(N)]
            group = [Episode(tasks[number], key, desktop_seed(key[:-1])) for key in keys]
            play(policy, vector, group)
            trace = cache.get(tasks[number].id)
            if trace is not None and len(trace.steps) >= 3 and not any(episode.reward for episode in group):
                return group, [injected(policy, trace, 64), *group[1:]], trace.plan or ""
    raise SystemExit(f"no group was replaced with seed {seed}; try another --seed")


def draw(group: Sequence[Episode], after: Sequence[Episode], plan: str) -> Image.Image:
    """The picture: two rows of last screens, then the injected trace step by step."""
    width, height = LEFT + N * (SCREEN + GAP), 690
    picture = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(picture)
    pen.text((GAP, 10), f"One task: “{group[0].task.instruction}”", INK, font(20))
    row(picture, 50, "before\nreplacement:\nall eight\nrollouts fail,\nno gradient", group, ())
    row(picture, 255, "after:\nthe first failure\nis replaced by the\npolicy's own\ntrace", after, (0,))
    trace = after[0]
    pen.multiline_text((GAP, 465), "the injected\ntrace, step by\nstep (LEVEL-1)", INK, font(15), spacing=4)
    for number, (png, step) in enumerate(zip(trace.screenshots[:N], trace.steps[:N], strict=False)):
        left = LEFT + number * (SCREEN + GAP)
        picture.paste(screen(png), (left, 460))
        pen.text((left, 592), shortened(thought_of(step.text), 20), INK, font(13))
    shown = textwrap.shorten(" ".join(plan.split()), 140, placeholder=" …")
    pen.text(
        (GAP, 630), f"It was sampled by the same policy with the expert's plan in its prompt: “{shown}”", GREY, font(14)
    )
    pen.text((GAP, 655), "The plan is not in the prompt that is trained on.", GREY, font(14))
    return picture


def row(picture: Image.Image, top: int, title: str, group: Sequence[Episode], replaced: Sequence[int]) -> None:
    """The last screens of a group with rewards and advantages; replaced slots are framed."""
    pen = ImageDraw.Draw(picture)
    pen.multiline_text((GAP, top + 5), title, INK, font(15), spacing=4)
    for slot, (episode, advantage) in enumerate(zip(group, advantages(group, 1e-6), strict=True)):
        left = LEFT + slot * (SCREEN + GAP)
        picture.paste(screen(episode.screenshots[-1]), (left, top))
        if slot in replaced:
            pen.rectangle((left - 4, top - 4, left + SCREEN + 3, top + SCREEN + 3), outline=GREEN, width=4)
        colour = GREEN if advantage > 0 else RED if advantage < 0 else GREY
        pen.text((left, top + SCREEN + 8), f"reward {episode.reward:g}", INK, font(15))
        pen.text(
            (left, top + SCREEN + 28), f"advantage {advantage:+.2f}" if advantage else "advantage 0", colour, font(15)
        )


def screen(png: bytes) -> Image.Image:
    """A screenshot at the picture's size."""
    with Image.open(io.BytesIO(png)) as file:
        return file.convert("RGB").resize((SCREEN, SCREEN), Image.Resampling.NEAREST)


def shortened(text: str, length: int) -> str:
    """The beginning of a text, at most ``length`` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, the same on every machine."""
    return ImageFont.load_default(size)


def main() -> None:
    """Plays, draws and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/group.png"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    group, after, plan = find_group(options.seed)
    draw(group, after, plan).quantize(255).save(options.out, optimize=True)
    print(f"{options.out}: {group[0].task.id}")


if __name__ == "__main__":
    main()
