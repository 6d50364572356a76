"""Seconds of ``bepa experts check`` on a folder of runs, compared with decoding every screenshot as well.

    python -m benchmarks.experts_check [--runs 400] [--steps 15] [--screen 1920x1080]

The folder is made of Agent S2 and GUI-Owl 1.5 runs on random pictures. Both figures include the reading of all logs;
for both the files are in the operating system's cache.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from bepa_torchrl.experts.readers.check import check_sources
from osworld_gym.commands.arguments import screen_size

CODE = "import pyautogui; pyautogui.click({}, {})"


def picture(rng: np.random.Generator, size: tuple[int, int]) -> bytes:
    """A PNG of random rectangles, roughly as large as a desktop's screenshot."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    for _ in range(300):
        x, y = rng.integers(size[0]), rng.integers(size[1])
        pixels[y : y + 60, x : x + 200] = rng.integers(256, size=3)
    pixels[: size[1] // 8] = rng.integers(256, size=(size[1] // 8, size[0], 3))  # a photograph
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def write(root: Path, runs: int, steps: int, size: tuple[int, int]) -> None:
    """The folder of runs; the pictures of a run are links to a few files."""
    rng = np.random.default_rng(0)
    pool = [root / f"picture-{i}.png" for i in range(8)]
    for path in pool:
        path.write_bytes(picture(rng, size))
    for number in range(runs):
        family = ("agent_s2", "gui_owl_1_5")[number % 2]
        run = root / family / "os" / f"task-{number:04d}"
        run.mkdir(parents=True)
        (run / "step_0.png").hardlink_to(pool[number % 8])
        lines = []
        for step in range(1, steps + 1):
            name = f"step_{step}.png"
            (run / name).hardlink_to(pool[(number + step) % 8])
            x, y = (int(part) for part in rng.integers(1000, size=2))
            line = {"step_num": step, "reward": 0, "done": step == steps, "info": {}, "screenshot_file": name}
            lines.append(json.dumps(line | action(family, x, y, size)))
        (run / "traj.jsonl").write_text("\n".join(lines))
        (run / "result.txt").write_text("1.0\n" if number % 3 else "0.0\n")


def action(family: str, x: int, y: int, size: tuple[int, int]) -> dict[str, object]:
    """A click at thousandths (x, y) of the screen, as the family logs it."""
    code = CODE.format(x * size[0] / 1000, y * size[1] / 1000)
    if family == "agent_s2":
        text = f"(Screenshot Analysis)\nA window.\n\n(Next Action)\nClick it.\n\n(Grounded Action)\n{code}"
        return {"action": code, "response": {"executor_plan": text, "plan_code": "agent.click('it')"}}
    call = json.dumps({"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}})
    return {"action": code, "response": f"Action: Click it.\n<tool_call>\n{call}\n</tool_call>"}


def decoded(root: Path) -> None:
    """The baseline: the same check, and every screenshot is decoded."""
    check_sources([str(root)])
    for path in root.rglob("step_*.png"):
        with Image.open(path) as image:
            image.load()


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Prints both times and their ratio; returns the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--screen", type=screen_size, default=(1920, 1080), metavar="WxH")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, options.runs, options.steps, options.screen)
        size = (root / "picture-0.png").stat().st_size
        checked = check_sources([str(root)])
        assert len(checked.runs) == options.runs
        assert not any(run.skipped for run in checked.runs)
        headers = seconds(lambda: check_sources([str(root)]))
        everything = seconds(lambda: decoded(root))
    print(f"{options.runs} runs of {options.steps} steps, screenshots of {size / 1e6:.1f} MB")
    print(f"headers only {headers:.2f} s, all pictures decoded {everything:.2f} s: {everything / headers:.0f} times")
    return headers, everything


if __name__ == "__main__":
    main()
