"""All endpoints of one desktop as a table: (method, path) → what answers. No HTTP here."""

from __future__ import annotations

from .accessibility import Accessibility
from .answers import Table
from .commands import Commands
from .files import Files
from .inputs import Inputs
from .observing import Observing
from .opening import Opening
from .pulse import Pulse
from .recording import Recording
from .running import Running
from .screen import Screen
from .wallpaper import Wallpaper
from .windows import Windows


def endpoints(
    screen: Screen, inputs: Inputs, windows: Windows, commands: Commands, pulse: Pulse, recording: Recording
) -> Table:
    """Every endpoint, over the parts of one desktop. Called from many threads."""
    groups = (
        Observing(screen, inputs, windows, pulse),
        Running(screen, windows, commands),
        Opening(screen, windows, commands),
        Files(commands),
        Wallpaper(commands, windows, screen.size),
        Accessibility(commands, windows),
        recording,
    )
    table: Table = {}
    for group in groups:
        table |= group.routes()
    return table
