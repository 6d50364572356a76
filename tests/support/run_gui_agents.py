"""Runs an agent of the PyPI package gui-agents against a scripted endpoint, and writes the log of its runner.

    PYTHON run_gui_agents.py AGENT URL FRAMES OUT INSTRUCTION

PYTHON is that of an environment made by ``scripts/install_gui_agents.sh``, so this program imports nothing of ours. The
screen is the pictures in FRAMES, one after the other; no action is executed. AGENT and its log in OUT:

``s2``: Agent S2 in OSWorld's ``lib_run_single.py``: the agent's info is the line's ``response``.
``s2_stock``: Agent S2 in Agent-S's own runner, which saves none of it.
``s2_5``, ``s3``: the later agents in Agent-S's own runner: the info's keys are the line's, with a first screenshot.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 1920, 1080
MAX_STEPS = 20


class Words:
    """Counts words: tiktoken would fetch its table from the internet."""

    def encode(self, text: str) -> list[str]:
        return text.split()


def make_s2(chat: dict[str, Any], grounding: dict[str, Any], memory: Path) -> Any:
    import tiktoken

    tiktoken.encoding_for_model = lambda _: Words()
    from gui_agents.s2.agents.agent_s import AgentS2
    from gui_agents.s2.agents.grounding import OSWorldACI

    (memory / "kb_s2" / "linux").mkdir(parents=True)  # the agent writes a file there and does not make the folder
    return AgentS2(
        chat,
        OSWorldACI("linux", chat, grounding, width=WIDTH, height=HEIGHT),
        platform="linux",
        search_engine=None,
        memory_root_path=str(memory),
        embedding_engine_params={"api_key": "none"},
    )


def make_s2_5(chat: dict[str, Any], grounding: dict[str, Any], _: Path) -> Any:
    from gui_agents.s2_5.agents.agent_s import AgentS2_5
    from gui_agents.s2_5.agents.grounding import OSWorldACI

    return AgentS2_5(chat, OSWorldACI("linux", chat, grounding, width=WIDTH, height=HEIGHT), platform="linux")


def make_s3(chat: dict[str, Any], grounding: dict[str, Any], _: Path) -> Any:
    from gui_agents.s3.agents.agent_s import AgentS3
    from gui_agents.s3.agents.grounding import OSWorldACI

    aci = OSWorldACI(None, "linux", chat, grounding, width=WIDTH, height=HEIGHT)
    return AgentS3(chat, aci, platform="linux")


AGENTS: dict[str, Callable[[dict[str, Any], dict[str, Any], Path], Any]] = {
    "s2": make_s2,
    "s2_stock": make_s2,
    "s2_5": make_s2_5,
    "s3": make_s3,
}


def line(name: str, response: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """A line of ``traj.jsonl`` as the agent's runner writes it."""
    if name == "s2":
        return {**base, "response": response}
    return base if name == "s2_stock" else {**response, **base}


def run(name: str, agent: Any, frames: list[bytes], out: Path, instruction: str) -> None:
    screens = iter(frames)
    screen = next(screens)
    if name in ("s2_5", "s3"):
        (out / "step_0.png").write_bytes(screen)
        (out / "instruction.txt").write_text(instruction)
    for number in range(1, MAX_STEPS + 1):
        response, actions = agent.predict(instruction, {"screenshot": screen})
        for action in actions:
            stamp = f"20250801@1200{number:02d}"
            screen = next(screens)
            done = action in ("DONE", "FAIL")
            file = f"step_{number}_{stamp}.png"
            (out / file).write_bytes(screen)
            base = {"step_num": number, "action_timestamp": stamp, "action": action, "reward": 0, "done": done}
            base |= {"info": {}, "screenshot_file": file}
            with (out / "traj.jsonl").open("a") as log:
                log.write(json.dumps(line(name, response, base), ensure_ascii=False) + "\n")
            if done:
                (out / "result.txt").write_text("1.0\n")
                return
    raise SystemExit(f"no DONE in {MAX_STEPS} steps")


def main(name: str, url: str, frames: str, out: str, instruction: str) -> None:
    chat = {"engine_type": "openai", "model": "scripted", "base_url": url, "api_key": "none"}
    grounding = chat | {"grounding_width": 1000, "grounding_height": 1000}
    pictures = [path.read_bytes() for path in sorted(Path(frames).glob("*.png"))]
    with tempfile.TemporaryDirectory() as memory:
        run(name, AGENTS[name](chat, grounding, Path(memory)), pictures, Path(out), instruction)


if __name__ == "__main__":
    main(*sys.argv[1:])
