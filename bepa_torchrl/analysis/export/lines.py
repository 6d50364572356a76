"""Episodes as JSON lines, and their steps as a folder that Hugging Face's ``datasets`` loads with its images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bepa_torchrl.storage.json_lines import json_line

#: columns of a row and their types in ``datasets``: declared, since a column may be null in all of the first rows
COLUMNS = {
    "image": "image",
    "method": "string",
    "id": "string",
    "iteration": "int64",
    "group_id": "int64",
    "slot": "int64",
    "task_id": "string",
    "instruction": "string",
    "source": "string",
    "trained": "bool",
    "replaced": "bool",
    "policy_version": "int64",
    "reward": "float64",
    "advantage": "float64",
    "stop_reason": "string",
    "n_steps": "int64",
    "step": "int64",
    "text": "string",
    "tokens": "[int64]",
    "log_probs": "[float64]",
    "loss": "string",
    "problem": "string",
    "copied_context": "bool",
    "actions": "string",
    "provenance": "string",
}
_LOSS = ("old_log_probs", "new_log_probs", "clipped")
_TEXT = """# Episodes of a training run

One row per step. `image` is the screenshot before it, `text` the response, `tokens` and `log_probs` its token ids and
the sampler's log-probabilities in nats, `actions` the actions in screen pixels as JSON, `loss` what the loss was given
and computed per token, as JSON. Rows with `copied_context` are of cached traces that were injected into a group, or
replayed at the start of an episode: leave them out to train on the policy's own.
"""


def card() -> str:
    """The data set's ``README.md``, whose header declares the columns."""
    features = []
    for name, kind in COLUMNS.items():
        type_ = f"sequence: {kind[1:-1]}" if kind.startswith("[") else f"dtype: {kind}"
        features.append(f"  - name: {name}\n    {type_}\n")
    return f"---\ndataset_info:\n  features:\n{''.join(features)}---\n{_TEXT}"


def write_lines(folder: Path, method: str, episode: dict[str, Any]) -> None:
    """Appends the episode to ``episodes.jsonl``; ``image`` of a step is a path below the folder."""
    _append(folder / "episodes.jsonl", {"method": method, **episode})


def write_rows(folder: Path, method: str, episode: dict[str, Any]) -> None:
    """Appends the steps that have an image to ``metadata.jsonl``, as ``datasets`` reads a folder of images.

    Rows have the same keys and no nested objects: ``actions``, ``loss`` and ``provenance`` are JSON texts.
    """
    readme = folder / "README.md"
    if not readme.exists():
        readme.write_text(card(), encoding="utf-8")
    texts = {"method": method, "provenance": json.dumps(episode["provenance"], ensure_ascii=False)}
    for number, step in enumerate(episode["steps"]):
        if step["image"] is None:
            continue
        actions = json.dumps(step["actions"], ensure_ascii=False)
        loss = json.dumps({key: step[key] for key in _LOSS})
        values = {**episode, **step, **texts, "step": number, "actions": actions, "loss": loss}
        row = {name: values[name] for name in COLUMNS if name != "image"}
        _append(folder / "metadata.jsonl", {"file_name": step["image"], **row})


def _append(path: Path, data: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(json_line(data).encode())
