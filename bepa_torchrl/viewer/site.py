"""Writes the folder of pages: our scripts, plotly's, and the data as scripts, since pages on disk may not fetch files.

    index.html, view.css, *.js   the pages
    plotly.min.js                of the package plotly
    data/index.js                runs, streams, and the table of all episodes
    data/metrics.js              the metrics of every iteration
    data/refreshes.js            when the cache was refreshed, where a run records it
    data/plans.js                plans by hash
    data/<stream>-<chunk>.js     episodes with their steps; loaded when one of them is shown
    data/<stream>-<chunk>-text.js   their texts; loaded when texts are searched
    images/                      screenshots by hash, hard links where possible

A chunk is complete when it has :data:`CHUNK_EPISODES` or :data:`CHUNK_BYTES`; while a run goes on, only the last chunk
is written again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.plans import prepared_plans
from bepa_torchrl.storage.json_lines import finite
from bepa_torchrl.viewer.columns import Columns, Texts
from bepa_torchrl.viewer.episode import ShownAction, ShownEpisode, ShownStep, recorded
from bepa_torchrl.viewer.pictures import Pictures
from bepa_torchrl.viewer.recorded import Stream, read_json_lines, stamp_of
from bepa_torchrl.viewer.responses import read_object, section_of
from bepa_torchrl.viewer.sources import Source, final_results, open_sources
from osworld_gym.atomic import write_bytes, write_text

CHUNK_EPISODES, CHUNK_BYTES = 64, 1_000_000
TEXT_CHARACTERS = 20_000  #: of an episode that the search has


@dataclass
class _Written:
    """What has been written of a stream.

    Args:
        number: the number of the stream, in the names of its files.
        columns: its table.
        stamp: the stamp of the stream when it was read.
        starts: position and number of the first episode of each chunk.
        damaged: entries that could not be read, in complete chunks and in the last one.
    """

    number: int
    columns: Columns
    stamp: object = None
    starts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    damaged: list[int] = field(default_factory=lambda: [0])


class Site:
    """The pages of several sources.

    Args:
        arguments: as of ``bepa view``.
        out: the folder; it exists.

    Raises:
        RecordError, TraceError: an argument names nothing that can be shown.
    """

    def __init__(self, arguments: Sequence[str], out: Path) -> None:
        self.out, self.pictures = out, Pictures(out)
        self.sources = open_sources(arguments, self.pictures)
        self._texts = Texts()
        self._written: dict[str, _Written] = {}
        self._states: list[object] = []
        self._plans: dict[str, dict[str, str]] = {}

    def write(self) -> None:
        """Writes everything."""
        write_pages(self.out)
        self.refresh()

    def refresh(self) -> bool:
        """Writes what has changed since the last time; returns whether anything has.

        Raises:
            OSError, RecordError, TraceError: something cannot be read or written. The next call goes on from there.
        """
        before, self._states = self._states, []  # until all is written
        streams = [(source, stream) for source in self.sources for stream in source.find()]
        changed = [self._update(stream) for _, stream in streams]
        states: list[object] = [_stamp_of(source) for source in self.sources]
        if not any(changed) and states == before:
            self._states = before
            return False
        self._write_data("metrics", {source.name: _metrics(source) for source in self.sources})
        self._write_data("refreshes", {source.name: _refreshes(source) for source in self.sources})
        self._write_data("plans", self._all_plans())
        self._write_data("index", self._index([stream for _, stream in streams]))  # last: the pages begin with it
        self._states = states
        return True

    def _update(self, stream: Stream) -> bool:
        """Reads a stream on from the start of its last chunk; from its start if it is not one that only grows."""
        written = self._written.get(stream.name)
        if written is None:
            written = self._written[stream.name] = _Written(len(self._written), Columns(self._texts))
        stamp = stream.stamp()
        if stamp == written.stamp:
            return False
        if not (stream.grows and _has_grown(written.stamp, stamp)):
            written.starts, written.damaged = [(0, 0)], [0]
        self._read(stream, written)
        written.stamp = stamp
        return True

    def _read(self, stream: Stream, written: _Written) -> None:
        start, first = written.starts[-1]
        written.columns.shorten(first)
        written.damaged[-1] = 0
        chunk, size = _Chunk(), 0
        for position, episode in stream.read(start):
            if episode is None:
                written.damaged[-1] += 1
                continue
            written.columns.add(episode)
            size += chunk.add(episode, self.pictures)
            if len(chunk.episodes) >= CHUNK_EPISODES or size >= CHUNK_BYTES:
                self._write_chunk(written, chunk)
                written.starts.append((position, len(written.columns)))
                written.damaged.append(0)
                chunk, size = _Chunk(), 0
        self._write_chunk(written, chunk)

    def _write_chunk(self, written: _Written, chunk: _Chunk) -> None:
        name = f"{written.number}-{len(written.starts) - 1}"
        self._write_script(name, f"[{','.join(chunk.episodes)}]")
        self._write_data(f"{name}-text", chunk.texts)

    def _all_plans(self) -> dict[str, str]:
        """The plans of all runs by hash, read when a run's preparation is complete."""
        for source in self.sources:
            prepared = None if source.folder is None else source.folder / "prepared"
            if source.name not in self._plans and prepared is not None and prepared.is_dir():
                expert = next((section_of(path / "config.yaml", "expert") for path in source.methods().values()), {})
                plan_source = str(expert.get("plan_source"))
                self._plans[source.name] = prepared_plans(prepared, plan_source)
        return {digest: plan for plans in self._plans.values() for digest, plan in plans.items()}

    def _index(self, streams: Sequence[Stream]) -> dict[str, Any]:
        return {
            "texts": self._texts.all,
            "runs": [_run_data(source) for source in self.sources],
            "streams": [self._stream_data(stream) for stream in streams],
        }

    def _stream_data(self, stream: Stream) -> dict[str, Any]:
        written = self._written[stream.name]
        return {
            "name": stream.name,
            "run": stream.run,
            "method": stream.method,
            "part": stream.part,
            "number": written.number,
            "chunks": [first for _, first in written.starts],
            "damaged": sum(written.damaged),
            "columns": written.columns.values,
        }

    def _write_data(self, name: str, data: Any) -> None:
        self._write_script(name, to_json(data))

    def _write_script(self, name: str, text: str) -> None:
        """JSON as a script. ``JSON.parse`` of a text is data whatever the text has, unlike an object of JavaScript."""
        script = f"view.received({json.dumps(name)}, JSON.parse({json.dumps(text)}));\n"
        write_text(self.out / "data" / f"{name}.js", script, durable=False)


class _Chunk:
    """Episodes that are written together, as JSON, and their texts."""

    def __init__(self) -> None:
        self.episodes: list[str] = []
        self.texts: list[str] = []

    def add(self, episode: ShownEpisode, pictures: Pictures) -> int:
        """Adds an episode; returns its characters."""
        self.episodes.append(to_json(episode, pictures))
        self.texts.append(episode.text[:TEXT_CHARACTERS].lower())
        return len(self.episodes[-1])


def write_pages(out: Path) -> None:
    """Writes the pages, which are the same for all data, and plotly's script."""
    for file in sorted(resources.files("bepa_torchrl.viewer").joinpath("static").iterdir(), key=lambda file: file.name):
        write_bytes(out / file.name, file.read_bytes(), durable=False)
    plotly = resources.files("plotly").joinpath("package_data", "plotly.min.js")
    write_bytes(out / "plotly.min.js", plotly.read_bytes(), durable=False)


def to_json(data: Any, pictures: Pictures | None = None) -> str:
    """JSON; numbers that it does not have are null, and files are the names of their pictures."""

    def name_of(value: Any) -> dict[str, Any] | str | None:
        if isinstance(value, ShownEpisode | ShownStep | ShownAction):
            return recorded(value)
        if isinstance(value, Path) and pictures is not None:
            return pictures.name(value)
        raise TypeError(f"expected JSON-compatible data, got {type(value).__name__}")

    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False, default=name_of)
    except ValueError:
        plain = json.loads(json.dumps(data, default=name_of))  # with NaN
        return json.dumps(finite(plain), separators=(",", ":"))


def _has_grown(before: Any, after: Any) -> bool:
    """Whether a file's stamp is that of the same file, not smaller. A resumed run replaces the file it shortens."""
    old, new = before and before[0], after and after[0]
    return bool(old and new and old[0] == new[0] and old[1] <= new[1])


def _stamp_of(source: Source) -> object:
    names = ("iterations.jsonl", "groups.jsonl", "results.json")
    folders = [*source.methods().values(), *([source.folder] if source.folder else [])]
    return source.state, stamp_of(*(folder / name for folder in folders for name in names))


def _run_data(source: Source) -> dict[str, Any]:
    """What the page of a run shows in addition to its curves."""
    whole = {} if source.folder is None else read_object(source.folder / "results.json")
    results = {name: final_results(path) for name, path in source.methods().items()}
    base = whole.get("base")
    return {
        "name": source.name,
        "folder": "" if source.folder is None else str(source.folder),
        "state": source.state,
        "methods": list(results),
        "results": {name: {key: result.get(key) for key in ("success", "totals")} for name, result in results.items()},
        "base": base.get("success") if isinstance(base, dict) else None,
        "version": version("osworld-gym"),
    }


def _metrics(source: Source) -> dict[str, dict[str, list[Any]]]:
    """Per method the columns of ``iterations.jsonl``; None where an iteration lacks a metric."""
    columns = {}
    for name, path in source.methods().items():
        lines = [line for _, line in read_json_lines(path / "iterations.jsonl") if line is not None]
        keys = dict.fromkeys(key for line in lines for key in line)
        columns[name] = {
            key: [line.get(key) if _is_shown(key, line.get(key)) else None for line in lines] for key in keys
        }
    return columns


def _is_shown(key: str, value: Any) -> bool:
    """Whether a page can draw this metric."""
    return isinstance(value, str if key == "phase" else int | float)


def _refreshes(source: Source) -> dict[str, list[list[Any]]]:
    """Per method the (task, iteration, group) of each refresh of the cache, from ``groups.jsonl``."""
    refreshes = {}
    for name, path in source.methods().items():
        lines = [line for _, line in read_json_lines(path / "groups.jsonl") if line is not None]
        refreshes[name] = [
            [line.get("task_id"), line.get("iteration"), line.get("group_id")]
            for line in lines
            if line.get("refreshed") is True and _is_shown("iteration", line.get("iteration"))
        ]
    return refreshes
