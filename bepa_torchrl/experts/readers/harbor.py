"""Harbor's folders: which trajectories are an agent's, of which task a trial is, and how it ended.

    <job>/result.json                            a summary of the job, which is no trial
    <job>/<task, cut>__<id>/result.json          the trial: task_name, verifier_result.rewards, exception_info
    .../agent/trajectory.json                    the agent's trajectory, in ATIF
    .../agent/trajectory.cont-1.json             its continuation, of the same trial
    .../agent/trajectory.summarization-1-*.json  those of subagents, which only summarised
    .../user-agent/trajectory.json               that of a simulated user
    .../verifier/reward.json, reward.txt         the verifier's rewards
    .../steps/<step>/agent/, verifier/           the same for each step of a task that has several

As Harbor 0.26 writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.run import Outcome
from bepa_torchrl.experts.trace import TraceError, read_json

RESULT, USER = "result.json", "user-agent"


@dataclass(frozen=True)
class Trial:
    """A trial, or one of its steps.

    Args:
        folder: its folder, with ``agent/`` and ``verifier/``.
    """

    folder: Path

    @classmethod
    def of(cls, trajectory: Path) -> Trial:
        """The trial of a trajectory's file: the folder above ``agent/``, or the file's own."""
        return cls(trajectory.parent.parent if trajectory.parent.name == "agent" else trajectory.parent)

    @cached_property
    def task(self) -> str:
        """The task's id; of a step ``task/step``. Without ``result.json`` the folder's name, cut to 32 characters."""
        name = str(self._whole.get("task_name") or "").rpartition("/")[2]
        root = self.folder.parent.parent if self._step else self.folder
        name = name or root.name.rpartition("__")[0] or root.name
        return f"{name}/{self._step}" if self._step else name

    def outcome(self, extra: Mapping[str, Any]) -> tuple[Outcome, str]:
        """The verifier's outcome, and why there is none.

        Args:
            extra: of the trajectory, whose ``reward`` counts where Harbor has left none.
        """
        try:
            reward = next((found for found in self._rewards() if found is not None), extra.get("reward"))
        except TraceError as error:
            return Outcome.no_result, str(error)
        except (TypeError, AttributeError) as error:
            return Outcome.no_result, f"the verifier's rewards are not numbers by name ({error})"
        if isinstance(reward, int | float) and math.isfinite(reward):
            return (Outcome.success if reward == 1 else Outcome.failure), ""
        if isinstance(crash := self._own.get("exception_info"), dict):
            text = f"{crash.get('exception_type')}: {crash.get('exception_message')}"
            return Outcome.crashed, f"crashed: {text:.200}"
        return Outcome.no_result, f"no verifier/reward.txt, verifier/reward.json, {RESULT} with rewards or extra.reward"

    def _rewards(self) -> Iterator[Any]:
        """The rewards, as ``result.json`` and the verifier's files have them, in the order in which they count."""
        yield _reward((self._own.get("verifier_result") or {}).get("rewards"))
        text, rewards = (self.folder / "verifier" / name for name in ("reward.txt", "reward.json"))
        if rewards.is_file():
            values = read_json(rewards)
            yield _reward(values.get("rewards", values))
        if text.is_file():
            yield _number(text)

    @cached_property
    def _step(self) -> str:
        """The name of the step, or an empty text."""
        return self.folder.name if self.folder.parent.name == "steps" else ""

    @cached_property
    def _whole(self) -> Mapping[str, Any]:
        """``result.json`` of the trial; empty if there is none that can be read."""
        return _result(self.folder.parent.parent if self._step else self.folder) or {}

    @cached_property
    def _own(self) -> Mapping[str, Any]:
        """What ``result.json`` says of the trial, or of the step."""
        if not self._step:
            return self._whole
        steps = self._whole.get("step_results") or []
        return next((s for s in steps if isinstance(s, dict) and s.get("step_name") == self._step), {})


def trials(root: Path) -> Iterator[Trial]:
    """The trials below a folder that have a ``result.json``, by folder; summaries of jobs are none."""
    for path in sorted(root.rglob(RESULT)):
        result = _result(path.parent)
        if result is not None and not (path.parent / "steps").is_dir():
            yield Trial(path.parent)


def own_trajectories(root: Path) -> Iterator[tuple[Path, dict[str, Any] | TraceError]]:
    """The agent's ATIF trajectories below a folder, by path, or why a file cannot be read.

    Those of subagents, which another in the folder refers to, and of simulated users are left out.
    """
    folders: dict[Path, list[Path]] = {}
    for path in sorted(root.rglob("*trajectory*.json")):
        if path.parent.name != USER:
            folders.setdefault(path.parent, []).append(path)
    for paths in folders.values():
        several = len(paths) > 1
        read = [(path, _atif(path)) for path in paths]
        others = {name for _, data in read if isinstance(data, dict) for name in _subagents(data)} if several else set()
        for path, data in read:
            if data is not None and path.name not in others and not (isinstance(data, dict) and _is_subagent(data)):
                yield path, data


def _atif(path: Path) -> dict[str, Any] | TraceError | None:
    """The trajectory in a file, None if that is of another format."""
    try:
        data = read_json(path)
    except TraceError as error:
        return error
    return data if str(data.get("schema_version", "")).startswith("ATIF-") else None


def _subagents(data: Mapping[str, Any]) -> Iterator[str]:
    """The names of the files of subagents that a trajectory refers to. Never raises on JSON."""
    steps = data.get("steps")
    for step in steps if isinstance(steps, list) else []:
        observation = step.get("observation") if isinstance(step, dict) else None
        results = observation.get("results") if isinstance(observation, dict) else None
        for result in results if isinstance(results, list) else []:
            refs = result.get("subagent_trajectory_ref") if isinstance(result, dict) else None
            for ref in refs if isinstance(refs, list) else []:
                if isinstance(ref, dict) and ref.get("trajectory_path"):
                    yield Path(str(ref["trajectory_path"])).name


def _is_subagent(data: Mapping[str, Any]) -> bool:
    """Whether a trajectory names the run that it was made for, also where that ended before it could refer to it."""
    agent = data.get("agent")
    extra = agent.get("extra") if isinstance(agent, dict) else None
    return isinstance(extra, dict) and bool(extra.get("parent_session_id"))


def _result(folder: Path) -> dict[str, Any] | None:
    """``result.json`` of a trial; None if there is none, or it is of something else."""
    try:
        data = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and {"task_name", "trial_name"} <= data.keys() else None


def _reward(values: Any) -> Any:
    """The reward of several: the one of that name, or the least."""
    return values.get("reward", min(values.values(), default=None)) if isinstance(values, dict) else None


def _number(path: Path) -> float | None:
    """The number in a file, None if there is something else. Raises TraceError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TraceError(f"verifier/{path.name} is not readable ({error})") from error
    try:
        return float(text)
    except ValueError:
        return None
