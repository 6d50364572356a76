"""``before-after.gif``: one evaluated episode before and after training, side by side, from a run's own screenshots.

The base policy's evaluation and the final one of each method start from the same screens, so that an episode of one has
its counterpart in the other. They are in ``outcomes.jsonl`` of ``base/`` and of the method (``record.outcomes=true``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.storage.record_format import OUTCOMES, image_path
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.atomic import write_with
from osworld_gym.errors import ParseError
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.format import describe_action

BASE = "base"  #: folder of the base policy's episodes, next to the methods'
FILE = "before-after.gif"
_WIDTH, _MARGIN, _LINE = 480, 8, 20  #: of a panel, around it, and of a line of text, pixels
_STEP, _END = 1400, 4000  #: milliseconds that a step and the last picture are shown
_PAPER, _INK, _MARK = "white", "black", (220, 30, 30)
Episode = Mapping[str, Any]  #: one line of ``outcomes.jsonl``


@dataclass(frozen=True)
class Pair:
    """The same episode before and after training.

    Args:
        method: that trained in between.
        before: the base policy's.
        after: the trained policy's.
    """

    method: str
    before: Episode
    after: Episode

    @property
    def learned(self) -> bool:
        """Whether it failed before and succeeded after."""
        return not self.before["reward"] and bool(self.after["reward"])

    def __str__(self) -> str:
        ends = [f"{name} {_verdict(episode)}" for name, episode in (("before", self.before), ("after", self.after))]
        note = "" if self.learned else "; no episode failed before and succeeded after, so one is shown that did not"
        return f"{self.before['task_id']}, {self.method}, {', '.join(ends)}{note}"


def find_pair(before: Sequence[Episode], after: Mapping[str, Sequence[Episode]]) -> Pair | None:
    """The episode to show: one that was learned, greedy if possible, of the task that improved most.

    Without any, one with the same result before and after, if possible a success. Episodes whose desktop failed are
    left out.

    Args:
        before: the base policy's episodes.
        after: method → its episodes; the first method that learned one is shown.

    Returns:
        None if no episode was played before and after.
    """
    base = {_key(episode): episode for episode in before if _played(episode)}
    pairs = [
        Pair(method, base[_key(episode)], episode)
        for method, episodes in after.items()
        for episode in episodes
        if _played(episode) and _key(episode) in base
    ]
    gains = {method: _gains(before, episodes) for method, episodes in after.items()}
    order = list(after)

    def rank(pair: Pair) -> tuple[Any, ...]:
        """The smallest is shown."""
        task, kept = pair.after["task_id"], pair.before["reward"] == pair.after["reward"]
        better = (not pair.learned, not pair.learned and not kept, not pair.after["reward"])
        tie = (pair.after["mode"] != "greedy", -gains[pair.method][task], len(pair.after["steps"]), task)
        return (*better, order.index(pair.method), *tie, pair.after["slot"])

    return min(pairs, key=rank, default=None)


def draw_before_after(
    run: Path, methods: Sequence[str], scaling: ImageScaling, action_text: str = "uitars"
) -> tuple[Path, Pair] | None:
    """Draws ``before-after.gif`` into the run's folder.

    Args:
        run: folder of the run, with ``base/`` and a folder per method.
        methods: to choose the episode from, the preferred first.
        scaling: from the points of the policy's text to pixels.
        action_text: the action text of the responses, a name of :data:`osworld_gym.action_text.ACTION_TEXTS`.

    Returns:
        its path and the episode; None if no episode was played before and after.
    """
    pair = find_pair(read_outcomes(run / BASE), {method: read_outcomes(run / method) for method in methods})
    if pair is None:
        return None
    panels = [
        _Panel(run / BASE, "before training", pair.before, scaling, action_text),
        _Panel(run / pair.method, f"after {pair.method}", pair.after, scaling, action_text),
    ]
    count = max(len(pair.before["steps"]), len(pair.after["steps"]))
    frames = [_frame(pair.before["instruction"], panels, number) for number in range(count + 1)]
    shared = _palette(frames)
    coded = [frame.quantize(palette=shared, dither=Image.Dither.NONE) for frame in frames]
    times = [*[_STEP] * count, _END]
    path = run / FILE
    write_with(
        path,
        lambda part: coded[0].save(part, save_all=True, append_images=coded[1:], duration=times, loop=0),
    )
    return path, pair


def read_outcomes(folder: Path) -> list[dict[str, Any]]:
    """The evaluated episodes of a method, or of the base policy; empty if they were not recorded."""
    path = folder / OUTCOMES
    return read_lines(path) if path.exists() else []


def _key(episode: Episode) -> tuple[str, str, int]:
    return episode["mode"], episode["task_id"], episode["slot"]


def _played(episode: Episode) -> bool:
    return episode["reward"] is not None and bool(episode["steps"])


def _gains(before: Sequence[Episode], after: Sequence[Episode]) -> dict[str, float]:
    """Per task, the mean reward after minus that before, over all episodes without a failure."""
    means = []
    for episodes in (before, after):
        rewards: dict[str, list[float]] = defaultdict(list)
        for episode in episodes:
            if episode["reward"] is not None:
                rewards[episode["task_id"]].append(episode["reward"])
        means.append({task: sum(each) / len(each) for task, each in rewards.items()})
    return {task: mean - means[0].get(task, 0.0) for task, mean in means[1].items()}


def _verdict(episode: Episode) -> str:
    return "solved" if episode["reward"] else f"failed ({episode['stop_reason'].replace('_', ' ')})"


# --- the pictures ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Panel:
    """One of the two episodes.

    Args:
        record: folder whose ``images`` has its screenshots.
        title: above the screenshot.
        episode: what is shown.
        scaling: the scaling of the policy's points.
        action_text: the action text of its responses.
    """

    record: Path
    title: str
    episode: Episode
    scaling: ImageScaling
    action_text: str

    def picture(self, number: int) -> Image.Image:
        """The screenshot before step ``number``, or the last one, with the point that the policy names."""
        steps = self.episode["steps"]
        step = steps[min(number, len(steps) - 1)]
        with Image.open(image_path(self.record, step["screenshot"])) as file:
            screen = file.convert("RGB")
        width, height = screen.size
        shown = (_WIDTH, round(_WIDTH * height / width))
        small = screen.resize(shown, Image.Resampling.LANCZOS if width > _WIDTH else Image.Resampling.NEAREST)
        for x, y in _points(step["text"], self.action_text, self.scaling, screen.size):
            at = x * shown[0] / width, y * shown[1] / height
            ImageDraw.Draw(small).circle(at, 9, outline=_MARK, width=3)
        return small

    def captions(self, number: int) -> tuple[str, str, str]:
        """Title, thought and action; after the last step the result."""
        steps = self.episode["steps"]
        if number >= len(steps):
            return f"{self.title}: {_verdict(self.episode)}", "", ""
        text = steps[number]["text"]
        thought = ACTION_TEXTS[self.action_text].thought_of(text)
        action = "; ".join(describe_action(action) for action in _actions(text, self.action_text))
        return f"{self.title}: step {number + 1}", f"Thought: {thought}", f"Action: {_plain(action)}"


def _frame(instruction: str, panels: Sequence[_Panel], number: int) -> Image.Image:
    """Both panels at a step, under the instruction."""
    pictures = [panel.picture(number) for panel in panels]
    tallest = max(picture.height for picture in pictures)
    top = _MARGIN + 2 * _LINE
    size = (len(panels) * (_WIDTH + _MARGIN) + _MARGIN, top + tallest + 2 * _LINE + 2 * _MARGIN)
    frame = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(frame)
    draw.text((_MARGIN, _MARGIN // 2), _fitted(draw, instruction, size[0] - 2 * _MARGIN), fill=_INK, font=_font())
    for i, (panel, picture) in enumerate(zip(panels, pictures, strict=True)):
        left = _MARGIN + i * (_WIDTH + _MARGIN)
        title, *below = panel.captions(number)
        draw.text((left, _MARGIN // 2 + _LINE), _fitted(draw, title, _WIDTH), fill=_MARK, font=_font())
        frame.paste(picture, (left, top))
        draw.rectangle((left, top, left + _WIDTH - 1, top + picture.height - 1), outline="gray")
        for line, text in enumerate(below):
            at = (left, top + tallest + _MARGIN // 2 + line * _LINE)
            draw.text(at, _fitted(draw, text, _WIDTH), fill=_INK, font=_font())
    return frame


def _palette(frames: Sequence[Image.Image]) -> Image.Image:
    """One palette for all frames, so that a still part of the screen does not change its colour."""
    width, height = frames[0].size
    every = Image.new("RGB", (width, height * len(frames)))
    for number, frame in enumerate(frames):
        every.paste(frame, (0, number * height))
    return every.quantize(128)


def _actions(text: str, action_text: str) -> tuple[Action, ...]:
    """The actions of a response; none if it cannot be parsed."""
    try:
        return ACTION_TEXTS[action_text].parse(text).actions
    except ParseError:
        return ()


def _points(text: str, action_text: str, scaling: ImageScaling, screen: tuple[int, int]) -> list[tuple[float, float]]:
    """The points of a response's actions in screen pixels; none if it cannot be parsed."""
    actions = [scaling.action_to_screen(action, screen) for action in _actions(text, action_text)]
    return [point for action in actions for point in (action.start, action.end) if point is not None]


def _plain(action: str) -> str:
    """An action's text without the tokens around a point."""
    return " ".join(action.replace("<|box_start|>", "").replace("<|box_end|>", "").split())


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(14)  # part of Pillow: the same on every machine


def _fitted(draw: ImageDraw.ImageDraw, text: str, width: int) -> str:
    """The beginning of a text's only line that is not wider than ``width`` pixels."""
    line = " ".join(text.split())[:200]
    if draw.textlength(line, font=_font()) <= width:
        return line
    while line and draw.textlength(f"{line}...", font=_font()) > width:
        line = line[:-1]
    return f"{line}..."
