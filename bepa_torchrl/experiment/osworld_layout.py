"""The episodes of an evaluation in the layout of OSWorld's runner, so that OSWorld's own scripts read them.

osworld/pyautogui/screenshot/pass_N/<domain>/<task id>/    result.txt, traj.jsonl, step_n.png

``show_result.py`` takes these names as action space, observation and model. The screenshots are links to those in
``images/`` where the file system has links.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from PIL import Image

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.osworld_results import write_episode
from bepa_torchrl.evaluation.outcomes import Outcome
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.storage.record_format import image_path
from osworld_gym.action_text.base import ActionText
from osworld_gym.errors import ParseError
from osworld_gym.types import StopReason
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.pyautogui import official_action

LAYOUT = "osworld"
_MODEL = f"{LAYOUT}/pyautogui/screenshot/pass_{{}}"


def executed(result: EpisodeResult, text: ActionText, scaling: ImageScaling) -> list[str]:
    """What was executed at each step, as OSWorld logs it; "" for a response that could not be read.

    Args:
        result: the result of an episode, with its rows.
        text: reads the responses.
        scaling: from the policy's coordinates to pixels of the screen.
    """
    rows = [] if result.rows is None else row_list(result.rows)
    if not rows:
        return []
    with Image.open(io.BytesIO(cast(bytes, rows[0][K.SCREENSHOT]))) as image:
        size = image.size
    return [_code(cast(str, row[K.RESPONSE]), text, scaling, size) for row in rows]


def _code(response: str, text: ActionText, scaling: ImageScaling, size: tuple[int, int]) -> str:
    try:
        actions = text.parse(response).actions
    except ParseError:
        return ""
    ends = [number for number, action in enumerate(actions, start=1) if action.kind == StopReason.finished]
    return official_action([scaling.action_to_screen(action, size) for action in actions[: ends[0] if ends else None]])


def write_layout(folder: Path, episodes: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes the folder ``osworld`` again, of all outcomes; an episode without a result has no ``result.txt``.

    Args:
        folder: the folder of the evaluation.
        episodes: its ``episodes.jsonl``, whose lines have ``outcome`` and ``executed``.
        outcomes: the outcomes of all tasks and passes.

    Raises:
        OSError: the folder cannot be written.
    """
    if (folder / LAYOUT).exists():
        shutil.rmtree(folder / LAYOUT)
    missing = {(outcome.task, outcome.attempt): outcome for outcome in outcomes}
    for line in read_lines(episodes) if episodes.exists() else ():
        outcome = missing.pop((line["task_id"], line["slot"]), None)
        if outcome is not None:
            _write(folder, outcome, line)
    for outcome in missing.values():
        _write(folder, outcome, {"steps": [], "executed": []})


def _write(folder: Path, outcome: Outcome, line: Mapping[str, Any]) -> None:
    """An episode; the picture of a step is that after it, which is the next step's."""
    images = [image_path(folder, step["screenshot"]) for step in line["steps"][1:]]
    write_episode(
        folder / _MODEL.format(outcome.attempt + 1),
        outcome,
        [step["text"] for step in line["steps"]],
        line["executed"],
        images if all(image.exists() for image in images) else [],
    )
