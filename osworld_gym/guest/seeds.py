"""What an episode's seed changes on the desktop: its background."""

from __future__ import annotations

from .x11.windows import Windows

BACKGROUNDS = (0x2E3440, 0x3B5B4A, 0x4A3B5B, 0x5B4A3B, 0x2F4F6F, 0x6F4F2F)


def apply_seed(seed: int, windows: Windows) -> None:
    """Gives the desktop the background of ``seed``, also if it was started with another; it shows when this returns."""
    windows.paint_root(BACKGROUNDS[seed % len(BACKGROUNDS)])
