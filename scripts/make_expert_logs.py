"""Writes examples/experts: made-up logs of four expert families, key for key as their runners write them.

    python scripts/make_expert_logs.py [FOLDER]

What happens in them is real: the oracles of three tasks of the suite ``sim`` on its simulated desktop. One run crashed,
one was interrupted, one failed, and one has coordinates of a scale that its family does not have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.pyautogui import to_pyautogui

FOLDER = Path(__file__).parents[1] / "examples" / "experts"
TASKS = ("sim-toggle-on-00", "sim-choose-00", "sim-toggle-off-02")
STAMP = "20251101@1200{:02d}"
_PYPERCLIP = (
    "import pyautogui; \ntry:\n    import pyperclip\nexcept ImportError:\n    import subprocess\n"
    "    subprocess.run('pip install pyperclip', shell=True, check=True)\n    import pyperclip\n\n"
)

Lines = Iterator[dict[str, Any]]


def lines_of(trace: ExpertTrace, line: Callable[[ExpertStep], dict[str, Any]], end: dict[str, Any]) -> Lines:
    """The base line of ``lib_run_single.py`` for each step and for the end, with what the family adds."""
    for number, extra in enumerate([*map(line, trace.steps), end], 1):
        stamp = STAMP.format(number)
        base = {
            "step_num": number,
            "action_timestamp": stamp,
            "reward": 0,
            "done": extra["action"] == "DONE",
            "info": {},
        }
        yield base | extra | {"screenshot_file": f"step_{number}_{stamp}.png"}


def agent_s2(trace: ExpertTrace) -> Lines:
    """Agent S2 by a runner that saves the agent's info."""
    end = {"executor_plan": "agent.done()", "plan_code": "agent.done()", "reflection": "agent.done()"}

    def line(step: ExpertStep) -> dict[str, Any]:
        info = {"subtask": trace.instruction, "executor_plan": step.plan, "plan_code": step.call, "reflection": None}
        return {"action": f"import pyautogui; {step.pyautogui}", "response": info}

    return lines_of(trace, line, {"action": "DONE", "response": end})


def agent_s3(trace: ExpertTrace) -> Lines:
    """Agent S3's own runner: the info is flat in the line; typing begins with a guarded import."""

    def line(step: ExpertStep) -> dict[str, Any]:
        source = f"{_PYPERCLIP if 'write' in step.pyautogui else 'import pyautogui; '}{step.pyautogui}"
        texts = {"plan": step.plan, "plan_code": step.call, "exec_code": source}
        return {"action": source, **texts, "reflection": "The trajectory goes as planned.", "code_agent_output": None}

    end = {"plan": "agent.done()", "plan_code": "agent.done()", "exec_code": "DONE", "reflection": None}
    return lines_of(trace, line, {"action": "DONE", **end, "code_agent_output": None})


def owl(scaling: ImageScaling) -> Callable[[ExpertTrace], Lines]:
    """GUI-Owl 1.5 whose coordinates have the given scale; its own is thousandths."""

    def lines(trace: ExpertTrace) -> Lines:
        def line(step: ExpertStep) -> dict[str, Any]:
            arguments = _tool(step.actions[0], scaling, trace.screen_size)
            return {"action": to_pyautogui(step.actions), "response": _response(step.intent, arguments)}

        end = _response("The task is done", {"action": "terminate", "status": "success"})
        return lines_of(trace, line, {"action": "DONE", "response": end})

    return lines


def _tool(action: Action, scaling: ImageScaling, size: tuple[int, int]) -> dict[str, Any]:
    if action.kind == "type":
        return {"action": "type", "text": action.content}
    if action.kind == "hotkey":
        return {"action": "key", "keys": (action.key or "").split()}
    assert action.kind == "click", action
    assert action.start is not None
    return {"action": "left_click", "coordinate": [round(value) for value in scaling.to_model(action.start, size)]}


def _response(said: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": "computer_use", "arguments": arguments})
    return f"Action: {said}.\n<tool_call>\n{call}\n</tool_call>"


def write_run(
    folder: Path, trace: ExpertTrace, lines: list[dict[str, Any]], *, result: str | None, tail: str = ""
) -> None:
    """One run as its runner leaves it: log, result, first screenshot and one after each line."""
    run = folder / "sim" / trace.task_id
    run.mkdir(parents=True, exist_ok=True)
    frames = [*trace.screenshots[1:], *[trace.final_screenshot or b""] * 2]
    (run / "step_0.png").write_bytes(trace.screenshots[0])
    for line, png in zip(lines, frames, strict=False):
        (run / line["screenshot_file"]).write_bytes(png)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (run / "traj.jsonl").write_text(text + tail, encoding="utf-8")
    if result is not None:
        (run / "result.txt").write_text(f"{result}\n", encoding="utf-8")


def write(folder: Path) -> None:
    """All runs."""
    tasks = {task.id: task for task in load_suite("sim").split("all")}
    desktop = SimDesktop()
    one, two, three = (record_expert(desktop, tasks[name], 0) for name in TASKS)
    clicks = [record_expert(desktop, tasks[name], 0, style="native") for name in TASKS]
    s2, s3, owl_1_5, wrong = (folder / name for name in ("agent_s2", "agent_s3", "gui_owl", "wrong_scale"))
    write_run(s2, one, list(agent_s2(one)), result="1.0")
    write_run(s2, two, list(agent_s2(two)), result="1.0")
    crash = json.dumps({"Error": f"Time limit exceeded in sim/{three.task_id}"}) + "\n"
    write_run(s2, three, list(agent_s2(three))[:1], result=None, tail=crash)
    write_run(s3, one, list(agent_s3(one)), result="True")
    write_run(s3, three, list(agent_s3(three))[:2], result=None)
    thousandths = owl(ImageScaling(relative=1000))
    write_run(owl_1_5, clicks[0], list(thousandths(clicks[0])), result="1.0")
    write_run(owl_1_5, clicks[2], list(thousandths(clicks[2]))[:2], result="0.0")
    write_run(wrong, clicks[1], list(owl(ImageScaling())(clicks[1])), result="1.0")
    for runs, model in ((s3, "claude-sonnet"), (owl_1_5, "gui-owl-1.5-7b"), (wrong, "gui-owl-1.5-7b")):
        (runs / "args.json").write_text(json.dumps({"model": model, "max_steps": 15}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
