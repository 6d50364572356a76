"""The episodes of a record as they are exported: with the actions of each step, and their images copied once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bepa_torchrl.analysis.records import MethodRecord
from bepa_torchrl.experts.readers.pictures import png_size
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.record_format import FORMAT_FILE, image_path
from osworld_gym.action_text import action_text
from osworld_gym.action_text.base import ActionText
from osworld_gym.atomic import new_folder
from osworld_gym.errors import ParseError
from osworld_gym.types import Action
from osworld_gym.uitars.coords import ImageScaling

IMAGES = "images"  #: folder of an export
_HASH = re.compile("[0-9a-f]{64}")
Size = tuple[int, int]


@dataclass
class Exported:
    """What was exported, and what was not.

    Args:
        episodes: number of exported episodes.
        copied: how many of them are copies of cached traces.
        without_steps: episodes of which the record has no steps.
        images: exported images.
        missing: steps whose image is not in the record.
    """

    episodes: int = 0
    copied: int = 0
    without_steps: int = 0
    missing: int = 0
    images: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        parts = [f"{self.episodes} episodes, {self.copied} of them copied context, {len(self.images)} images"]
        if self.without_steps:
            parts.append(f"{self.without_steps} episodes without steps in the record are left out (record.every)")
        if self.missing:
            parts.append(f"{self.missing} steps have no image in the record")
        return "; ".join(parts)


@dataclass(frozen=True)
class Reader:
    """How the responses of a record are read.

    Args:
        text: their protocol.
        scaling: from their points to screen pixels; None: they are screen pixels.
    """

    text: ActionText
    scaling: ImageScaling | None

    def actions(self, response: str, screen: Size | None) -> tuple[tuple[Action, ...], str]:
        """The actions of a response in screen pixels, and why there are none; empty if there are.

        Args:
            response: the text.
            screen: (width, height) in pixels; None if no screenshot is there.
        """
        try:
            actions = self.text.parse(response).actions
        except ParseError as error:
            return (), f"invalid response: {error.reason}"
        if self.scaling is None or not any(action.start or action.end for action in actions):
            return actions, ""
        if screen is None:
            return (), "the record has no screenshot to scale the points by"
        return tuple(self.scaling.action_to_screen(action, screen) for action in actions), ""


#: writes one episode into the export's folder: (folder, method, episode)
Write = Callable[[Path, str, dict[str, Any]], None]


def export(records: Sequence[MethodRecord], folder: Path, write: Write) -> Exported:
    """Writes all episodes that have steps into a new folder, with their images.

    Args:
        records: the records of a run's methods.
        folder: does not exist yet, or is empty.
        write: is called with each episode.

    Raises:
        RecordError: a record is of version 1, which does not say how points are scaled; or no episode has steps.
        FileExistsError: the folder exists and is not empty.
    """
    readers = {record.name: reader_of(record) for record in records}
    done = Exported()
    with new_folder(folder) as part:
        for record in records:
            for line in record.lines():
                if not line["steps"]:
                    done.without_steps += 1
                    continue
                write(part, record.name, exported_episode(record.folder, line, readers[record.name], part, done))
                done.episodes += 1
                done.copied += bool(line["off_policy"])
        if not done.episodes:
            names = ", ".join(str(record.folder) for record in records)
            raise RecordError(f"{names}: no episode has its steps; train with record.every >= 1")
    return done


def reader_of(record: MethodRecord) -> Reader:
    """How the responses of a record are read.

    Raises:
        RecordError: the record is of version 1.
    """
    if record.version == 1:
        raise RecordError(
            f"{record.folder}: expected a record that says how points are scaled, got version 1, which does not; "
            "train with this version"
        )
    path = record.folder / FORMAT_FILE
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        scaling = about["image_scaling"]
        return Reader(action_text(about["action_text"]), None if scaling is None else ImageScaling(**scaling))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: expected action_text and image_scaling ({error}); restore the file") from error


def exported_episode(
    source: Path, line: Mapping[str, Any], reader: Reader, target: Path, done: Exported
) -> dict[str, Any]:
    """The episode as it is exported; its images are copied.

    Each step has ``actions`` (screen pixels), ``problem`` (why there are none), ``copied_context``, and ``image``, a
    path below ``target`` or None, for ``screenshot``.
    """
    names = [_image_of(source, step["screenshot"]) for step in line["steps"]]
    screen = next((png_size(path) for path in names if path is not None), None)
    steps = []
    replayed = int(line.get("replayed_steps") or 0)
    for number, (step, path) in enumerate(zip(line["steps"], names, strict=True)):
        actions, problem = reader.actions(step["text"], screen)
        fields = {key: value for key, value in step.items() if key != "screenshot"}
        image = None if path is None else f"{IMAGES}/{path.name}"
        read = {"actions": [asdict(action) for action in actions], "problem": problem}
        copied = bool(line["off_policy"]) or number < replayed
        steps.append({"image": image, **fields, **read, "copied_context": copied})
        done.missing += path is None
        if path is not None and path.name not in done.images:
            (target / IMAGES).mkdir(exist_ok=True)
            shutil.copyfile(path, target / IMAGES / path.name)
            done.images.add(path.name)
    return {**line, "steps": steps}


def with_image_after(episode: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Each step with the image after it; the last has none in a record."""
    images = [step["image"] for step in episode["steps"]]
    yield from zip(episode["steps"], [*images[1:], None], strict=True)


def _image_of(folder: Path, name: str) -> Path | None:
    """The file of a screenshot, if it is there and a PNG."""
    if not _HASH.fullmatch(name):
        return None
    path = image_path(folder, name)
    try:
        png_size(path)
    except (OSError, ValueError):
        return None
    return path
