"""Recordings of six tasks of the simulated desktop, as the library that cloning data is drawn from."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.experts.recording import Episode, load_recordings, record_all
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.suites.sim.suite import sim_suite
from recipes.tiny_local.cloning import Library

_TRAIN = sim_suite().split("train")
TASKS = [*[t for t in _TRAIN if "known" in t.tags][:3], *[t for t in _TRAIN if "unknown" in t.tags][:3]]
KNOWN = [task.id for task in TASKS[:3]]


def recorded(folder: Path) -> Library:
    """Records both styles of every task, with two seeds each, in the folder."""
    episodes = [Episode(task, style, seed) for task in TASKS for style in ("native", "expert") for seed in (0, 1)]
    assert record_all(folder, episodes, SimDesktop, desktops=2).episodes == len(episodes)
    traces = list(load_recordings(folder, episodes, SimDesktop().screen_size))
    styles = [[t for t in traces if t.expert.startswith(style)] for style in ("native", "expert")]
    return Library.of(*styles, KNOWN)
