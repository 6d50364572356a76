"""Hand-made traces in Agent S2's form, on small frames that differ in colour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bepa_torchrl.experts import ExpertTrace
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action, Screenshot


def frame(colour: int, size: tuple[int, int] = (56, 28)) -> bytes:
    """A PNG of one colour, (width, height)."""
    return Screenshot(pixels=np.full((size[1], size[0], 3), colour, np.uint8)).png


def executor_plan(analysis: str, action: str, call: str, before: str = "The previous action was successful.") -> str:
    return (
        f"(Previous action verification)\n{before}\n\n(Screenshot Analysis)\n{analysis}\n\n"
        f"(Next Action)\n{action}\n\n(Grounded Action)\n```python\n{call}\n```"
    )


def step(
    intent: str,
    pyautogui: str,
    actions: tuple[Action, ...] = (),
    *,
    before: str = "The previous action was successful.",
    call: str = "agent.click('it', 1, 'left')",
    subtask: str = "Mute the sound",
    reflection: str | None = None,
) -> ExpertStep:
    plan = executor_plan(f"The window shows {intent}. It is open.", f"{intent} now.", call, before)
    return ExpertStep(subtask, plan, reflection, call, pyautogui, intent, actions)


def sound_trace() -> ExpertTrace:
    """Open settings (failed, again), a pop-up, wait, type, note (framework memory), done: 8 steps."""
    click = (Action("click", start=(10, 20)),)
    steps = (
        step("Click settings", "pyautogui.click(10, 20, clicks=1, button='left')", click, before="No previous action."),
        step("Click settings", "pyautogui.click(10, 20, clicks=1, button='left')", click, before="It failed."),
        step("Close the pop-up", "pyautogui.press('escape')", (Action("hotkey", key="esc"),)),
        step("Wait", "import time; time.sleep(2);", (Action("wait"),), call="agent.wait(2)"),
        step("Note the volume", "WAIT", (), call="agent.save_to_knowledge(['7'])"),
        step("Enter the volume", "DONE", (), call="agent.done()"),
        step(
            "Type the volume",
            "pyautogui.write('7'); pyautogui.press('enter')",
            (Action("type", content="7\n"),),
            subtask="Set the volume",
            reflection="All goes well.",
        ),
        step("Finish", "DONE", (Action("finished"),), call="agent.done()", subtask="Set the volume"),
    )
    screenshots = tuple(frame(i) for i in range(8))
    return ExpertTrace("os/sound 1", "Set the volume to 7", "agent_s2", steps, screenshots, True, frame(8), 5)


def write_log(
    folder: Path, lines: list[dict], *, score: str = "1.0", size: tuple[int, int] = (56, 28), task: str = "tab-1"
) -> Path:
    """A run of the task below ``folder`` as OSWorld's runner leaves it, with one screenshot per line."""
    run = folder / "chrome" / task
    run.mkdir(parents=True)
    (run / "step_0.png").write_bytes(frame(0, size))
    for number, line in enumerate(lines, 1):
        line.setdefault("screenshot_file", f"step_{number}_20260101@000000.png")
        (run / line["screenshot_file"]).write_bytes(frame(number, size))
    (run / "traj.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "result.txt").write_text(score + "\n")
    return run


def s2_lines() -> list[dict]:
    """An Agent S2 run of two steps."""
    plan = executor_plan("Chrome is open.", "Reopen the tab.", "agent.hotkey(['ctrl', 'shift', 't'])")
    return [
        {
            "action": "import pyautogui; pyautogui.hotkey('ctrl', 'shift', 't')",
            "response": {
                "executor_plan": plan,
                "plan_code": "agent.hotkey(['ctrl', 'shift', 't'])",
                "subtask": "Reopen",
            },
        },
        {"action": "DONE", "response": {"executor_plan": "agent.done()", "reflection": "It worked."}},
    ]
