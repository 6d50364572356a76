"""Judges trajectories of Online-Mind2Web: each judgement is appended to a folder, and none is paid for twice.

settings.yaml      what the evaluation is of; it goes on with the same one only
judgements.jsonl   per trajectory the judge's scores and verdict, or why there is none
results.jsonl      the outcomes of all tasks, at the end
facts.json         how they were measured, at the end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bepa_torchrl.endpoint import AnswerError, ChatModel, RequestRefusedError, asked
from bepa_torchrl.evaluation.outcomes import Outcome, Result, write_outcomes
from bepa_torchrl.evaluation.web.agreement import agreement
from bepa_torchrl.evaluation.web.judge import MOST_PICTURES, THRESHOLD, judge_name, judge_trajectory
from bepa_torchrl.evaluation.web.tasks import WebTask, WebTasks
from bepa_torchrl.evaluation.web.trajectories import Trajectory, TrajectoryError, problems, read_trajectory
from bepa_torchrl.experiment.evaluation_run import claim
from bepa_torchrl.rollout.stages import StageProgress
from bepa_torchrl.storage.json_lines import json_line, read_lines
from bepa_torchrl.storage.lock import locked
from osworld_gym.atomic import write_text

NAME = "online_mind2web"
JUDGEMENTS = "judgements.jsonl"
Line = Mapping[str, Any]


def judge_evaluation(
    tasks: WebTasks,
    trajectories: Path,
    model: ChatModel,
    folder: Path,
    *,
    labels: Mapping[str, bool | None] | None,
    progress: StageProgress,
) -> tuple[list[Outcome], dict[str, Any]]:
    """Judges every trajectory that has no judgement yet, and writes the folder; returns outcomes and facts.

    A task without a trajectory, with a torn one or one of another edition, and one of which the judge gave no verdict,
    has no result. A trajectory that has changed is judged again.

    Args:
        tasks: all tasks of the edition.
        trajectories: folder with a folder per task.
        model: the judge.
        folder: of the evaluation.
        labels: of people, by task; None: there are none.
        progress: shows how far it is.

    Raises:
        ValueError: no trajectory is of these tasks. ConfigError: the folder has another evaluation.
        EndpointError: the endpoint gave no answer; the judgements before it are kept.
    """
    names = sorted(path.name for path in trajectories.iterdir() if path.is_dir()) if trajectories.is_dir() else []
    other = [name for name in names if name not in tasks.tasks]
    if len(other) == len(names):
        raise ValueError(
            f"{trajectories}: expected folders TASK_ID with result.json of the {len(tasks.tasks)} tasks of --data "
            f"(edition {tasks.digest}), found {len(names)} folders, none of them; is --data of another edition?"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        claim(folder, _identity(tasks, trajectories, model))
        readable, torn = _readable(tasks, trajectories, names)
        lines = _judgements(tasks, readable, model, folder / JUDGEMENTS, progress)
        known = labels or {}
        outcomes = [_outcome(task, lines.get(name), torn.get(name), known) for name, task in tasks.tasks.items()]
        facts = _facts(tasks, trajectories, model, lines, other)
        if labels is not None:
            verdicts = {each.task: each.result is Result.success for each in outcomes if each.score is not None}
            facts["agreement"] = agreement(verdicts, labels)
        write_outcomes(folder, outcomes, facts)
    return outcomes, facts


def _identity(tasks: WebTasks, trajectories: Path, model: ChatModel) -> str:
    """What the folder's judgements are of, and by whom."""
    judge = f"{judge_name(model)}, {model.endpoint.max_tokens} tokens"
    return f"# suite {NAME}, data {tasks.digest}, trajectories {trajectories.resolve()}, judge {judge}\n"


def _readable(tasks: WebTasks, root: Path, names: list[str]) -> tuple[dict[str, Trajectory], dict[str, str]]:
    """The trajectories that can be judged, and why others cannot, by task."""
    readable: dict[str, Trajectory] = {}
    torn: dict[str, str] = {}
    for name in names:
        task = tasks.tasks.get(name)
        if task is None:
            continue
        try:
            trajectory = read_trajectory(root / name)
        except TrajectoryError:
            torn[name] = "the trajectory is torn"
            continue
        if trajectory.task.split() == task.text.split():
            readable[name] = trajectory
        else:
            torn[name] = "the trajectory's task is of another edition"
    return readable, torn


def _judgements(
    tasks: WebTasks, readable: Mapping[str, Trajectory], model: ChatModel, path: Path, progress: StageProgress
) -> dict[str, Line]:
    """A line for each trajectory, those of earlier processes included."""
    lines = _known(path, readable)
    missing = [name for name in readable if name not in lines]
    progress.begin(NAME, len(readable), len(lines))

    def work(name: str) -> Line:
        return _judge(tasks.tasks[name], readable[name], model)

    with path.open("a", encoding="utf-8") as file:
        for name, line in asked(missing, work, at_once=model.endpoint.at_once):
            file.write(json_line(line))
            file.flush()
            lines[name] = line
            progress.advance()
    return lines


def _judge(task: WebTask, trajectory: Trajectory, model: ChatModel) -> Line:
    """The line of a trajectory."""
    line: dict[str, Any] = {"task": task.id, "trajectory": trajectory.digest, "steps": len(trajectory.steps)}
    line["problems"] = problems(trajectory, task)
    try:
        judgement = judge_trajectory(trajectory, model)
    except TrajectoryError as error:
        return line | {"judgement": None, "reason": "the trajectory is torn", "detail": str(error)}
    except AnswerError as error:
        return line | {"judgement": None, "reason": "the judge gave no verdict", "detail": str(error)}
    except RequestRefusedError as error:
        return line | {"judgement": None, "reason": "the judge refused the request", "detail": str(error)}
    return line | {"judgement": asdict(judgement), "reason": "", "detail": ""}


def _known(path: Path, readable: Mapping[str, Trajectory]) -> dict[str, Line]:
    """The judgements of earlier processes, of trajectories that are still the same; the others are judged again."""
    if not path.exists():
        return {}
    now = {name: trajectory.digest for name, trajectory in readable.items()}
    kept = [line for line in read_lines(path) if line["judgement"] and now.get(line["task"]) == line["trajectory"]]
    write_text(path, "".join(map(json_line, kept)))  # also without a line that was torn by a kill
    return {line["task"]: line for line in kept}


def _outcome(task: WebTask, line: Line | None, torn: str | None, labels: Mapping[str, bool | None]) -> Outcome:
    """The outcome of a task; its domain is the level."""
    if task.id in labels and labels[task.id] is None:
        reason = "not executable: by its human label"
    elif line is None:
        reason = torn or "no trajectory of it"
    else:
        reason = line["reason"]
    steps = 0 if line is None else line["steps"]
    if reason or line is None:
        return Outcome(task.id, task.level, 0, Result.no_result, None, reason=reason, steps=steps)
    success = line["judgement"]["success"]
    return Outcome(task.id, task.level, 0, Result.success if success else Result.failure, float(success), steps=steps)


def _facts(
    tasks: WebTasks, trajectories: Path, model: ChatModel, lines: Mapping[str, Line], other: list[str]
) -> dict[str, Any]:
    endpoint = model.endpoint
    scores = [score for line in lines.values() if line["judgement"] for score in line["judgement"]["scores"]]
    return {
        "suite": NAME,
        "digest": tasks.digest,
        "levels": dict(Counter(task.level for task in tasks.tasks.values())),
        "policy": trajectories.name,
        "verifier": "a judge (language model), with our own wording of WebJudge: not the official judge's score",
        "judge": judge_name(model),
        "threshold": THRESHOLD,
        "most_pictures": MOST_PICTURES,
        "judge_temperature": None if endpoint.reasoning else endpoint.temperature,
        "judge_max_tokens": endpoint.max_tokens,
        "pictures": len(scores),
        "pictures_without_score": scores.count(0),
        "submission_problems": dict(Counter(each for line in lines.values() for each in line["problems"])),
        "trajectories_of_other_tasks": len(other),
    }
