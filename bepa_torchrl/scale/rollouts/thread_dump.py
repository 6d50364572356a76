"""What the threads of a process wait for, for the report of a stall."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

_FRAMES = 4  #: innermost ones per thread


def waiting_threads() -> dict[str, str]:
    """Thread name → its innermost frames, the innermost first."""
    frames = sys._current_frames()
    threads = {}
    for thread in threading.enumerate():
        if thread.ident in frames and thread is not threading.current_thread():
            stack = traceback.extract_stack(frames[thread.ident])[-_FRAMES:]
            places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(stack)]
            threads[thread.name] = " < ".join(places)
    return threads
