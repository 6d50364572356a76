"""Small made-up trajectories in the two layouts of Online-Mind2Web, key for key, and a judge that answers by script."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chat_server import Reply
from PIL import Image

from bepa_torchrl.evaluation.web.trajectories import WebStep, write_trajectory
from osworld_gym.tasks.suites.web import WebTask

SITE = "https://www.shop.example/"
KEY_POINTS = "**Key Points**:\n1. find it"


def png(width: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, 8), "white").save(buffer, format="PNG")
    return buffer.getvalue()


def task(name: str, level: str = "easy") -> WebTask:
    return WebTask(name, f"Find the {name}", SITE, 4, level)


def data_file(path: Path, *tasks: WebTask) -> Path:
    lines = [
        {
            "task_id": each.id, "confirmed_task": each.text, "website": each.website,
            "reference_length": each.reference_length, "level": each.level,
        }
        for each in tasks
    ]  # fmt: skip
    path.write_text(json.dumps(lines), encoding="utf-8")
    return path


def steps(answer: str = "it is 7", actions: int = 2) -> list[WebStep]:
    done = [WebStep(f"page -> NAVIGATE -> {SITE}{n} | SUCCESS", SITE, f"I go to {n}.") for n in range(actions)]
    return [*done, WebStep(f"TASK_COMPLETE -> ANSWER: {answer}", SITE)]


def second(root: Path, task: WebTask, answer: str = "it is 7", actions: int = 2) -> Path:
    """A trajectory in v2."""
    made = steps(answer, actions)
    return write_trajectory(root, task, made, [png()] * len(made), answer)


def first(root: Path, task: WebTask, pictures: int = 3) -> Path:
    """A trajectory in v1; picture n is 8 + n pixels wide."""
    folder = root / task.id
    (folder / "trajectory").mkdir(parents=True)
    for number in range(pictures):
        (folder / "trajectory" / f"{number}_full_screenshot.png").write_bytes(png(8 + number))
    result = {
        "task_id": task.id, "task": task.text, "final_result_response": "it is 7",
        "action_history": [f"Click at ({number}, 1)" for number in range(pictures)],
        "thoughts": [f"I click {number}." for number in range(pictures)],
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def stage(request: dict[str, Any]) -> int:
    """1, 2 or 3."""
    system = request["messages"][0]["content"]
    return next(n for n, word in ((1, "**Key Points**"), (2, "**Score**"), (3, "Status:")) if word in system)


def text_of(request: dict[str, Any]) -> str:
    return str(request["messages"][1]["content"][0]["text"])


def pictures_of(request: dict[str, Any]) -> int:
    return len(request["messages"][1]["content"]) - 1


def judge(
    *, score: str = "**Reasoning**: it shows.\n**Score**: 4", status: Callable[[str], str] = lambda _: "success"
) -> Callable[[dict[str, Any]], Reply]:
    """A judge: ``status`` maps the task's name to what comes after ``Status:``."""

    def script(request: dict[str, Any]) -> Reply:
        number = stage(request)
        if number == 1:
            return Reply(KEY_POINTS)
        if number == 2:
            return Reply(score)
        name = re.search(r"Find the (\S+)", text_of(request))
        assert name is not None
        return Reply(f'Thoughts: seen.\nStatus: "{status(name[1])}"')

    return script
