"""The readers of Agent S2, S2.5 and S3, on logs that the real agents (PyPI gui-agents) write from scripted answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server
from expert_fixtures import frame
from repository import ROOT

from bepa_torchrl.cli import main
from bepa_torchrl.experts import convert_trace
from bepa_torchrl.experts.readers.run_folder import scan_runs
from osworld_gym.types import Action

pytestmark = pytest.mark.experts

PROGRAM = ROOT / "tests" / "support" / "run_gui_agents.py"
TASK = "11111111-2222-3333-4444-555555555555"
INSTRUCTION = "Set the volume to 7"
SUBTASK = {"name": "Set volume", "info": "Open the settings and set the volume."}
DAG = f"<json>{json.dumps({'dag': {'nodes': [SUBTASK], 'edges': []}})}</json>"
#: what the grounding model answers, in thousandths, and the pixels of a screen of 1920 x 1080
POINTS = {
    "the settings icon": (500, 250),
    "the search field": (100, 200),
    "the list": (250, 500),
    "the knob": (50, 500),
}
ICON, FIELD, LIST, KNOB = ((x * 1.92, y * 1.08) for x, y in POINTS.values())
#: call of the agent, the actions that it performs
STEPS: list[tuple[str, tuple[Action, ...]]] = [
    ('agent.click("the settings icon", 1, "left")', (Action("click", start=ICON),)),
    ('agent.click("the settings icon", 2, "left")', (Action("left_double", start=ICON),)),
    ('agent.click("the list", 1, "middle")', (Action("middle_single", start=LIST),)),
    (
        'agent.type("the search field", "volume", True, True)',
        (
            Action("click", start=FIELD),
            Action("hotkey", key="ctrl a"),
            Action("hotkey", key="backspace"),
            Action("type", content="volume\n"),
        ),
    ),
    ('agent.scroll("the list", -3)', (Action("scroll", start=LIST, direction="down", clicks=3),)),
    ('agent.drag_and_drop("the knob", "the list")', (Action("drag", start=KNOB, end=LIST),)),
    ("agent.hotkey(['ctrl', 's'])", (Action("hotkey", key="ctrl s"),)),
    ("agent.hold_and_press(['shift'], ['left'])", (Action("hotkey", key="shift left"),)),
    ("agent.wait(1.0)", (Action("wait"),)),
    ("agent.done()", (Action("finished"),)),
]
READY = len(STEPS) + 1  #: pictures


def worker_text(number: int) -> str:
    call = STEPS[number][0]
    return (
        "(Previous action verification)\nIt worked.\n\n(Screenshot Analysis)\nThe desktop is shown.\n\n"
        f"(Next Action)\nDo number {number}.\n\n(Grounded Action)\n```python\n{call}\n```\n"
    )


def script() -> Callable[[dict[str, Any]], Reply]:
    """The endpoint's answers, by what is asked; the worker's are those of ``STEPS`` in order."""
    worked = 0

    def answer(request: dict[str, Any]) -> Reply:
        nonlocal worked
        texts = [part["text"] for m in request["messages"] for part in m["content"] if part["type"] == "text"]
        system, last = texts[0], texts[-1]
        if "Output only the coordinate of one point" in last:
            (point,) = (point for name, point in POINTS.items() if f"Query:{name}\n" in last)
            return Reply(f"({point[0]}, {point[1]})")
        if "formulate a question" in last:
            return Reply("How is the volume set?")
        if "Please generate the initial plan" in last:
            return Reply("1. Set the volume")
        if last.startswith("Instruction: "):
            return Reply(DAG)
        if "Current Trajectory below:" in system:
            return Reply("<thoughts>Fine so far.</thoughts><answer>Go on.</answer>")
        worked += 1
        return Reply(worker_text(worked - 1))

    return answer


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each agent's folder of runs."""
    python = os.environ.get("GUI_AGENTS_PYTHON")
    if not python:
        pytest.fail(
            "GUI_AGENTS_PYTHON: expected the Python of scripts/install_gui_agents.sh, got nothing; make test-experts"
        )
    root = tmp_path_factory.mktemp("logs")
    frames = root / "frames"
    frames.mkdir()
    for number in range(READY):
        (frames / f"{number:02d}.png").write_bytes(frame(number, (1920, 1080)))
    found = {}
    for agent in ("s2", "s2_stock", "s2_5", "s3"):
        out = root / agent / "os" / TASK
        out.mkdir(parents=True)
        with chat_server(script()) as server:
            command = [os.path.abspath(python), str(PROGRAM), agent, server.url, str(frames), str(out), INSTRUCTION]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root, env=_environment())
        assert done.returncode == 0, done.stdout + done.stderr
        found[agent] = root / agent
    return found


def _environment() -> dict[str, str]:
    """The environment without our packages, keys and proxies."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}


@pytest.mark.parametrize(
    ("agent", "family", "texts", "images"),
    [
        ("s2", "agent_s2", True, False),
        ("s2_stock", "agent_s2", False, False),
        ("s2_5", "agent_s2_5", True, True),
        ("s3", "agent_s3", True, True),
    ],
)
def test_a_log_of_the_real_agent_is_read(
    logs: dict[str, Path], agent: str, family: str, texts: bool, images: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experts", "check", str(logs[agent]), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["runs"]
    assert (line["family"], line["outcome"], line["steps"]) == (family, "success", len(STEPS))
    assert "plan" in line["usable"]
    assert ("raw" in line["usable"]) == images
    (run,) = scan_runs(logs[agent])
    assert [step.actions for step in run.steps] == [actions for _, actions in STEPS]
    assert run.inexact == ()
    for number, step in enumerate(run.steps):
        assert step.plan == (worker_text(number) if texts else "")
        assert step.call == (STEPS[number][0] if texts else "")
        assert step.intent == (f"Do number {number}" if texts else step.intent)
    if agent == "s2":
        assert {step.subtask for step in run.steps} == {SUBTASK["name"]}
    if texts:
        assert [bool(step.reflection) for step in run.steps] == [False] + [True] * (len(STEPS) - 1)


@pytest.mark.parametrize("agent", ["s2_5", "s3"])
def test_its_trace_is_converted_exactly_for_qwen3_vl(logs: dict[str, Path], agent: str) -> None:
    (run,) = scan_runs(logs[agent])
    assert convert_trace(run.trace(), action_text="qwen3vl").faithful
    dropped = dict(convert_trace(run.trace()).dropped)
    assert dropped == {2: "not_convertible"}  # a middle click, which UI-TARS's text does not have
