"""Actions → the command that an official OSWorld server runs for them, made safe to send again and quick to end.

The server starts ``python -c <source>``, collects its output through pipes and answers when they close. So the source
keeps those pipes from what it starts (the clipboard's daemon would hold them open until the server's limit of 120 s),
and it acts only where it can make a marker file: a copy that was sent again finds the marker and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from osworld_gym.types import Action
from osworld_gym.uitars.pyautogui import to_pyautogui

MARKER = "/tmp/.osworld-gym-action-"  # + key: a file inside the desktop; the next actions remove it

_FRAME = """\
import os, sys
try:
    os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    sys.exit(0)
if os.path.exists({previous!r}):
    os.unlink({previous!r})
sys.stderr = os.fdopen(os.dup(2), "w")
for stream in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
import pyautogui
pyautogui.FAILSAFE = False
{actions}
"""


def action_command(actions: Sequence[Action], key: str, previous: str) -> list[str]:
    """The command for ``/execute``; empty when there is nothing to do.

    Args:
        actions: in screen pixels.
        key: names this batch; never used for another one.
        previous: the key of the batch before, or "".

    Raises:
        ValueError: an action that a desktop does not have.
    """
    source = to_pyautogui(actions)
    if not source:
        return []
    return ["python3", "-c", _FRAME.format(marker=MARKER + key, previous=MARKER + previous, actions=source)]
