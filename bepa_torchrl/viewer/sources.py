"""What the arguments of ``bepa view`` name: runs, methods of runs, evaluations, expert logs, traces, self-rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bepa_torchrl.monitoring.final_results import are_final
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.lock import FolderInUseError, check_free
from bepa_torchrl.storage.record_fields import check_results
from bepa_torchrl.storage.record_format import FORMAT_FILE, method_folders
from bepa_torchrl.viewer.folders import LEDGER, action_reader, cache_stream, ledger_stream, logs_stream, traces_stream
from bepa_torchrl.viewer.pictures import Pictures
from bepa_torchrl.viewer.recorded import Stream, recorded_stream
from bepa_torchrl.viewer.responses import ResponseReader, read_object, reader_of, section_of
from osworld_gym.uitars.coords import ImageScaling

_FILES = {
    "episodes": "training",
    "evaluations": "evaluation",
    "outcomes": "after training",
}
_BASE, _PREPARED = "base", "prepared"
_EVALUATION = "settings.yaml"  #: of a folder of ``bepa eval``; a run has config.yaml
_RECORD = 2  #: the newest version of a record that is known; 1 has no record.json


@dataclass(frozen=True, slots=True)
class Source:
    """One argument.

    Args:
        name: on the pages.
        folder: the folder of a run; None for anything else.
        methods: the folders of the run's methods, by name.
        find: the streams that there are now; a running run gets more.
    """

    name: str
    folder: Path | None
    methods: Callable[[], dict[str, Path]]
    find: Callable[[], list[Stream]]

    @property
    def state(self) -> str:
        """running, finished or stopped; empty for what is not a run."""
        if self.folder is None:
            return ""
        folders = [self.folder, *self.methods().values()]
        try:
            for folder in folders:
                check_free(folder)
        except FolderInUseError:
            return "running"
        return "finished" if all(final_results(path) for path in folders[1:]) else "stopped"


def final_results(method: Path) -> dict[str, Any]:
    """The results of a method's whole training; empty before its end, or if they cannot be read."""
    results = read_object(method / "results.json")
    try:
        check_results(method / "results.json", results)
    except RecordError:
        return {}
    return results if are_final(results, method / "config.yaml") else {}


def open_sources(arguments: Sequence[str], pictures: Pictures) -> list[Source]:
    """The sources that the arguments name, with different names.

    Raises:
        RecordError: an argument names nothing that can be shown.
        TraceError: a reader of expert logs does not exist.
    """
    names = _names(arguments)
    return [_open(argument, name, pictures) for argument, name in zip(arguments, names, strict=True)]


def _names(arguments: Sequence[str]) -> list[str]:
    """The last part of each path, or as much of its end as tells them apart."""
    for parts in range(1, 4):
        names = ["/".join(Path(argument).expanduser().absolute().parts[-parts:]) for argument in arguments]
        if len(set(names)) == len(names):
            return names
    if len(set(arguments)) < len(arguments):
        raise RecordError(f"expected different runs, got {', '.join(arguments)}; name each once")
    return list(arguments)


def _open(argument: str, name: str, pictures: Pictures) -> Source:
    folder = Path(argument).expanduser()
    if not folder.exists() and ":" in argument:
        stream = logs_stream(argument, run=name)
        return _other(name, lambda: [stream])
    if not folder.is_dir():
        raise RecordError(f"{argument}: there is no such folder; name a run, such as runs/NAME, or NAME:FOLDER of logs")
    if _is_evaluation(folder):
        return _other(name, _evaluation(folder, name, pictures))
    if _methods(folder):
        return _run(folder, name, pictures)
    if (folder / LEDGER).exists() or (folder / "seed.json").exists():
        return _other(name, lambda: _seeds(folder, name, pictures))
    if next((folder / "traces").glob("*/rows.json"), None) is not None:
        return _other(
            name, lambda: [cache_stream(folder, "cache", run=name, reader=ResponseReader(), pictures=pictures)]
        )
    if (folder / "traces").is_dir():
        return _other(name, lambda: [traces_stream(folder, run=name)])
    logs = logs_stream(argument, run=name)
    if next(logs.read(0), None) is None:
        raise RecordError(
            f"{argument}: found no run, no traces and no logs of an expert in it; name the folder of a run, runs/NAME"
        )
    return _other(name, lambda: [logs])


def _other(name: str, find: Callable[[], list[Stream]]) -> Source:
    return Source(name, None, dict, find)


# --- runs -----------------------------------------------------------------------------------------------------------


def _methods(folder: Path) -> dict[str, Path]:
    """The methods of a run by name; of the folder of one method, itself."""
    methods = {path.name: path for path in method_folders(folder)}
    if not methods and any((folder / f"{name}.jsonl").exists() for name in ("iterations", *_FILES)):
        return {folder.name: folder}
    return methods


def _run(folder: Path, name: str, pictures: Pictures) -> Source:
    readers = _Readers()
    for method in _methods(folder).values():
        _check_version(method / "record.json")

    def find() -> list[Stream]:
        methods = _methods(folder)
        if not methods:
            raise RecordError(f"{folder}: the run is no longer there; put it back, or end bepa view")
        streams = []
        for method, path in methods.items():
            reader = readers.of(path / "config.yaml")
            for file, part in _FILES.items():
                if (path / f"{file}.jsonl").exists():
                    streams.append(_recorded(path / f"{file}.jsonl", name, method, part, reader, pictures))
        reader = readers.of(next(iter(methods.values())) / "config.yaml")
        before = folder / _BASE / "outcomes.jsonl"
        if before.exists():
            streams.append(_recorded(before, name, _BASE, "before training", reader, pictures))
        return [*streams, *_prepared(folder / _PREPARED, name, reader, pictures)]

    return Source(name, folder, lambda: _methods(folder), find)


@dataclass
class _Readers:
    """The readers of the methods' responses, by the file with their settings."""

    known: dict[Path, ResponseReader] = field(default_factory=dict)

    def of(self, path: Path) -> ResponseReader:
        if path not in self.known:
            self.known[path] = reader_of(section_of(path, "policy"))
        return self.known[path]


def _check_version(path: Path) -> None:
    """Raises RecordError for a record that a later version of the package wrote."""
    version = read_object(path).get("version", 1)
    if not isinstance(version, int) or version > _RECORD:
        raise RecordError(
            f"{path}: expected a record of version 1 to {_RECORD}, got {version!r}; use a later bepa view"
        )


def _recorded(path: Path, run: str, method: str, part: str, reader: ResponseReader, pictures: Pictures) -> Stream:
    return recorded_stream(path, run=run, method=method, part=part, reader=reader, pictures=pictures)


def _prepared(folder: Path, run: str, reader: ResponseReader, pictures: Pictures) -> list[Stream]:
    """The expert's traces and the seeds of a run."""
    streams = [traces_stream(folder / "experts", run=run)] if (folder / "experts" / "traces").is_dir() else []
    for name, method in (("self_rolled", "self-rolled"), ("converted", "converted")):
        if (folder / name / "manifest.json").exists():
            streams.append(cache_stream(folder / name, method, run=run, reader=reader, pictures=pictures))
    return streams


# --- other folders ----------------------------------------------------------------------------------------


def _seeds(folder: Path, run: str, pictures: Pictures) -> list[Stream]:
    """The ledger and the traces of ``bepa experts selfroll`` or ``convert``."""
    streams = [ledger_stream(folder, run=run)] if (folder / LEDGER).exists() else []
    if (folder / "cache").is_dir():
        kind = str(read_object(folder / "seed.json").get("kind") or "self_rolled").replace("_", "-")
        reader = action_reader(folder)
        streams.append(cache_stream(folder / "cache", kind, run=run, reader=reader, pictures=pictures))
    return streams


def _is_evaluation(folder: Path) -> bool:
    """Whether it is a folder of ``bepa eval`` with episodes, or none yet; the answers of a grounding suite are none."""
    started = (folder / _EVALUATION).exists()
    return started and ((folder / "episodes.jsonl").exists() or next(folder.glob("*.jsonl"), None) is None)


def _evaluation(folder: Path, run: str, pictures: Pictures) -> Callable[[], list[Stream]]:
    """The episodes of ``bepa eval``, which may be going on."""
    reader = reader_of(section_of(folder / _EVALUATION, "policy"))

    def find() -> list[Stream]:
        scaling = read_object(folder / FORMAT_FILE).get("image_scaling")
        if isinstance(scaling, dict):  # of a hosted model, whose checkpoint is not that of the settings
            try:
                reader.scaling = ImageScaling(**scaling)
            except (TypeError, ValueError) as error:
                raise RecordError(
                    f"{folder / FORMAT_FILE}: expected image_scaling ({error}); restore the file"
                ) from error
        return [_recorded(folder / "episodes.jsonl", run, "evaluation", "evaluation", reader, pictures)]

    return find
