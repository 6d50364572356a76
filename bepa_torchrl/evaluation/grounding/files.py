"""Reads the published files of the suites, unchanged: names, keys and conventions of boxes are those of each.

screenspot_v2      screenspot_{mobile,desktop,web}_v2.json, screenspotv2_image/       box x, y, width, height
screenspot_pro     annotations/*.json, images/                                        box x1, y1, x2, y2
osworld_g          benchmark/OSWorld-G.json, benchmark/images/                        box x, y, width, height; polygons
mmbench_gui_l1     L1_annotations.json, offline_images/                               questions with options
mmbench_gui_l2     L2_annotations.json, offline_images/                               box in shares of the image
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bepa_torchrl.evaluation.grounding.items import Box, Item, Question, polygon_of


class SuiteFileError(ValueError):
    """A suite's file is missing, of another edition, or damaged. The message names the file and what was expected."""


@dataclass(frozen=True, slots=True)
class GroundingSuite:
    """A suite of published files.

    Args:
        read: a folder → its items.
        items: number of items of the published edition.
        files: patterns of the annotation files, of which the edition's hash is made.
        about: one line for ``bepa eval --help``.
    """

    read: Callable[[Path], Sequence[Item | Question]]
    items: int
    files: tuple[str, ...]
    about: str

    def digest(self, folder: Path) -> str:
        """First 16 hex digits of the SHA-256 of the annotation files, in the order of their names."""
        sha = hashlib.sha256()
        for path in sorted(path for pattern in self.files for path in folder.glob(pattern)):
            sha.update(path.read_bytes())
        return sha.hexdigest()[:16]


def read_screenspot_v2(folder: Path) -> list[Item]:
    """ScreenSpot-v2. Raises SuiteFileError."""
    items = []
    for platform in ("mobile", "desktop", "web"):
        path = folder / f"screenspot_{platform}_v2.json"
        for number, (where, line) in enumerate(_records(path)):
            with _reading(where):
                x, y, width, height = map(float, line["bbox"])
                items.append(
                    Item(
                        f"{platform}-{number}",
                        folder / "screenspotv2_image" / line["img_filename"],
                        str(line["instruction"]),
                        Box(x, y, x + width, y + height),
                        {"platform": platform, "type": str(line["data_type"])},
                    )
                )
    return items


def read_screenspot_pro(folder: Path) -> list[Item]:
    """ScreenSpot-Pro. Raises SuiteFileError."""
    paths = sorted((folder / "annotations").glob("*.json"))
    if not paths:
        raise SuiteFileError(f"{folder / 'annotations'}: expected the annotations *.json of ScreenSpot-Pro, found none")
    items = []
    for path in paths:
        for where, line in _records(path):
            with _reading(where):
                left, top, right, bottom = map(float, line["bbox"])
                groups = {"group": line["group"], "application": line["application"], "type": line["ui_type"]}
                items.append(
                    Item(
                        str(line["id"]),
                        folder / "images" / line["img_filename"],
                        str(line["instruction"]),
                        Box(left, top, right, bottom),
                        {name: str(value) for name, value in groups.items()},
                    )
                )
    return _distinct(items)


def read_osworld_g(folder: Path) -> list[Item]:
    """OSWorld-G; 54 items have no region, since their right answer is a refusal. Raises SuiteFileError.

    Its repository has ``images/`` in ``benchmark/``; a copy may have it beside that.
    """
    images = folder / "benchmark" / "images"
    images = images if images.is_dir() else folder / "images"
    items = []
    for where, line in _records(folder / "benchmark" / "OSWorld-G.json"):
        with _reading(where):
            kind, numbers = line["box_type"], line["box_coordinates"]
            if kind == "bbox":
                x, y, width, height = map(float, numbers)
                region: Any = Box(x, y, x + width, y + height)
            elif kind in ("polygon", "refusal"):
                region = polygon_of(numbers) if kind == "polygon" else None
            else:
                raise ValueError(f"expected box_type bbox, polygon or refusal, got {kind!r}")
            types = line.get("GUI_types") or ["none"]
            groups = {"kind": kind, "type": [*map(str, types)] if isinstance(types, list) else str(types)}
            image = images / line["image_path"]
            items.append(Item(str(line["id"]), image, str(line["instruction"]), region, groups))
    return _distinct(items)


def read_mmbench_l2(folder: Path) -> list[Item]:
    """MMBench-GUI L2. Boxes: shares of the image, or pixels if a value is above 1; -1 is 0. Raises SuiteFileError."""
    items = []
    for where, line in _records(folder / "L2_annotations.json"):
        with _reading(where):
            width, height = map(float, line["image_size"])
            values = [0.0 if value == -1 else float(value) for value in line["bbox"]]
            sides = (1.0, 1.0) if max(values) > 1 else (width, height)
            left, top, right, bottom = (value * side for value, side in zip(values, sides * 2, strict=True))
            names = ("platform", "grounding_type", "data_type")
            items.append(
                Item(
                    str(line["index"]),
                    folder / "offline_images" / str(line["platform"]) / Path(line["image_path"]).name,
                    str(line["instruction"]),
                    Box(left, top, right, bottom),
                    {name.removesuffix("_type") if name != "data_type" else "type": str(line[name]) for name in names},
                )
            )
    return _distinct(items)


def read_mmbench_l1(folder: Path) -> list[Question]:
    """MMBench-GUI L1: three questions of each record, in the order easy, medium, hard. Raises SuiteFileError."""
    questions = []
    for where, line in _records(folder / "L1_annotations.json"):
        with _reading(where):
            platform = str(line["platform"])
            for difficulty, group in zip(("easy", "medium", "hard"), line["groups"], strict=True):
                options = {str(letter): str(text) for letter, text in group["options"].items()}
                answer = str(group["answer"])
                if answer not in options:
                    raise ValueError(f"the answer {answer!r} is no option of {', '.join(options)}")
                questions.append(
                    Question(
                        f"{line['index']}-{difficulty}",
                        folder / "offline_images" / platform / Path(line["image_path"]).name,
                        str(group["question"]),
                        options,
                        answer,
                        {"difficulty": difficulty, "platform": platform},
                    )
                )
    return _distinct(questions)


SUITES = {
    "screenspot_v2": GroundingSuite(
        read_screenspot_v2, 1272, ("screenspot_*_v2.json",), "ScreenSpot-v2: point in box, 1,272 items"
    ),
    "screenspot_pro": GroundingSuite(
        read_screenspot_pro, 1581, ("annotations/*.json",), "ScreenSpot-Pro: point in box, 1,581 items"
    ),
    "osworld_g": GroundingSuite(
        read_osworld_g, 564, ("benchmark/OSWorld-G.json",), "OSWorld-G: box, polygon or refusal, 564 items"
    ),
    "mmbench_gui_l1": GroundingSuite(
        read_mmbench_l1, 3582, ("L1_annotations.json",), "MMBench-GUI L1: questions about a screen, 3,582"
    ),
    "mmbench_gui_l2": GroundingSuite(
        read_mmbench_l2, 3574, ("L2_annotations.json",), "MMBench-GUI L2: point in box, 3,574 items"
    ),
}


def _distinct(items: Sequence[Any]) -> list[Any]:
    """The items with distinct IDs: the second one with the ID ``a`` is ``a#2``.

    Answers are kept by ID; the official scripts do without, so that nothing there says whether IDs occur twice.
    """
    seen: Counter[str] = Counter()
    out = []
    for item in items:
        seen[item.id] += 1
        out.append(item if seen[item.id] == 1 else replace(item, id=f"{item.id}#{seen[item.id]}"))
    return out


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a JSON list, each with its place for errors. Raises SuiteFileError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SuiteFileError(
            f"{path} is missing; give the folder of the published files (--data FOLDER), unpacked and unchanged"
        ) from error
    except (OSError, ValueError) as error:
        raise SuiteFileError(f"{path}: not a readable JSON file ({error}); download it again") from error
    if not isinstance(data, list):
        raise SuiteFileError(
            f"{path}: expected a JSON list of items, got {type(data).__name__}; is it another edition?"
        )
    for number, line in enumerate(data):
        if not isinstance(line, dict):
            raise SuiteFileError(f"{path}: item {number}: expected an object, got {type(line).__name__}")
        yield f"{path}: item {number}", line


class _reading:
    """Turns errors within an item into a SuiteFileError with its place."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, KeyError):
            raise SuiteFileError(f"{self.where}: key {error} is missing; is it another edition?") from error
        if isinstance(error, TypeError | ValueError | AttributeError):
            raise SuiteFileError(f"{self.where}: {error}; is it another edition?") from error
