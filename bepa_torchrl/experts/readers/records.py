"""Our own traces, which ``bepa record``, :func:`~bepa_torchrl.experts.trace.save_traces` and runs write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.pictures import png_size
from bepa_torchrl.experts.readers.run import Outcome, Run
from bepa_torchrl.experts.trace import SCHEMA, TraceError, read_trace_file, trace_steps


def scan(root: Path) -> list[Run]:
    """The traces in all folders ``traces/<expert>/`` below a folder; their images are checked by header only."""
    return [_run(path, root) for path in _files(root)]


def recordings(root: Path) -> Iterator[Path]:
    """The files of those traces below a folder that can be read."""
    for path in _files(root):
        try:
            read_trace_file(path)
        except TraceError:
            continue
        yield path


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.json")):
        if path.parent.parent.name == "traces" and (path.parents[2] / "images").is_dir() and not _is_of_cache(path):
            yield path


def _is_of_cache(path: Path) -> bool:
    """Whether the file has the rows of a cached trace (:mod:`bepa_torchrl.storage.row_codec`), which are no log."""
    return path.name == "rows.json" and (path.parent / "tensors.safetensors").exists()


def _run(path: Path, root: Path) -> Run:
    name = path.relative_to(root).as_posix()
    try:
        data = read_trace_file(path)
        return _read(data, path, name)
    except TraceError as error:
        reason = str(error)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{path.name}: incomplete trace of schema {SCHEMA} ({type(error).__name__}: {error})"
    return Run("records", path.stem, name, Outcome.no_result, skipped=reason)


def _read(data: dict[str, Any], path: Path, name: str) -> Run:
    problems: list[str] = []
    steps = trace_steps(data)
    pictures = [_picture(image, path, problems) for image in data["screenshots"]]
    if len(pictures) != len(steps):
        raise ValueError(f"{len(pictures)} screenshots for {len(steps)} steps")
    inexact = tuple((int(index), str(reason)) for index, reason in data.get("inexact", ()))
    return Run(
        family=str(data["expert"]),
        task_id=str(data["task_id"]),
        run=str(data.get("run", "")) or name,
        outcome=Outcome.success if data["success"] else Outcome.failure,
        steps=steps,
        inexact=inexact,
        pictures=tuple(pictures),
        final=_picture(data["final_screenshot"], path, problems),
        instruction=str(data["instruction"]),
        env_seed=data["env_seed"],
        problems=(*(f"step {index + 1}: {reason}" for index, reason in inexact), *problems),
    )


def _picture(image: Any, path: Path, problems: list[str]) -> Path | None:
    if image is None:
        return None
    file = path.parents[2] / "images" / f"{Path(str(image)).name}.png"
    try:
        png_size(file)
    except (OSError, ValueError) as error:
        problems.append(f"{file.name} is not a readable screenshot ({error})")
        return None
    return file
