"""Which files of the packages hold a screenshot while something runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from repository import ROOT
from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from osworld_gym.types import Screenshot

PNG = b"\x89PNG"
PACKAGES = tuple(f"{ROOT / name}/" for name in ("osworld_gym", "bepa_torchrl"))


def carries_screenshot(value: Any, depth: int = 3) -> bool:
    """Whether a value is a screenshot, or a list, record or row that has one. Of a list the first item is looked at."""
    if isinstance(value, Screenshot):
        return True
    if isinstance(value, bytes):
        return value.startswith(PNG)
    if isinstance(value, TensorDictBase):
        return K.SCREENSHOT in value
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return any(carries_screenshot(item, depth - 1) for item in list(value.values())[:1])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(carries_screenshot(item, depth - 1) for item in value[:1])
    if is_dataclass(value) and not isinstance(value, type):
        return any(carries_screenshot(getattr(value, field.name, None), depth - 1) for field in fields(value))
    return False


@contextmanager
def files_that_hold_screenshots() -> Iterator[dict[str, str]]:
    """Fills a mapping from file (relative to the repository) to the first function there that held a screenshot.

    A file holds one if one of its functions returns it, or has it in a local variable when it returns. New threads are
    observed as well.
    """
    held: dict[str, str] = {}

    def observe(frame: FrameType, event: str, returned: Any) -> None:
        name = frame.f_code.co_filename
        if event != "return" or not name.startswith(PACKAGES):
            return
        file = str(Path(name).relative_to(ROOT))
        if file not in held and any(map(carries_screenshot, [returned, *frame.f_locals.values()])):
            held[file] = frame.f_code.co_qualname

    before = sys.getprofile()
    threading.setprofile(observe)
    sys.setprofile(observe)
    try:
        yield held
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]
