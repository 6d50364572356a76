"""``experiment=local`` (make train-local) in small: the files of a run on real desktops, one of which is killed."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_checkpoint import random_checkpoint
from PIL import Image
from processes import names
from rich.console import Console

from bepa_torchrl.experiment import launcher as program
from bepa_torchrl.experiment import phases
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.monitoring.status import run_status
from bepa_torchrl.storage.record_format import image_path
from osworld_gym.errors import FailureReason
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.vector import DesktopVector
from recipes.tiny_local.config import SCREEN

#: 2 iterations of 2 tasks; the expert's traces give a random policy something to learn
SMALL = [
    "experiment=local", "processes=2", "threads=1", "env.desktops=4", "env.warm_pool=1", "env.max_steps=2",
    "env.train_limit=4", "env.held_out_limit=1", "policy.max_new_tokens=8", "collect.groups=2", "collect.group_size=2",
    "train.iterations=2", "expert.pass_k=1", "expert.seed_from_converted=true", "eval.every=0",
    "eval.final_episodes=1", "record.every=1",
]  # fmt: skip


def test_the_screen_is_the_local_policys() -> None:
    options = load_config(["experiment=local"]).env.options
    assert (options["width"], options["height"]) == SCREEN


class Killer(threading.Thread):
    """Kills an X server of this process's desktops, again and again until a failure is counted."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.vector: DesktopVector | None = None
        self.killed, self.done = 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            if self.vector is None:
                continue
            if self.vector.failures:
                return
            for child, name in names(os.getpid()).items():
                if name == "Xvfb":
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
                        self.killed += 1
                    break


@pytest.mark.desktop
def test_a_small_run_leaves_table_curves_and_gif_and_counts_a_killed_desktop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, killer = random_checkpoint(tmp_path / "policy"), Killer()
    make_env = phases.make_env

    def observed(*arguments: Any) -> OSWorldEnv:
        env = make_env(*arguments)
        killer.vector = env.vector
        return env

    monkeypatch.setattr(phases, "make_env", observed)
    killer.start()
    settings = [*SMALL, f"policy.checkpoint={checkpoint}", f"runs={tmp_path}", "name=small"]
    assert program.run(settings, console=Console(quiet=True)) == 0
    killer.done.set()
    run = tmp_path / "small"
    whole = json.loads((run / "results.json").read_text())
    assert killer.killed
    assert sum(count for name, count in whole["prepared"].items() if name.startswith("failed_")) >= 1
    assert whole["sets"]["converted"] == 4, "the oracle solves the tasks"
    for name in ("bepa", "grpo"):
        lines = [line for line in read_lines(run / name / "iterations.jsonl") if line["phase"] == "rl"]
        assert [line["iteration"] for line in lines] == [1, 2]
        assert all(0 < line["collect/busy_seconds"] < line["collect/desktops"] * 600 for line in lines)
        totals = whole["methods"][name]["totals"]
        counted = {key: totals[key] for key in totals if key.startswith("failed_")}
        assert set(counted) == {f"failed_{reason.value}" for reason in FailureReason}
        assert all(counted[key] >= sum(line[f"collect/{key}"] for line in lines) for key in counted)
        assert len(read_lines(run / name / "outcomes.jsonl")) == 2 * 5, "greedy and sampled, 4 + 1 tasks"
    assert whole["methods"]["bepa"]["totals"]["optimizer_steps"] >= 1
    assert all(0 < method["utilisation"] <= 1 for method in run_status(run)["methods"].values())
    text = (run / "results.txt").read_text()
    assert all(word in text for word in ("base", "bepa", "grpo", "train", "held-out", "expert-only"))
    with Image.open(run / "curves.png") as curves, Image.open(run / "before-after.gif") as gif:
        assert curves.size[0] > 600
        assert gif.n_frames == 3, "two steps and the result"
    first = read_lines(run / "base" / "outcomes.jsonl")[0]["steps"][0]["screenshot"]
    with Image.open(image_path(run / "base", first)) as screen:
        assert screen.size == tuple(load_config(SMALL).env.options.values())
