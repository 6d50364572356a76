"""Draws screens of the simulated desktop with what is to be clicked on them, as published files of ScreenSpot-v2.

    python scripts/make_sim_grounding.py FOLDER [SCREENS]
    bepa eval suite=screenspot_v2 --data FOLDER --card --out OUT

The instructions are the words that the tiny policy was pretrained on, such as "click mute"; each names a label that
occurs once on its screen. The files for mobile and web have no items. 500 screens by default, two items each.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_bytes, write_text
from osworld_gym.desktops.sim import SimDesktop
from recipes.tiny.grounding import walk

SCREENS = 500
ITEMS = 2  #: of each screen
FIRST_SEED = 50_000_000  #: of the screens; those of the tiny policy's pretraining have smaller ones


def write(folder: Path, screens: int) -> None:
    """Writes the folder, which must not exist: three annotation files and ``screenspotv2_image``."""
    images = folder / "screenspotv2_image"
    images.mkdir(parents=True)
    items: list[dict[str, Any]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + screens):
        rng = random.Random(f"sim grounding {seed}")
        desktop = SimDesktop(seed=seed)
        walk(desktop, rng)
        name = f"sim_{seed}.png"
        write_bytes(images / name, desktop.screenshot().png, durable=False)
        items += _items(desktop, name, rng)
    for platform, found in (("mobile", []), ("desktop", items), ("web", [])):
        write_text(folder / f"screenspot_{platform}_v2.json", json.dumps(found, indent=1) + "\n")


def _items(desktop: SimDesktop, image: str, rng: random.Random) -> list[dict[str, Any]]:
    seen = Counter(element.label for element in desktop.elements())
    single = [element for element in desktop.elements() if seen[element.label] == 1]
    items = []
    for element in rng.sample(single, min(ITEMS, len(single))):
        left, top, right, bottom = element.box
        items.append(
            {
                "img_filename": image,
                "bbox": [left, top, right - left, bottom - top],
                "instruction": f"click {element.label}",
                "data_type": "icon" if element.role == "icon" else "text",
                "data_source": "sim",
            }
        )
    return items


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else SCREENS)
