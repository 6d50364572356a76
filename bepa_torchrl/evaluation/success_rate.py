"""Success rates of a policy per task, greedy or sampled, on desktops with fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.rollout.stages import RunEpisodes
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector


@dataclass(frozen=True)
class Evaluation:
    """Counts per task: task id → (successes, valid episodes). Infrastructure failures are not valid episodes."""

    counts: Mapping[str, tuple[int, int]]

    def success(self, task_ids: Collection[str] | None = None) -> float | None:
        """Mean over tasks of the task's success rate, in [0, 1]; None if there is no valid episode.

        Args:
            task_ids: the tasks to include; None: all.
        """
        wanted = self.counts if task_ids is None else set(task_ids)
        rates = [wins / played for task, (wins, played) in self.counts.items() if task in wanted and played]
        return sum(rates) / len(rates) if rates else None

    def to_json(self) -> dict[str, Any]:
        return {task: list(pair) for task, pair in self.counts.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Sequence[int]]) -> Evaluation:
        return cls({task: (int(wins), int(played)) for task, (wins, played) in data.items()})


def evaluation_job(task: Task, seed: int, number: int, episode: int) -> EpisodeJob:
    """Episode ``episode`` of the ``number``-th task of an evaluation with this seed."""
    key = episode_key(seed, Stream.EVALUATION, 0, number, episode)
    return EpisodeJob(task, key, desktop_seed(key), group_id=number, slot=episode)


def evaluate(
    policy: Sampler,
    vector: DesktopVector,
    tasks: Sequence[Task],
    *,
    episodes: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    retries: int = 2,
    keep: Callable[[Sequence[EpisodeResult]], None] | None = None,
    play: RunEpisodes = run_episodes,
) -> Evaluation:
    """Runs every task ``episodes`` times.

    The seeds of desktop and sampling of episode e of the n-th task depend on (seed, n, e) only, so two policies start
    from the same screens.

    Args:
        episodes: episodes per task.
        temperature: sampling temperature; 0 is greedy.
        seed: seed of desktops and sampling.
        retries: further attempts for an episode whose desktop failed.
        keep: is given all episodes at the end.
        play: plays the episodes.
    """
    jobs = [evaluation_job(task, seed, number, e) for number, task in enumerate(tasks) for e in range(episodes)]
    counts = {task.id: (0, 0) for task in tasks}
    results = play(policy, vector, jobs, temperature=temperature, retries=retries)
    for result in results:
        wins, played = counts[result.job.task.id]
        counts[result.job.task.id] = (wins + result.success, played + result.valid)
    if keep is not None:
        keep(results)
    return Evaluation(counts)


def subsets(train: Sequence[Task], held_out: Sequence[Task], expert_only: Collection[str]) -> dict[str, list[str]]:
    """The task sets of reports: both splits, the expert-only tasks, and each split's tags.

    Tags with a colon (``template:…``) are ignored.
    """
    sets = {"train": [t.id for t in train], "held_out": [t.id for t in held_out]}
    if expert_only:
        sets["expert_only"] = [t.id for t in train if t.id in expert_only]
    for split, tasks in (("train", train), ("held_out", held_out)):
        for tag in sorted({tag for task in tasks for tag in task.tags if ":" not in tag}):
            sets[f"{split}/{tag}"] = [task.id for task in tasks if tag in task.tags]
    return sets
