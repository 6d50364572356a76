"""The run's folder: its name, whether it can be made or continued, and what ``resume=true`` may change. No torch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment.config import (
    ConfigError,
    check,
    given_names,
    read_settings,
    settings_to_dict,
    settings_to_yaml,
    with_changes,
)
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import by_torchrun
from bepa_torchrl.experiment.unfinished_beginning import other_entries, remove_beginning
from bepa_torchrl.storage.json_lines import RecordError, read_lines
from bepa_torchrl.storage.lock import check_free, locked
from bepa_torchrl.storage.record_format import method_folders
from osworld_gym.atomic import check_writable, remove_leftovers, write_text

_RUNS = "runs"  #: the default of the setting ``runs``
_REPLACING = "replacing.json"  #: in a run's folder, while the settings of a resume replace the saved ones
_PLAIN = re.compile(r"(?![\d.+-]*$)[\w./:@+-]+")  #: values that need no quotes on the command line
#: settings that may be changed when resuming; a name that ends in a dot means all keys below it
CHANGEABLE = (
    "train.iterations",
    "train.max_tokens",
    "train.save_every",
    "train.keep",
    "train.ranks",
    "train.rank_timeout",
    "eval.",
    "collect.stall_timeout",
    "cluster.shrink_after",
    "cluster.trainer",
    "cluster.cpus_per_rank",
    "cluster.place_timeout",
    "record.",
    "policy.activation_checkpointing",
    "policy.max_batch_tokens",
    "policy.max_rows",
    "threads",
    "processes",
    "restarts",
    "storage",
    "storage_wait",
)
_GROUPS = {"env": "sim", "policy": "tiny", "algo": "bepa", "experiment": "null"}  #: with their defaults
_IDENTITY = ("name", "runs", "resume")


def run_folder(config: Settings) -> Path:
    """``runs/<name>``; the default name consists of provider, method and time.

    Raises:
        ConfigError: the name is not a single path component.
    """
    name = config.name or f"{config.env.provider}-{config.algo.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if Path(name).name != name or name == "..":
        raise ConfigError(f"name={name!r} must be one folder name; the folder it is in is given by runs=")
    return runs_folder(config) / name


def runs_folder(config: Settings) -> Path:
    """The parent folder of all runs; ``~`` is the user's home, as in every other setting that names a folder."""
    return Path(config.runs).expanduser()


def begun(config: Settings) -> bool:
    """Whether a new run of these settings has begun, so that it could be resumed. Raises as :func:`run_folder`."""
    return not config.resume and (run_folder(config) / "config.yaml").exists()


def check_new_run(folder: Path) -> None:
    """Checks that a run's folder does not exist and can be made; nothing is left behind.

    A folder in which a process was killed before it had begun its run counts as one that does not exist.

    Raises:
        FolderInUseError, RecordError: it exists. ConfigError: it cannot be made.
    """
    try:
        if folder.exists():
            check_free(folder)
            _check_not_begun(folder)
        check_writable(folder.parent)
    except OSError as error:
        raise ConfigError(
            f"runs={folder.parent}: expected a folder in which {folder.name!r} can be made, "
            f"got an error: {error.strerror or error}; set runs= to another folder, or name="
        ) from error


def _check_not_begun(folder: Path) -> None:
    """Raises RecordError if a folder has more than what a process leaves that is killed before its run has begun."""
    if not (others := other_entries(folder)):
        return
    fix = "go on with resume=true"
    if "config.yaml" not in others:
        fix = f"move it away: it has {', '.join(others)[:200]}, and no run to go on with"
    raise RecordError(f"{folder} exists and is not overwritten; give another name=, or {fix}")


@contextmanager
def locked_new_run(folder: Path) -> Iterator[None]:
    """Makes and locks the folder of a new run; one that was not begun before is taken over. As :func:`check_new_run`.

    Raises:
        FolderInUseError, RecordError: another process has made it meanwhile. ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        check_new_run(folder)
    with locked(folder):
        _check_not_begun(folder)  # no other process begins while it is locked
        remove_beginning(folder)
        yield


@contextmanager
def locked_run(folder: Path) -> Iterator[None]:
    """Locks the folder of an existing run.

    Raises:
        RecordError: there is no run in it, or a file of it is damaged. FolderInUseError: another process has locked it.
    """
    if not (folder / "config.yaml").exists():
        if folder.is_dir() and not other_entries(folder):
            raise RecordError(f"nothing to resume in {folder}: its run has not begun; start it without resume=true")
        raise RecordError(f"nothing to resume in {folder}: there is no run of that name; check name= and runs=")
    with locked(folder):
        remove_leftovers(folder)
        _replace_settings(folder)
        yield


def resumed_settings(
    folder: Path, requested: Settings, overrides: Sequence[str]
) -> tuple[Settings, dict[str, Settings]]:
    """The saved settings of the run and of each method, with the changes of this command line.

    Raises:
        RecordError: a change that a resumed run cannot make. ConfigError: the changed settings contradict each other.
    """
    saved = _read_settings(folder / "config.yaml")
    first = json.loads((folder / "overrides.json").read_text(encoding="utf-8"))
    changes = changed_settings(settings_to_dict(saved), settings_to_dict(requested), overrides, first)
    changes["resume"] = True
    configs = {name: with_changes(_read_settings(folder / name / "config.yaml"), changes) for name in methods_of(saved)}
    for name, own in configs.items():
        check(own)
        check_free(folder / name)
        _check_iterations(folder / name, own)
    return with_changes(saved, changes), configs


def methods_of(config: Settings) -> list[str]:
    """The methods of a run, that of ``algo`` first."""
    return list(dict.fromkeys([config.algo.name, *config.compare]))


def write_settings(folder: Path, config: Settings, configs: dict[str, Settings]) -> None:
    """Replaces the settings of a resumed run: all of them, by the next :func:`locked_run` if this process is killed."""
    texts = {_settings_file(name): settings_to_yaml(own) for name, own in configs.items()}
    texts["config.yaml"] = settings_to_yaml(config)
    write_text(folder / _REPLACING, json.dumps(texts))
    _replace_settings(folder)


def _settings_file(method: str) -> str:
    return f"{method}/config.yaml"


def _replace_settings(folder: Path) -> None:
    """Replaces the settings by those that a resume wants, if a process has begun to. Raises RecordError: damaged."""
    path = folder / _REPLACING
    if not path.exists():
        return
    known = ("config.yaml", *(_settings_file(method.name) for method in method_folders(folder)))
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))
        wanted = {name: str(texts[name]) for name in known if name in texts or name == "config.yaml"}
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: expected the settings of a resumed run ({error!r}); remove the file") from error
    for name, text in wanted.items():
        write_text(folder / name, text)
    path.unlink()


def continue_command(config: Settings, folder: Path) -> str:
    """The command line that continues a run; the settings that it leaves out keep their saved values."""
    given = {"name": folder.name, "resume": "true"}
    if str(folder.parent) != _RUNS:
        given["runs"] = str(folder.parent)
    if config.storage is not None:
        given["storage"] = config.storage
    program = "torchrun … -m bepa_torchrl train" if by_torchrun() else "bepa train"
    return f"{program} {shlex.join(f'{key}={_quoted(value)}' for key, value in given.items())}"


def _quoted(value: str) -> str:
    """The value as Hydra's grammar reads it."""
    return value if _PLAIN.fullmatch(value) else "'" + value.replace("'", "\\'") + "'"


def _check_iterations(folder: Path, config: Settings) -> None:
    """Checks that ``train.iterations`` is not below the iterations already done."""
    lines = folder / "iterations.jsonl"
    done = max((int(line["iteration"]) for line in read_lines(lines)), default=0) if lines.exists() else 0
    if config.train.iterations < done:
        raise RecordError(
            f"train.iterations={config.train.iterations} is less than the {done} iterations that {folder} has; "
            f"give {done} or more"
        )


def _read_settings(path: Path) -> Settings:
    if not path.exists():
        raise RecordError(f"{path} is missing, so this run cannot be resumed; start one with another name=")
    return read_settings(path)


# --- what a resume may change ---------------------------------------------------------------------------------------


def changed_settings(
    saved: Mapping[str, Any], requested: Mapping[str, Any], overrides: Sequence[str], first: Sequence[str]
) -> dict[str, Any]:
    """The settings that a resume changes, by dotted key; empty if there are none.

    Args:
        saved: the run's settings as nested mappings.
        requested: the settings that this command line composes, as nested mappings.
        overrides: the ``key=value`` arguments of this command line; keys that are not given keep their saved values.
        first: the ``key=value`` arguments with which the run was started.

    Raises:
        RecordError: settings differ that cannot be changed; the message has their old and new values.
    """
    refused = _other_choices(overrides, first)
    changes: dict[str, Any] = {}
    old, new = dict(leaves(saved)), dict(leaves(requested))
    for written in given_names(overrides):
        if written in _GROUPS or written in _IDENTITY:
            continue
        for key in sorted(key for key in old.keys() | new.keys() if key == written or key.startswith(f"{written}.")):
            if key in old and key in new and old[key] == new[key]:
                continue
            if _changeable(key) and key in new:
                changes[key] = new[key]
            else:
                refused.append(f"{key}: {shown(old, key)} → {shown(new, key)}")
    if refused:
        names = ", ".join(f"{name}*" if name.endswith(".") else name for name in CHANGEABLE)
        raise RecordError(
            f"resume=true cannot change {'; '.join(refused)}; it may change {names}. "
            "Leave these out, or start a run with another name="
        )
    return changes


def key_of(override: str) -> str:
    """The key of ``key=value``."""
    return override.partition("=")[0].strip()


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting; lists and empty mappings are values."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


def _other_choices(overrides: Sequence[str], first: Sequence[str]) -> list[str]:
    """Choices of a group (``env=``, ``policy=``, …) that differ from the run's."""
    was = _GROUPS | dict(_choices(first))
    return [f"{group}: {was[group]} → {choice}" for group, choice in _choices(overrides) if choice != was[group]]


def _choices(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    for override in overrides:
        if key_of(override) in _GROUPS:
            yield key_of(override), override.partition("=")[2].strip()


def _changeable(key: str) -> bool:
    return any(key.startswith(name) if name.endswith(".") else key == name for name in CHANGEABLE)


def shown(settings: Mapping[str, Any], key: str) -> str:
    """The value of a key as a message has it."""
    return str(settings[key]) if key in settings else "(not set)"
