"""Expert frameworks by name, and the function that reads each one's logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from bepa_torchrl.experts.readers.agent_s2 import read_agent_s2
from bepa_torchrl.experts.readers.gui_owl import read_gui_owl
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.tasks.task import Task

#: (folder, tasks) → all traces of these tasks in the folder, including failed ones; raises TraceError
Reader = Callable[[Path, Iterable[Task]], list[ExpertTrace]]

#: name in ``expert.logs=[NAME:FOLDER]`` → its reader; add your own here
READERS: dict[str, Reader] = {"agent_s2": read_agent_s2, "gui_owl": read_gui_owl}
