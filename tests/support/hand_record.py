"""A small record of one method, made by hand: two iterations of one group of two, with an injected trace."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from bepa_torchrl.storage.record_format import image_path

PROVENANCE = {
    "expert": "agent_s2",
    "origin": "agent_s2:/logs",
    "plan": "00112233aabbccdd",
    "attempt": 2,
    "handover": 0,
    "trace": "feedfacecafe0123",
}
SELF_ROLLED = {"source": "self_rolled", "off_policy": True, "provenance": PROVENANCE}
CLICK = "Thought: I press it.\nAction: click(start_box='(10,20)')"
DONE = "Thought: It is done.\nAction: finished()"


def png(color: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (100, 50), (color, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def save_png(folder: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    path = image_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


def step(folder: Path, text: str, color: int, log_probs: Sequence[float] = (-0.5, -2.0)) -> dict[str, Any]:
    return {
        "screenshot": save_png(folder, png(color)),
        "text": text,
        "tokens": list(range(len(log_probs))),
        "log_probs": list(log_probs),
        "old_log_probs": [None] * len(log_probs),
        "new_log_probs": list(log_probs),
        "clipped": [],
    }


def line(group: int, slot: int, steps: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    injected = bool(fields.get("off_policy"))
    values = {
        "id": f"{group}-{slot}{'-injected' if injected else ''}",
        "iteration": group + 1,
        "group_id": group,
        "slot": slot,
        "task_id": "lamp",
        "instruction": "Switch the lamp on.",
        "source": "on_policy",
        "provenance": None,
        "copied_from": None,
        "off_policy": False,
        "replaced": False,
        "trained": True,
        "policy_version": group,
        "updates": [group + 1],
        "age": 0,
        "stop_reason": "finished",
        "reward": 0.0,
        "advantage": -1.0,
        "failure": None,
        "n_steps": len(steps),
        "whole": True,
        "steps": list(steps),
    }
    return values | fields


def hand_record(folder: Path) -> Path:
    """A run's folder with the method ``bepa``. Group 0 has a self-rolled trace in place of slot 0; in group 1 slot 1
    succeeds and refreshes the cache; in group 2 a copy of it is injected.
    """
    method = folder / "bepa"
    method.mkdir(parents=True)
    out = {"trained": False, "updates": [], "age": None, "advantage": None, "replaced": True}
    two = [step(method, CLICK, 1), step(method, DONE, 2)]
    one = [step(method, DONE, 1)]
    lines = [
        line(0, 0, one, **out),
        line(0, 0, two, **SELF_ROLLED, policy_version=0, reward=1.0, advantage=1.0),
        line(0, 1, one),
        line(1, 0, [], whole=False, n_steps=1),
        line(1, 1, two, reward=1.0, advantage=1.0),
        line(2, 0, one, **out),
        line(2, 0, two, off_policy=True, copied_from="1-1", policy_version=1, age=1, reward=1.0, advantage=1.0),
        line(2, 1, [], whole=False, n_steps=1),
    ]
    write(method, "episodes.jsonl", lines)
    refreshed = {"valid": 2, "injected": None, "injected_version": None, "replaced_slot": None}
    groups = [
        {
            "iteration": g + 1,
            "group_id": g,
            "task_id": "lamp",
            "successes": int(g == 1),
            "refreshed": g == 1,
            **refreshed,
        }
        for g in range(3)
    ]
    write(method, "groups.jsonl", groups)
    scaling = {"factor": 28, "min_pixels": 0, "max_pixels": 16384 * 784, "relative": 1000}
    about = {"format": "bepa-record", "version": 2, "action_text": "uitars", "image_scaling": scaling}
    (method / "record.json").write_text(json.dumps(about))
    manifest = {"provenance": {"self_rolled": {"lamp": PROVENANCE}, "converted": {}}}
    (folder / "prepared").mkdir()
    (folder / "prepared" / "manifest.json").write_text(json.dumps(manifest))
    return folder


def write(method: Path, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    (method / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
