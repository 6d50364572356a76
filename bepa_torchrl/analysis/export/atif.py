"""An episode as a trajectory of Harbor's format ATIF, in a trial folder that Harbor's viewer reads.

Model: PyPI ``atif`` 1.8.0. What it has no field for (advantage, source, policy version, updates) is under ``extra``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.analysis.export.episodes import with_image_after
from bepa_torchrl.storage.json_lines import RecordError
from osworld_gym import __version__
from osworld_gym.atomic import write_text

SCHEMA = "ATIF-v1.8"
_NAME = re.compile(r"\w[\w.-]*")
_UP = "../../.."  #: from a trial's ``agent`` to the export's folder
_POINTED = {"click": "click", "left_double": "double_click", "left_triple": "triple_click",
            "right_single": "right_click", "hover": "move"}  # fmt: skip
_ENDS = {"finished": "done", "call_user": "fail", "wait": "wait"}
_SCROLLS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}  #: (scroll_x, scroll_y)
_STEP_EXTRA = ("actions", "old_log_probs", "new_log_probs", "clipped")


def write_atif(folder: Path, method: str, episode: dict[str, Any]) -> None:
    """Writes ``<method>/<episode>/agent/trajectory.json`` and, if there is a reward, ``verifier/reward.txt``.

    Raises:
        RecordError: the episode's id is no name of a folder, which a record of somebody else may have, or another has
            the same.
    """
    name = str(episode["id"])
    if not _NAME.fullmatch(name):
        raise RecordError(
            f"{method}: expected the id of an episode, such as 12-3, got {name[:200]!r}; restore the record"
        )
    trial = folder / method / name
    if trial.exists():
        raise RecordError(f"{method}: expected different ids of episodes, got {name} twice; restore the record")
    (trial / "agent").mkdir(parents=True)
    text = json.dumps(trajectory(method, episode), ensure_ascii=False, indent=1)
    write_text(trial / "agent" / "trajectory.json", text, durable=False)
    if episode["reward"] is not None:
        (trial / "verifier").mkdir()
        write_text(trial / "verifier" / "reward.txt", f"{episode['reward']:g}\n", durable=False)


def trajectory(method: str, episode: Mapping[str, Any]) -> dict[str, Any]:
    """The trajectory as JSON values.

    Steps of injected traces, and replayed ones, are marked ``is_copied_context``: not to be trained on.

    Args:
        method: its name.
        episode: the episode of :func:`bepa_torchrl.analysis.export.episodes.export`.
    """
    extra = {key: value for key, value in episode.items() if key not in ("steps", "instruction", "whole")}
    return {
        "schema_version": SCHEMA,
        "trajectory_id": f"{method}/{episode['id']}",
        "agent": {"name": f"bepa-{method}", "version": __version__},
        "steps": list(_steps(episode)),
        "extra": {"method": method, **extra},
    }


def _steps(episode: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    first = episode["steps"][0]["image"]
    yield {
        "step_id": 1,
        "source": "user",
        "message": [{"type": "text", "text": episode["instruction"]}, *_image(first)],
    }
    for number, (step, after) in enumerate(with_image_after(episode), 2):
        yield _agent_step(number, step, after)


def _agent_step(number: int, step: Mapping[str, Any], after: str | None) -> dict[str, Any]:
    calls = [
        {"tool_call_id": f"call_{number}_{index}", "function_name": "computer_action", "arguments": arguments(action)}
        for index, action in enumerate(step["actions"])
    ]
    extra = {key: step[key] for key in _STEP_EXTRA if step[key] is not None}
    out: dict[str, Any] = {
        "step_id": number,
        "source": "agent",
        "message": step["text"],
        "is_copied_context": step["copied_context"],
        "metrics": _metrics(step),
        "extra": extra | ({"problem": step["problem"]} if step["problem"] else {}),
    }
    if calls:
        out["tool_calls"] = calls
    if after is not None:
        source = {"source_call_id": calls[-1]["tool_call_id"]} if calls else {}
        out["observation"] = {"results": [{**source, "content": _image(after)}]}
    return out


def _metrics(step: Mapping[str, Any]) -> dict[str, Any]:
    """Token ids, and the sampler's log-probs if all are known; nothing of a hosted model, which gives none."""
    if not step["tokens"]:
        return {}
    metrics: dict[str, Any] = {"completion_tokens": len(step["tokens"]), "completion_token_ids": step["tokens"]}
    if None not in step["log_probs"]:
        metrics["logprobs"] = step["log_probs"]
    return metrics


def _image(path: str | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    return [{"type": "image", "source": {"media_type": "image/png", "path": f"{_UP}/{path}"}}]


def arguments(action: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``computer_action`` that Harbor's desktop agent writes for an action, in screen pixels.

    Args:
        action: fields of :class:`osworld_gym.types.Action`.
    """
    kind, start, end = action["kind"], action["start"], action["end"]
    at = {} if start is None else {"x": start[0], "y": start[1]}
    if kind in _POINTED:
        return {"type": _POINTED[kind], **at}
    if kind == "drag" and end is not None:
        return {"type": "drag", **at, "end_x": end[0], "end_y": end[1]}
    if kind == "scroll" and action["direction"] in _SCROLLS:
        x, y = _SCROLLS[action["direction"]]
        return {"type": "scroll", **at, "scroll_x": x, "scroll_y": y}
    if kind == "type":
        return {"type": "type", "text": action["content"]}
    if kind == "hotkey":
        return {"type": "keypress", "keys": str(action["key"]).split(" ")}
    if kind in _ENDS:
        return {"type": _ENDS[kind]}
    given = {"keys": action["key"], "text": action["content"]}
    return {"type": kind, **at, **{key: value for key, value in given.items() if value is not None}}
