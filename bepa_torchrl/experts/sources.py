"""Reads expert traces from a source given in the settings: a framework's logs, or a folder of saved traces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from bepa_torchrl.experts.trace import ExpertTrace, TraceError, load_traces
from osworld_gym.tasks.task import Task


def split_source(source: str) -> tuple[str, Path]:
    """Splits ``NAME:FOLDER``, such as ``agent_s2:FOLDER`` or ``auto:FOLDER``, into (reader, folder).

    A FOLDER alone is ("", folder): a folder of traces, otherwise as ``auto:FOLDER``.

    Raises:
        TraceError: the reader or the folder does not exist.
    """
    from bepa_torchrl.experts.readers.registry import find_reader  # the readers are many, and not of every run

    reader, colon, rest = source.partition(":")
    folder = Path(rest if colon else source).expanduser()
    if colon:
        try:
            find_reader(reader)
        except TraceError as error:
            raise TraceError(f"{source!r}: {error}; write NAME:FOLDER, or a FOLDER alone") from error
    if not folder.is_dir():
        where = "" if folder.is_absolute() else f" in {Path.cwd()}"
        raise TraceError(f"{source!r}: there is no folder {folder}{where}; give the path of the folder with the logs")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise TraceError(f"{source!r}: {folder} cannot be read: its permissions forbid it; change them")
    return (reader if colon else ""), folder


def read_source(
    source: str, tasks: Iterable[Task], *, successes: bool = False, images: bool = True
) -> list[ExpertTrace]:
    """The traces of the source whose task is in ``tasks``; each names its origin.

    Args:
        source: as of :func:`split_source`.
        tasks: the tasks.
        successes: only the successful traces, of which there may be none; False: the failed ones, too.
        images: False: the screenshots are not kept in memory, only their hashes; a reader that is a plain function
            keeps them.

    Raises:
        TraceError: as :func:`split_source`; there is no trace of these tasks, or one cannot be read.
    """
    reader, folder = split_source(source)
    traces = _traces_of(reader, folder, tasks, successes=successes, images=images)
    return [trace if trace.origin else replace(trace, origin=source) for trace in traces]


def _traces_of(reader: str, folder: Path, tasks: Iterable[Task], *, successes: bool, images: bool) -> list[ExpertTrace]:
    """The traces as the reader, or the folder of saved traces, has them; raises as :func:`read_source`."""
    from bepa_torchrl.experts.readers.registry import AUTO, RunReader, find_reader, read_all

    tasks = list(tasks)
    known = {task.id for task in tasks}
    if reader or not (folder / "traces").is_dir():
        read = find_reader(reader or AUTO)
        if isinstance(read, RunReader):
            return read.read(folder, tasks, successes=successes, images=images)
        traces = [trace for trace in read_all(reader, folder, tasks) if trace.task_id in known]
        return [trace for trace in traces if trace.success or not successes]
    traces = load_traces(folder, images=images)
    wanted = [trace for trace in traces if trace.task_id in known]
    if not wanted:
        raise TraceError(
            f"{folder}: none of its {len(traces)} traces is of one of the {len(known)} tasks; it has traces of "
            f"{', '.join(sorted({trace.task_id for trace in traces})[:3])}: choose the suite and split of these tasks"
        )
    return [trace for trace in wanted if trace.success or not successes]


def successful_traces(sources: Sequence[str], tasks: Sequence[Task], *, images: bool = True) -> list[ExpertTrace]:
    """The successful traces of all sources on these tasks, in the order of the sources; a task may have several.

    Args:
        sources: as of :func:`split_source`.
        tasks: the tasks.
        images: as of :func:`read_source`.

    Raises:
        TraceError: a source cannot be read, or no trace is successful.
    """
    if not sources:
        raise TraceError("expected a source, NAME:FOLDER or FOLDER of expert logs or traces, got settings only; add it")
    solved = [trace for source in sources for trace in read_source(source, tasks, successes=True, images=images)]
    if not solved:
        raise _unsolved(sources, tasks)
    return solved


def check_solved(sources: Sequence[str], tasks: Sequence[Task]) -> None:
    """Checks what :func:`successful_traces` requires, as far as no screenshot has to be loaded for it.

    Raises:
        TraceError: a source cannot be read or has no run of these tasks, or no run solved one.
    """
    successes = [_has_success(source, tasks) for source in sources]
    if not any(successes):
        raise _unsolved(sources, tasks)


def _has_success(source: str, tasks: Sequence[Task]) -> bool:
    from bepa_torchrl.experts.readers.registry import AUTO, RunReader, find_reader

    reader, folder = split_source(source)
    read = find_reader(reader or AUTO)
    if isinstance(read, RunReader) and (reader or not (folder / "traces").is_dir()):
        return read.solved(folder, tasks)
    return bool(read_source(source, tasks, successes=True, images=False))


def _unsolved(sources: Sequence[str], tasks: Sequence[Task]) -> TraceError:
    return TraceError(
        f"{', '.join(sources)}: no run that solved one of the {len(tasks)} tasks (`bepa experts check` lists "
        "all); add the logs of successful runs (expert.logs), or choose tasks that it solved (env.train_split)"
    )
