"""The episode that is shown before and after training: which one is chosen, and what its pictures are made from."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bepa_torchrl.monitoring.before_after import BASE, draw_before_after, find_pair
from bepa_torchrl.storage.record_format import OUTCOMES, image_path
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.format import describe_action

TEXT = "Thought: click mute\nAction: click(start_box='<|box_start|>(32,16)<|box_end|>')"


def episode(task: str, reward: float | None, *, mode: str = "greedy", slot: int = 0, steps: int = 1) -> dict[str, Any]:
    stop = "env_error" if reward is None else ("finished" if reward else "max_steps")
    return {
        "task_id": task, "reward": reward, "mode": mode, "slot": slot, "stop_reason": stop, "instruction": "mute it",
        "steps": [{"screenshot": "", "text": TEXT}] * steps,
    }  # fmt: skip


def test_a_learned_greedy_episode_of_the_task_that_improved_most_is_shown() -> None:
    sampled = [(0.0, 1.0), (0.0, 1.0), (1.0, 1.0)]
    before = [episode("a", 0.0), episode("b", 0.0), episode("c", 1.0)]
    after = [episode("a", 1.0), episode("b", 1.0), episode("c", 1.0)]
    for slot, (one, other) in enumerate(sampled):
        before += [episode("a", 1.0, mode="sampled", slot=slot), episode("b", one, mode="sampled", slot=slot)]
        after += [episode("a", 1.0, mode="sampled", slot=slot), episode("b", other, mode="sampled", slot=slot)]
    pair = find_pair(before, {"bepa": after})
    assert pair is not None
    assert pair.learned
    # b: 1 of 4 before, 4 of 4 after; a: 3 of 4 before, 4 of 4 after
    assert (pair.after["task_id"], pair.after["mode"]) == ("b", "greedy")
    assert str(pair) == "b, bepa, before failed (max steps), after solved"


def test_the_first_method_that_learned_something_is_shown() -> None:
    methods = {"bepa": [episode("a", 0.0)], "grpo": [episode("a", 1.0)]}
    pair = find_pair([episode("a", 0.0)], methods)
    assert pair is not None
    assert (pair.method, pair.learned) == ("grpo", True)


def test_without_a_learned_one_a_success_that_stays_is_shown_and_it_says_so() -> None:
    before = [episode("a", 0.0), episode("b", 1.0), episode("c", 1.0)]
    pair = find_pair(before, {"bepa": [episode("a", 0.0), episode("b", 0.0), episode("c", 1.0, steps=3)]})
    assert pair is not None
    assert pair.after["task_id"] == "c"
    assert "no episode failed before and succeeded after" in str(pair)


def test_actions_that_ui_tars_does_not_have_are_shown() -> None:
    assert describe_action(Action("scroll", direction="down", clicks=3)) == "scroll(direction='down', clicks=3)"
    assert describe_action(Action("scroll", direction="down")) == "scroll(direction='down')"
    assert describe_action(Action("middle_single", start=(1, 2))) == "middle_single(start=(1, 2))"


def test_episodes_whose_desktop_failed_are_not_shown() -> None:
    failed = episode("a", None, steps=0)
    assert find_pair([failed], {"bepa": [episode("a", 1.0)]}) is None
    assert find_pair([episode("a", 0.0)], {"bepa": [failed]}) is None


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two screens of 64 x 32 pixels before, one after; the last line of a file is an episode without a counterpart."""
    for name, shades in ((BASE, (40, 90)), ("bepa", (40,))):
        steps = []
        for shade in shades:
            file = io.BytesIO()
            Image.new("RGB", (64, 32), (shade, shade, shade)).save(file, "PNG")
            digest = hashlib.sha256(file.getvalue()).hexdigest()
            path = image_path(tmp_path / name, digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.getvalue())
            steps.append({"screenshot": digest, "text": TEXT})
        one = episode("a", float(name == "bepa")) | {"steps": steps}
        lines = [one, episode(f"only {name}", 1.0)]
        (tmp_path / name / OUTCOMES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_the_gif_shows_every_step_with_its_point_and_then_the_result(run: Path) -> None:
    found = draw_before_after(run, ["bepa"], ImageScaling(factor=1, min_pixels=1))
    assert found is not None
    path, pair = found
    assert pair.learned
    with Image.open(path) as gif:
        assert gif.n_frames == 3  # two steps before training, one after, and the result
        size, frames = gif.size, []
        for number in range(3):
            gif.seek(number)
            frames.append(gif.convert("RGB"))
    assert size[0] == 2 * 480 + 3 * 8
    # the screen's point (32, 16) of 64 x 32 is the middle of a panel of 480 x 240, under 48 pixels of text;
    # the circle has a radius of 9
    for left in (8, 8 + 480 + 8):
        red, green, blue = frames[0].getpixel((left + 240 + 8, 48 + 120))
        assert red > 150 > max(green, blue)
    assert frames[0].getpixel((8 + 20, 48 + 20))[0] == pytest.approx(40, abs=6)
    assert frames[1].getpixel((8 + 20, 48 + 20))[0] == pytest.approx(90, abs=6)
    assert frames[1].getpixel((8 + 480 + 8 + 20, 48 + 20))[0] == pytest.approx(40, abs=6)  # its last screen stays


def test_a_run_without_recorded_evaluations_has_no_picture(tmp_path: Path) -> None:
    assert draw_before_after(tmp_path, ["bepa"], ImageScaling()) is None
