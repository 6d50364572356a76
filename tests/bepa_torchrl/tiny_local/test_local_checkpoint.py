"""The local checkpoint that ships with the package: its files, its measured gate, and that it plays real desktops."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.tiny.checkpoint import file_hashes, read_manifest
from bepa_torchrl.tiny_local.checkpoint import FOLDER, local_checkpoint
from bepa_torchrl.tiny_local.config import SCREEN
from bepa_torchrl.tiny_local.evaluate import MAX_STEPS, gate_failures
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.varied.suite import varied_suite
from osworld_gym.vector import DesktopVector


def test_the_files_are_those_of_the_manifest_and_at_most_15_mb() -> None:
    folder = local_checkpoint()
    assert folder == FOLDER
    assert read_manifest(folder)["sha256"] == file_hashes(folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 15e6


def test_a_missing_checkpoint_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bepa_torchrl.tiny_local.checkpoint.FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="make tiny-local"):
        local_checkpoint()


def test_its_measured_figures_pass_the_gate() -> None:
    measured = read_manifest(local_checkpoint())["measured"]
    assert gate_failures(measured) == []
    assert measured["episodes_per_task"] >= 4


@pytest.mark.desktop
def test_it_solves_most_known_tasks_on_real_desktops() -> None:
    policy = load_policy(local_checkpoint(), preset="compact", max_new_tokens=48)
    tasks = [task for task in varied_suite().split("train") if "known" in task.tags]
    jobs = []
    for number, task in enumerate(tasks):
        key = episode_key(77, Stream.TINY_EVALUATION, 0, number, 0)
        jobs.append(EpisodeJob(task, key, desktop_seed(key), number))
    options = EpisodeOptions(max_steps=MAX_STEPS, scaling=policy.image_scaling)
    vector = DesktopVector(partial(make_desktop, "local", width=SCREEN[0], height=SCREEN[1]), 4, options)
    try:
        results = run_episodes(policy, vector, jobs)
    finally:
        vector.close()
    assert len(results) == 12
    # 80 % and more were measured; at a rate of 80 % at least 6 of 12 succeed in 99.6 % of the runs
    assert sum(result.success for result in results) >= 6
