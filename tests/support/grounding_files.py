"""Small made-up folders in the formats of the grounding suites, key for key, on screens of the simulated desktop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image


def image(path: Path, size: tuple[int, int] = (200, 100)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "white").save(path)


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def screenspot_v2(folder: Path) -> None:
    """One item per platform; the box of the first is 10..30 x 20..60."""
    for platform in ("mobile", "desktop", "web"):
        name = f"{platform}_1.png"
        image(folder / "screenspotv2_image" / name)
        item = {
            "img_filename": name, "bbox": [10, 20, 20, 40], "instruction": f"the button of {platform}",
            "data_type": "icon" if platform == "web" else "text", "data_source": platform,
        }  # fmt: skip
        write(folder / f"screenspot_{platform}_v2.json", [item])


def screenspot_pro(folder: Path) -> None:
    image(folder / "images" / "blender" / "a.png")
    item = {
        "id": "blender_1", "img_filename": "blender/a.png", "bbox": [10, 20, 30, 60], "img_size": [200, 100],
        "instruction": "render", "instruction_cn": "x", "application": "blender", "platform": "windows",
        "group": "Creative", "ui_type": "icon",
    }  # fmt: skip
    write(folder / "annotations" / "blender_windows.json", [item])


def osworld_g(folder: Path) -> None:
    """A box, a triangle, and a refusal."""
    image(folder / "images" / "a.png")
    base = {"image_path": "a.png", "image_size": [200, 100], "instruction": "save", "GUI_types": ["Icon"]}
    items = [
        {"id": "1", "box_type": "bbox", "box_coordinates": [10, 20, 20, 40], **base},
        {"id": "2", "box_type": "polygon", "box_coordinates": [0, 0, 100, 0, 0, 100], **base},
        {"id": "3", "box_type": "refusal", "box_coordinates": [-1, -1, -1, -1], **base},
    ]
    write(folder / "benchmark" / "OSWorld-G.json", items)


def mmbench_l2(folder: Path) -> None:
    """A box in shares of the image, and one in pixels with a -1."""
    image(folder / "offline_images" / "os_web" / "a.png")
    base = {"image_path": "os_web/a.png", "instruction": "open", "image_size": [200, 100], "platform": "os_web"}
    base["app_name"] = "x"
    items = [
        {"index": 0, "bbox": [0.05, 0.2, 0.15, 0.6], "data_type": "icon", "grounding_type": "basic", **base},
        {"index": 1, "bbox": [-1, 20, 30, 60], "data_type": "text", "grounding_type": "advanced", **base},
    ]
    write(folder / "L2_annotations.json", items)


def mmbench_l1(folder: Path) -> None:
    image(folder / "offline_images" / "os_web" / "a.png")
    groups = [
        {"question": f"what is {level}?", "options": {"A": "this", "B": "that"}, "answer": "B", "explanation": "",
         "difficulty": level}
        for level in ("easy", "medium", "hard")
    ]  # fmt: skip
    record = {"index": 0, "image_path": "os_web/a.png", "image_size": [200, 100], "platform": "os_web", "app_name": "x"}
    write(folder / "L1_annotations.json", [{**record, "groups": groups}])
