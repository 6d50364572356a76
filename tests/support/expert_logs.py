"""Run folders as OSWorld's runners write them, key for key, on small frames."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from expert_fixtures import executor_plan, frame

from osworld_gym.tasks.task import Task

TASK = Task("11111111-2222-3333-4444-555555555555", "Press OK", evaluator={"func": "x"})
OTHER = Task("21111111-2222-3333-4444-555555555555", "Press cancel", evaluator={"func": "x"})
SCREEN = (1920, 1080)
CLICK = "import pyautogui; pyautogui.click(960, 540, clicks=1, button='left')"
PYPERCLIP = (
    "import pyautogui; \ntry:\n    import pyperclip\nexcept ImportError:\n    import subprocess\n"
    "    subprocess.run('install', shell=True)\n    import pyperclip\n\n"
)


def line(number: int, action: Any, **more: Any) -> dict[str, Any]:
    """The base line of ``lib_run_single.py``; a key whose value is ``...`` is left out."""
    stamp = f"20250801@1200{number:02d}"
    base = {
        "step_num": number,
        "action_timestamp": stamp,
        "action": action,
        "reward": 0,
        "done": action in ("DONE", "FAIL"),
        "info": {},
        "screenshot_file": f"step_{number}_{stamp}.png",
    }
    return {key: value for key, value in (base | more).items() if value is not ...}


def write_run(
    root: Path,
    lines: list[Any],
    *,
    task: str = TASK.id,
    result: str | None = "1.0\n",
    first: str | None = "step_0.png",
    args: dict[str, Any] | None = None,
    model: str = "model",
    size: tuple[int, int] = SCREEN,
) -> Path:
    """A run's folder; a line that is a text is written as it is."""
    run = root / "pyautogui" / "screenshot" / model / "os" / task
    run.mkdir(parents=True)
    if first is not None:
        (run / first).write_bytes(frame(0, size))
    for number, each in enumerate(lines, 1):
        name = each.get("screenshot_file") if isinstance(each, dict) else None
        if isinstance(name, str) and re.fullmatch(r"step_[\w@]+\.png", name):  # never outside of the folder
            (run / name).write_bytes(frame(number, size))
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) + "\n" for each in lines]
    (run / "traj.jsonl").write_bytes("".join(texts).encode())
    if result is not None:
        (run / "result.txt").write_text(result)
    if args is not None:
        (run.parents[1] / "args.json").write_text(json.dumps(args))
    return run


def plan(call: str) -> str:
    """Agent S's text of a step."""
    return executor_plan("The dialog is open.", "Click the OK button.", call)


def s2(number: int, action: Any, call: str = "agent.click('OK', 1, 'left')", **more: Any) -> dict[str, Any]:
    """A line of Agent S2 whose runner saves the agent's info as the response."""
    info = {"executor_plan": plan(call), "plan_code": call, "reflection": None, "subtask": "Confirm"}
    return line(number, action, response=info, **more)


def good() -> list[dict[str, Any]]:
    """A run of two steps by Agent S2."""
    return [s2(1, CLICK), s2(2, "DONE", "agent.done()")]


def owl(number: int, action: Any, arguments: dict[str, Any], *, form: str = "thinking") -> dict[str, Any]:
    """A line of GUI-Owl 1.0 (``thinking``) or 1.5 (``action``)."""
    call = "<tool_call>\n" + json.dumps({"name": "computer_use", "arguments": arguments}) + "\n</tool_call>"
    texts = {
        "thinking": f"<thinking>The dialog is open.</thinking>\n{call}\n<conclusion>Click OK.</conclusion>",
        "action": f"Action: Click the OK button.\n{call}",
    }
    return line(number, action, response=texts[form])
