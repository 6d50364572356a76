"""Setup step ``arrange``: files, colours, window positions and a menu that vary with the episode's seed.

Its parameters, all optional:

- ``files``: name → content, in the documents folder; ``folders``: names of folders there;
- ``others``: ``{"names": [...], "count": [least, most], "content": text}``: a random number of further files with
  random names, so that the position of a file is different for every seed;
- ``menu``: label of a submenu → labels of its items, in random order. An item adds its label to :data:`CHOSEN`.

The listing of the documents folder is stored in :data:`START`, so that a verifier can compare the final state with it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from osworld_gym.errors import TaskError
from osworld_gym.tasks.setup.themes import MENU, menu_file, themed

DOCUMENTS = "Documents"
START = ".cache/documents-at-start"
CHOSEN = ".cache/chosen"
#: prints one line per folder and file of the documents folder, the files with their SHA-256
LISTING = f"cd ~/{DOCUMENTS} && (find . -type d; find . -type f -exec sha256sum {{}} +) | sort"
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .-_/")


def arranged_files(parameters: Mapping[str, Any], seed: int, screen: tuple[int, int]) -> dict[str, str]:
    """Path in HOME → content of every file that the step writes. Deterministic in its arguments.

    Args:
        parameters: the step's parameters.
        seed: the episode's seed.
        screen: (width, height) in pixels.

    Raises:
        TaskError: a name or label has characters other than letters, digits, spaces and ``.-_/``; or ``others`` has
            fewer names than ``count`` requires.
    """
    rng = random.Random(f"arrange {seed}")
    files = themed(rng, screen)
    menu = parameters.get("menu", {})
    names = [*parameters.get("files", {}), *menu, *(item for items in menu.values() for item in items)]
    for name in names:
        if not name or not set(name) <= _SAFE:
            raise TaskError(f"setup step 'arrange': expected letters, digits, spaces and .-_/ in names, got {name!r}")
    groups = [(group, rng.sample(items, len(items))) for group, items in menu.items()]
    rng.shuffle(groups)
    commands = [
        (group, [(item, f"sh -c 'echo {item} &gt;&gt; ~/{CHOSEN}'") for item in items]) for group, items in groups
    ]
    files[MENU] = menu_file(commands)
    files |= {f"{DOCUMENTS}/{name}": content for name, content in parameters.get("files", {}).items()}
    return files | {f"{DOCUMENTS}/{name}": parameters["others"]["content"] for name in _others(parameters, rng)}


def _others(parameters: Mapping[str, Any], rng: random.Random) -> list[str]:
    others = parameters.get("others")
    if others is None:
        return []
    least, most = others["count"]
    if len(others["names"]) < most:
        raise TaskError(f"setup step 'arrange': 'others' requires at least {most} names, got {len(others['names'])}")
    return rng.sample(others["names"], rng.randint(least, most))


def arrange_command(folders: list[str]) -> str:
    """The shell command that follows the files: makes folders, stores the listing, applies openbox's configuration."""
    made = "".join(f" {DOCUMENTS}/'{name}'" for name in folders)
    return f"cd ~ && mkdir -p .cache {DOCUMENTS}{made} && ({LISTING}) > {START} && openbox --reconfigure"
