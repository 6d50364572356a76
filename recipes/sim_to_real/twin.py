"""Builds the twin of tasks on real desktops: plays the oracles and the base policy there, and records every state.

folder/recordings/<task>.json, images/   what :class:`osworld_gym.desktops.recorded.RecordedDesktop` shows
folder/experts/                          one trace of the expert per task
folder/suite/                            the tasks on the recorded desktop
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experts import ExpertTrace, plan_from_trace, save_traces
from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.policies.base import ModelSampler
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from osworld_gym.atomic import write_text
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.recorded.desktop import SCORE_FILE, STEP, recording_path
from osworld_gym.desktops.recorded.graph import Recording
from osworld_gym.desktops.recorded.recorder import Recorder, RecordingDesktop
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason
from osworld_gym.vector import DesktopVector

STYLES = ("native", "expert")  #: of the oracles that are played
_COUNTED = ("repeated", "differing", "other_starts")  #: by the recorder of a task


@dataclass(frozen=True)
class Effort:
    """How much is recorded of each task.

    Args:
        seeds: seeds of the desktop.
        rollouts: episodes of the base policy per seed, every other one with the expert's plan in the prompt.
        seed: the seed of all of them.
    """

    seeds: int = 4
    rollouts: int = 8
    seed: int = 0


def build_twin(
    folder: Path,
    settings: Settings,
    tasks: Sequence[Task],
    policy: ModelSampler,
    effort: Effort,
    note: Callable[[str], None],
) -> dict[str, float]:
    """Records the tasks that ``folder`` does not have yet, one after the other; returns :func:`counts`.

    Args:
        folder: of the twin.
        settings: of the real desktops and the policy.
        tasks: what is recorded; their verifiers must not change the desktop.
        policy: the base policy.
        effort: how much of each task.
        note: is called with a line about each task.

    Raises:
        ValueError: a task's verifier has steps of its own, no expert's run of a task succeeded, or ``folder`` has
            recordings of another effort.
        DesktopError: a desktop cannot be made.
    """
    for task in tasks:
        if task.evaluator.get("postconfig"):
            raise ValueError(f"{task.id}: its verifier changes the desktop (postconfig), so states cannot be scored")
        if not recording_path(folder, task.id).exists():
            note(f"{task.id}: {_record(folder, settings, task, policy, effort)}")
        elif (made := _notes(folder, task.id).get("effort", asdict(effort))) != asdict(effort):
            raise ValueError(
                f"{task.id} was recorded with {made}, got {asdict(effort)}; give the same --record-seeds, --rollouts "
                "and --seed, or another --work"
            )
    shutil.rmtree(folder / "suite", ignore_errors=True)  # a task of an earlier call would be trained on
    for task in tasks:
        path = folder / "suite" / "examples" / (task.domain or "desktop") / f"{task.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(twin_task(task).to_json(), indent=1) + "\n")
    return counts(folder, tasks)


def _record(folder: Path, settings: Settings, task: Task, policy: ModelSampler, effort: Effort) -> str:
    """Records one task; its file is written last, so that it is there when all else is."""
    env, recorders = settings.env, list[Recorder]()

    def make() -> Desktop:
        inner = make_desktop(env.provider, **env.options)
        if not recorders:
            recorders.append(Recorder(folder, inner.screen_size))
        return RecordingDesktop(inner, recorders[0], partial(score_of, task))

    with make() as desktop:
        seeds = [desktop_seed(_key(effort, number, 0)[:-1]) for number in range(effort.seeds)]
        traces = [
            record_expert(desktop, task, seed, style=style, oracle=_OnInner(task, style))
            for seed in seeds
            for style in STYLES
        ]
    expert = next((trace for trace in traces[1::2] if trace.success), None)
    if expert is None:
        raise ValueError(f"{task.id}: none of the expert's {effort.seeds} runs succeeded; record more seeds")
    options = EpisodeOptions(max_steps=env.max_steps, scaling=policy.renderer.image_scaling)
    with closing(DesktopVector(make, env.desktops, options, deadline=env.deadline)) as vector:
        results = run_episodes(policy, vector, _jobs(task, seeds, expert, effort), keep_rows=False)
    save_traces([expert], folder / "experts")
    recorder = recorders[0]
    notes = {name: getattr(recorder, name) for name in _COUNTED} | {"effort": asdict(effort)}
    write_text(_notes_path(folder, task.id), json.dumps(notes) + "\n")
    recorder.recording.save(recording_path(folder, task.id))
    won = sum(result.success for result in results)
    return f"{_states(recorder.recording)} states, the policy solved {won} of {len(results)} episodes"


class _OnInner:
    """A task's oracle on a recording desktop: it looks at the desktop inside."""

    def __init__(self, task: Task, style: str) -> None:
        self._oracle = make_oracle(task, style)

    def next_step(self, desktop: Desktop) -> ExpertStep | None:
        assert isinstance(desktop, RecordingDesktop)
        return self._oracle.next_step(desktop.inner)


def _key(effort: Effort, number: int, slot: int) -> tuple[int, ...]:
    """The key of the episode ``slot`` on the ``number``-th seed; without its slot that of the seed."""
    return episode_key(effort.seed, Stream.TWIN, 0, number, slot)


def _jobs(task: Task, seeds: Sequence[int], expert: ExpertTrace, effort: Effort) -> list[EpisodeJob]:
    """The base policy's episodes, every other one with the expert's plan."""
    plan = plan_from_trace(expert)
    return [
        EpisodeJob(task, _key(effort, number, slot), seed, number, slot, plan if slot % 2 else None)
        for number, seed in enumerate(seeds)
        for slot in range(effort.rollouts)
    ]


def score_of(task: Task, desktop: Desktop) -> float:
    """The verifier's score of the desktop as it is, as if the episode ended now."""
    return verify(task, desktop, stop=StopReason.finished).score


def twin_task(task: Task) -> Task:
    """The task on the recorded desktop: it is solved in a state that the real verifier has scored 1."""
    evaluator = {
        "func": "sim_state",
        "result": {"type": "vm_file", "path": SCORE_FILE, "dest": "score.json"},
        "expected": {"type": "rule", "rules": {"rules": [{"path": ["score"], "op": "eq", "value": 1.0}]}},
    }
    setup = {"type": STEP, "parameters": {"task": task.id}}
    return replace(task, config=(setup,), evaluator=evaluator, oracle=None, raw={})


def counts(folder: Path, tasks: Sequence[Task]) -> dict[str, float]:
    """What was recorded of these tasks: ``states``, known ``actions``, ``solved`` states, and repeated actions.

    ``differing`` of the ``repeated`` ones led to another screen than when they were recorded; ``other_starts`` episodes
    began with another one.
    """
    found = dict.fromkeys(("tasks", "states", "actions", "solved", *_COUNTED), 0.0)
    for task in tasks:
        recording = Recording.load(recording_path(folder, task.id))
        states = [state for states in recording.seeds.values() for state in states]
        notes = _notes(folder, task.id)
        new = {
            "tasks": 1,
            "states": len(states),
            "actions": sum(len(state.after) for state in states),
            "solved": sum(state.score == 1 for state in states),
        }
        for name in found:
            found[name] += (new | notes).get(name, 0)
    return found


def claim_trainings(folder: Path, work: Path, tasks: Sequence[Task]) -> None:
    """Notes which recordings the twin's trainings are on, and checks that they still are.

    Args:
        folder: of the twin.
        work: of all trainings and results.
        tasks: the recorded tasks.

    Raises:
        ValueError: a task was recorded again since.
    """
    found = hashlib.sha256()
    for task in tasks:
        found.update(recording_path(folder, task.id).read_bytes())
    path, now = work / "recordings.txt", found.hexdigest()
    if path.exists() and path.read_text(encoding="utf-8").strip() != now:
        raise ValueError(
            f"{work.name}: its trainings and results are of other recordings than those in {folder.name}; "
            "give another --work"
        )
    write_text(path, now + "\n")


def _notes_path(folder: Path, task_id: str) -> Path:
    return folder / "notes" / f"{task_id}.json"


def _notes(folder: Path, task_id: str) -> dict[str, Any]:
    return dict(json.loads(_notes_path(folder, task_id).read_text(encoding="utf-8")))


def _states(recording: Recording) -> int:
    return sum(map(len, recording.seeds.values()))
