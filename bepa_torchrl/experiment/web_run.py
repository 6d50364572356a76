"""Judges trajectories of Online-Mind2Web: each judgement is appended to a folder, and none is paid for twice.

settings.yaml      what the evaluation is of; it goes on with the same one only
trajectories/      of episodes that were played here; those of other agents are elsewhere
judgements.jsonl   per trajectory the judge's scores and verdict, or why there is none
results.jsonl      the outcomes of all tasks, at the end
facts.json         how they were measured, at the end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bepa_torchrl.endpoint import AnswerError, ChatModel, RequestRefusedError, asked
from bepa_torchrl.evaluation.outcomes import NOT_JUDGED, Outcome, Result, write_outcomes
from bepa_torchrl.evaluation.web.agreement import agreement
from bepa_torchrl.evaluation.web.judge import MOST_PICTURES, THRESHOLD, judge_name, judge_trajectory
from bepa_torchrl.evaluation.web.trajectories import Trajectory, TrajectoryError, problems, read_trajectory
from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.evaluation_folder import claim
from bepa_torchrl.experiment.evaluation_run import EPISODES
from bepa_torchrl.rollout.stages import StageProgress
from bepa_torchrl.storage.json_lines import json_line, read_lines
from bepa_torchrl.storage.lock import locked
from osworld_gym.atomic import write_text
from osworld_gym.tasks.suites.web import WebTask, WebTasks

NAME, PUBLISHED = "online_mind2web", 300  #: of every edition: the number of tasks
JUDGEMENTS, TRAJECTORIES = "judgements.jsonl", "trajectories"
BY_JUDGE = "a judge (language model), with our own wording of WebJudge: not the official judge's score"
NO_JUDGE = "none: the episodes were played, and not judged"
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
        folder: the folder of the evaluation.
        labels: the labels of people, by task; None: there are none.
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
        facts = _facts(tasks, model, lines) | {"policy": trajectories.name, "trajectories_of_other_tasks": len(other)}
        facts |= _agreement(outcomes, labels)
        write_outcomes(folder, outcomes, facts)
    return outcomes, facts


def judge_played(
    tasks: WebTasks,
    played: tuple[list[Outcome], dict[str, Any]],
    model: ChatModel | None,
    folder: Path,
    *,
    labels: Mapping[str, bool | None] | None,
    progress: StageProgress,
) -> tuple[list[Outcome], dict[str, Any]]:
    """Judges the episodes of an evaluation that were played for a judge, and writes its outcomes and facts again.

    The episodes' records get the judge's reward, and its name.

    Args:
        tasks: all tasks of the edition.
        played: the evaluation's outcomes and facts.
        model: the judge; None: nobody is asked, and what was judged before is used.
        folder: the folder of the evaluation.
        labels: the labels of people, by task; None: there are none.
        progress: shows how far it is.

    Raises:
        ConfigError: another judge has judged a part.
        EndpointError: the endpoint gave no answer; what was judged is kept.
    """
    outcomes, facts = played
    names = [each.task for each in outcomes if each.reason == NOT_JUDGED]
    with locked(folder):
        readable, torn = _readable(tasks, folder / TRAJECTORIES, names)
        path = folder / JUDGEMENTS
        if model is None:
            lines = _known(path, readable)
        else:
            _check_judge(path, model)
            lines = _judgements(tasks, readable, model, path, progress)
        outcomes = [_judged(tasks, each, lines, torn, labels or {}) for each in outcomes]
        facts = facts | _facts(tasks, model, lines) | _agreement(outcomes, labels)
        _mark_rewards(folder / EPISODES, lines)
        write_outcomes(folder, outcomes, facts)
    return outcomes, facts


def can_be_judged(folder: Path, task: str) -> bool:
    """Whether the evaluation's folder has the trajectory of a task, complete."""
    try:
        read_trajectory(folder / TRAJECTORIES / task)
    except TrajectoryError:
        return False
    return True


def _agreement(outcomes: list[Outcome], labels: Mapping[str, bool | None] | None) -> dict[str, Any]:
    """The fact ``agreement``, if there are labels."""
    if labels is None:
        return {}
    verdicts = {each.task: each.result is Result.success for each in outcomes if each.score is not None}
    return {"agreement": agreement(verdicts, labels)}


def _check_judge(path: Path, model: ChatModel) -> None:
    """Raises ConfigError if another judge has judged a part of the episodes."""
    judges = {line["judgement"]["judge"] for line in (read_lines(path) if path.exists() else ()) if line["judgement"]}
    other = next(iter(judges - {judge_name(model)}), None)
    if other is not None:
        raise ConfigError(
            f"{path} has judgements of {other}, got {judge_name(model)}; judge with the same model, or judge "
            f"{path.parent / TRAJECTORIES} with --trajectories and another --out"
        )


def _judged(
    tasks: WebTasks,
    outcome: Outcome,
    lines: Mapping[str, Line],
    torn: Mapping[str, str],
    labels: Mapping[str, bool | None],
) -> Outcome:
    """The outcome of a played episode, with the judge's verdict in it if it is one for the judge."""
    unlabelled = outcome.task not in labels or labels[outcome.task] is not None
    if outcome.reason != NOT_JUDGED and unlabelled:
        return outcome
    line, why = lines.get(outcome.task), torn.get(outcome.task)
    if line is None and why is None and unlabelled:
        return outcome
    found = _outcome(tasks.tasks[outcome.task], line, why, labels)
    return replace(outcome, result=found.result, score=found.score, reason=found.reason)


def _mark_rewards(path: Path, lines: Mapping[str, Line]) -> None:
    """Writes the judge's rewards and name into the record of the episodes."""
    judgements = {name: line["judgement"] for name, line in lines.items() if line["judgement"]}
    if not judgements:
        return
    marked = []
    for line in read_lines(path):
        judgement = judgements.get(line["task_id"]) if line["outcome"]["reason"] == NOT_JUDGED else None
        more = {} if judgement is None else {"reward": float(judgement["success"]), "judge": judgement["judge"]}
        marked.append(line | more)
    write_text(path, "".join(map(json_line, marked)))


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


def _facts(tasks: WebTasks, model: ChatModel | None, lines: Mapping[str, Line]) -> dict[str, Any]:
    """What the judgements are of, and who made them."""
    judgements = [line["judgement"] for line in lines.values() if line["judgement"]]
    scores = [score for judgement in judgements for score in judgement["scores"]]
    judge = judge_name(model) if model is not None else judgements[0]["judge"] if judgements else None
    facts: dict[str, Any] = {
        "suite": NAME if len(tasks.tasks) == PUBLISHED else f"other tasks in the format of {NAME}",
        "digest": tasks.digest,
        "levels": dict(Counter(task.level for task in tasks.tasks.values())),
        "verifier": NO_JUDGE if judge is None else BY_JUDGE,
        "judge": judge,
        "threshold": THRESHOLD,
        "most_pictures": MOST_PICTURES,
        "pictures": len(scores),
        "pictures_without_score": scores.count(0),
        "submission_problems": dict(Counter(each for line in lines.values() for each in line["problems"])),
    }
    if model is not None:
        endpoint = model.endpoint
        facts["judge_temperature"] = None if endpoint.reasoning else endpoint.temperature
        facts["judge_max_tokens"] = endpoint.max_tokens
    return facts
