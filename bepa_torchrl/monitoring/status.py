"""The state of a run from its folder alone: progress, throughput, failures, staleness. Reads, never writes.

Needs the base package only, so that a run can be watched from a machine that could not train.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bepa_torchrl.monitoring.final_results import planned_iterations
from bepa_torchrl.storage.json_lines import RecordError, count_units, read_lines
from bepa_torchrl.storage.lock import FolderInUseError, check_free
from bepa_torchrl.storage.record_fields import COUNT, TOTALS, check_fields, check_metrics
from bepa_torchrl.storage.record_format import method_folders, near_run
from bepa_torchrl.training.newest import newest_checkpoint

PREPARING = "preparing"  #: folder in a run's, of what is finished while the preparation is under way
#: the depth of the queue at the end of the newest iteration, asynchronous only
_QUEUE = {
    "waiting_slots": "collect/queue_waiting_slots",
    "open_groups": "collect/queue_open_groups",
    "finished_groups": "collect/queue_finished_groups",
}
#: metrics of the newest iteration that are reported as they are
NEWEST = (
    "collect/success",
    "collect/entropy",
    "cache/tasks",
    "cache/injected",
    "eval/train",
    "eval/held_out",
    "collect/staleness_mean",
    "collect/staleness_max",
    "collect/version_lag_mean",
    "collect/version_lag_max",
    "collect/desktops_busy",
    "collect/desktops_known",
    *_QUEUE.values(),
)
_FAILURES = {
    "env_error": "collect/stop_env_error",
    "crashed_desktop": "collect/stop_crashed_desktop",
    "retries": "collect/retries",
    "groups_requeued": "collect/groups_requeued",
}
_FAILED = "collect/failed_"  #: and a reason: failed attempts of desktops; none of them is a reward
_STALENESS = "collect/staleness_"
_RECENT = 5  #: iterations that throughput is measured over


def run_status(folder: Path, *, now: float | None = None) -> dict[str, Any]:
    """The state of a run.

    Args:
        folder: the run's, with one folder per method.
        now: seconds since the epoch; None: the clock's.

    Returns:
        ``folder``, ``running`` (whether a process holds it), ``finished`` (whether every method has), ``preparing``
        (finished units of a preparation that is not complete, None otherwise) and ``methods``: name →
        :func:`method_status`.

    Raises:
        RecordError: no run is there, or a file of it is damaged.
    """
    methods = method_folders(folder)
    if not methods:
        raise RecordError(f"{folder}: expected the folder of a run, with a folder per method; {near_run(folder)}")
    try:
        check_free(folder)
        running = False
    except FolderInUseError:
        running = True
    moment = time.time() if now is None else now
    states = {method.name: _status_of(method, moment) for method in methods}
    return {
        "folder": str(folder),
        "running": running,
        "finished": all(method["finished"] for method in states.values()),
        "preparing": None if (folder / "prepared").exists() else count_units(folder / PREPARING),
        "methods": states,
    }


def _status_of(method: Path, now: float) -> dict[str, Any]:
    path = method / "iterations.jsonl"
    lines = read_lines(path) if path.exists() else []
    for number, line in enumerate(lines, 1):
        check_metrics(f"{path}: line {number}", line)
        check_fields(f"{path}: line {number}", line, TOTALS)
    iterations = _iterations_of(method / "config.yaml")
    finished = _has_results(method / "results.json", iterations)
    try:
        state = method_status(lines, iterations, finished=finished)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path}: expected the metrics of a run ({problem}); restore the file") from error
    return state | {
        # the file's time may be another machine's, which may be ahead
        "seconds_since_last": max(0.0, round(now - path.stat().st_mtime, 1)) if lines else None,
        "checkpoint": newest_checkpoint(method / "checkpoints"),
    }


def _has_results(path: Path, iterations: int) -> bool:
    """Whether a method has results of that many iterations: after a resume with more of them, it has those of fewer.

    Raises:
        RecordError: the file is damaged.
    """
    if not path.exists():
        return False
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"{path}: expected the results of a method ({error!r}); restore the file") from error
    check_fields(f"{path}: settings", settings, {"iterations": COUNT})
    done = settings["iterations"]
    return done in (0, iterations)  # 0: it collects no rollouts


def _iterations_of(path: Path) -> int:
    """Iterations of the method whose settings a run has written.

    Raises:
        RecordError: the file is damaged.
    """
    iterations = planned_iterations(path)
    if iterations is None:
        raise RecordError(f"{path}: expected the settings of a run, with algo.name and train.iterations; restore it")
    return iterations


def method_status(lines: Sequence[Mapping[str, Any]], iterations: int, *, finished: bool) -> dict[str, Any]:
    """The state of one method; pure.

    Args:
        lines: the lines of ``iterations.jsonl``.
        iterations: the iterations of the whole training.
        finished: whether the final results are written.

    Returns:
        ``iteration``, ``iterations``, ``finished``; ``seconds``, ``episodes``, ``optimizer_steps`` so far; over the
        last five iterations ``seconds_per_iteration``, ``episodes_per_second`` and ``collecting`` (share of the time
        that was spent waiting for rollouts); ``seconds_left`` of the training, evaluations at its end excluded;
        ``utilisation`` over the same iterations (:func:`utilisation`);
        ``failures`` so far by kind, desktops' by reason; ``staleness``: batches → trained groups of that age,
        asynchronous only; ``queue``: its depth, in episodes that wait for a desktop, groups that are played and groups
        that wait for the trainer, empty if not asynchronous; ``newest``: metrics of the last iteration. Unknown values
        are None.
    """
    trained = [line for line in lines if line["phase"] == "rl"]
    newest = trained[-1] if trained else {}
    evaluated: Mapping[str, Any] = next(
        (line for line in reversed(lines) if line["phase"] == "eval"), {}
    )  # of collect.mode=async
    last = lines[-1] if lines else {}
    recent = trained[-_RECENT - 1 :]
    pace = _pace(recent)
    left = iterations - int(newest.get("iteration", 0))
    each = pace["seconds_per_iteration"]
    return {
        "iteration": int(newest.get("iteration", 0)),
        "iterations": iterations,
        "finished": finished,
        "seconds": last["total/seconds"] if last else 0.0,
        "episodes": last["total/episodes"] if last else 0.0,
        "optimizer_steps": last["total/optimizer_steps"] if last else 0.0,
        **pace,
        "seconds_left": 0.0 if finished else (None if each is None else round(left * each, 1)),
        "utilisation": None if (share := utilisation(recent)) is None else round(share, 3),
        "failures": {name: sum(line.get(key, 0.0) for line in trained) for name, key in _FAILURES.items()}
        | desktop_failures(trained),
        "staleness": _staleness(trained),
        "queue": {name: newest[key] for name, key in _QUEUE.items() if key in newest},
        "newest": {key: line[key] for key in NEWEST for line in (newest, evaluated) if line.get(key) is not None},
    }


def utilisation(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of the time that an average desktop had a call under way while rollouts were collected, in [0, 1].

    The rest of an iteration does not count, since desktops wait while the policy is trained. With asynchronous rollouts
    they do not wait: then it is the share of the whole time that an average desktop had an episode. None without such
    metrics.
    """
    measured = [line for line in lines if "collect/busy_seconds" in line]
    there = sum(
        line["collect/desktop_seconds"]
        if "collect/desktop_seconds" in line
        else line["collect/desktops"] * line["seconds_collect"]
        for line in measured
    )
    return sum(line["collect/busy_seconds"] for line in measured) / there if there else None


def desktop_failures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Failed attempts of desktops by reason, only reasons that occurred."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update({key.removeprefix(_FAILED): line[key] for key in line if key.startswith(_FAILED)})
    return {reason: counts[reason] for reason in sorted(counts) if counts[reason]}


def _staleness(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    groups: Counter[int] = Counter()
    for line in lines:
        for key, count in line.items():
            age = key.removeprefix(_STALENESS)
            if key.startswith(_STALENESS) and age.isdecimal():
                groups[int(age)] += int(count)
    return {str(age): groups[age] for age in sorted(groups)}


def _pace(recent: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """How fast a run went between the first and the last of these lines; None values with fewer than two."""
    if len(recent) < 2:
        return {"seconds_per_iteration": None, "episodes_per_second": None, "collecting": None}
    first, last = recent[0], recent[-1]
    seconds = max(last["total/seconds"] - first["total/seconds"], 1e-9)
    collected = sum(line["seconds_collect"] for line in recent[1:])
    return {
        "seconds_per_iteration": round(seconds / (last["iteration"] - first["iteration"]), 3),
        "episodes_per_second": round((last["total/episodes"] - first["total/episodes"]) / seconds, 3),
        "collecting": round(min(1.0, collected / seconds), 3),
    }


def report(status: Mapping[str, Any]) -> Iterator[str]:
    """The state of a run as lines of text."""
    idle = "finished" if status["finished"] else "no process runs it"
    yield f"{status['folder']}: {'running' if status['running'] else idle}"
    if status["preparing"]:
        yield f"preparation: {status['preparing']} units finished"
    for name, method in status["methods"].items():
        state = "finished" if method["finished"] else f"iteration {method['iteration']} of {method['iterations']}"
        yield f"{name}: {state}, {duration(method['seconds'])}, {method['episodes']:.0f} rollouts"
        if method["seconds_per_iteration"] is not None:
            pace = (
                f"{method['seconds_per_iteration']:.1f} s per iteration, {method['episodes_per_second']:.2f} rollouts/s"
            )
            yield f"  {pace}, {100 * method['collecting']:.0f} % of the time collecting"
        if method["utilisation"] is not None:
            while_what = "" if method["queue"] else " while collecting"
            yield f"  desktops: {100 * method['utilisation']:.0f} % busy{while_what}"
        if not method["finished"] and method["seconds_left"] is not None:
            since = duration(method["seconds_since_last"])
            yield f"  about {duration(method['seconds_left'])} of training left; last iteration {since} ago"
        if not method["finished"] and method["checkpoint"] is not None:
            yield f"  newest checkpoint: iteration {method['checkpoint']}"
        failures = ", ".join(f"{kind} {count:.0f}" for kind, count in method["failures"].items() if count)
        yield f"  failures: {failures or 'none'}"
        if method["queue"]:
            waiting, playing, finished = (f"{method['queue'][name]:.0f}" for name in _QUEUE)
            yield f"  queue: {waiting} episodes wait, {playing} groups are played, {finished} wait for the trainer"
        if method["staleness"]:
            yield "  staleness: " + ", ".join(f"{count} groups at {age}" for age, count in method["staleness"].items())
        if method["newest"]:
            yield "  newest: " + ", ".join(f"{key} {value:.3g}" for key, value in method["newest"].items())


def duration(seconds: float) -> str:
    """Seconds as text, ``2 h 05 min``, ``3 min 20 s`` or ``7 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else (f"{minutes} min {rest:02d} s" if minutes else f"{rest} s")
