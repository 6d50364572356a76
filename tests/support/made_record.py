"""A run's folder made by hand, of any size: training episodes in groups, metrics, and the expert's trace of a task."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

SETTINGS = """policy:
  checkpoint: tiny
  action_text: uitars
algo:
  name: bepa
train:
  iterations: 9
expert:
  plan_source: raw
"""
GROUP = 8
CLICK = "Thought: I press {0}.\nAction: click(start_box='<|box_start|>(40,24)<|box_end|>')"
#: what a model may write to attack the page
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\u202e\x07 ${alert(3)} __proto__"


def made_picture(color: int, size: tuple[int, int] = (128, 128)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (color % 256, 90, 160)).save(buffer, format="PNG")
    return buffer.getvalue()


def save_picture(method: Path, data: bytes) -> str:
    """Stores a screenshot as a run does; returns its hash."""
    name = hashlib.sha256(data).hexdigest()
    path = method / "images" / name[:2] / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


def made_step(screenshot: str, text: str, **fields: Any) -> dict[str, Any]:
    tokens = [319, 292, 573, 320]  # of the tiny tokenizer
    log_probs = [-0.01, -0.7, None, -2.0]
    return {"screenshot": screenshot, "text": text, "tokens": tokens, "log_probs": log_probs} | fields


def made_line(number: int, steps: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A line of ``episodes.jsonl``: the first of each group of eight succeeds; one in five tasks fails."""
    group, slot = divmod(number, GROUP)
    success = slot == 0 and group % 5 != 0
    return {
        "iteration": 1 + group // 16,
        "group_id": group,
        "slot": slot,
        "task_id": f"task-{group % 64:02d}",
        "instruction": f"Do the thing {group % 64}.",
        "source": "on_policy",
        "provenance": None,
        "off_policy": False,
        "trained": True,
        "policy_version": group // 16,
        "stop_reason": "finished" if slot % 3 else "max_steps",
        "reward": float(success),
        "advantage": 2.0 if success else -0.5,
        "failure": None,
        "steps": steps,
    } | fields


def made_run(folder: Path, episodes: int, steps: int = 2) -> Path:
    """A run of one method, ``bepa``; returns its folder."""
    method = folder / "bepa"
    method.mkdir(parents=True)
    (method / "config.yaml").write_text(SETTINGS)
    names = [save_picture(method, made_picture(color)) for color in range(16)]
    with (method / "episodes.jsonl").open("w") as file:
        for number in range(episodes):
            found = [made_step(names[(number + i) % 16], CLICK.format(f"button-{number % 97}")) for i in range(steps)]
            file.write(json.dumps(made_line(number, found)) + "\n")
    iterations = 1 + episodes // (16 * GROUP)
    write_lines(method / "iterations.jsonl", [made_metrics(number) for number in range(1, iterations + 1)])
    return folder


def made_metrics(iteration: int) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "collect/success": iteration / 100,
        "collect/entropy": 1 / iteration,
        "cache/injected": float(iteration % 3),
        "collect/failed_died": float(iteration % 2),
        "policy_version": float(2 * iteration),
        "train/optimizer_steps": 2.0,
    }


def write_lines(path: Path, lines: list[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def page_data(out: Path, name: str) -> Any:
    """The data of one script of the pages."""
    script = (out / "data" / f"{name}.js").read_text()
    start = script.index("JSON.parse(") + len("JSON.parse(")
    return json.loads(json.loads(script[start : script.rindex("));")]))
