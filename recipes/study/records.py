"""Result files: one small JSON per variant and seed, with what is needed to trust it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import bepa_torchrl
import osworld_gym
from bepa_torchrl.experiment.config import CONFIGS, load_config, settings_to_dict
from bepa_torchrl.experiment.settings import Settings
from osworld_gym.atomic import write_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"
DETAILS = ROOT / "docs" / "results-details.md"  #: the page with all tables
TERSE_RESULTS = FOLDER / "terse"  #: of the first base policy
HISTORY = ROOT / "docs" / "history" / "results-terse.md"  #: the page of those
#: Version of the code that decides what a run gives. Raise it with every change that alters the results of a run with
#: equal settings; the test that replays a short run (recipes/study/replay.py) fails when that was forgotten.
RESULTS_VERSION = 1
#: settings that do not change a result
_INDIFFERENT = ("name", "runs", "resume", "processes", "threads", "compare", "record")


class ResultError(ValueError):
    """A result file that cannot be used; the message names it."""


@dataclass(frozen=True)
class Result:
    """One run.

    Args:
        variant: its name.
        seed: the seed of task order, desktops and sampling.
        settings: all that it depends on, see :func:`kept_settings`.
        code: :data:`RESULTS_VERSION` of its time.
        base: SHA-256 of the base policy's weights.
        commit: the commit of the repository when it ran.
        machine: processor and number of cores.
        sets: task ids by name (``train``, ``expert_only``, ``held_out/unknown``, …).
        counts: mode (``sampled``, ``greedy``) → task id → (successes, episodes) after training.
        base_counts: the same for the base policy.
        totals: episodes, optimizer_steps, seconds (wall time beside another run).
        preparation: counts of what was prepared before training.
        curve: selected metrics per iteration.
        source: :func:`source_hash` of the code that ran, several joined by ``+`` after a resume with other code; "" in
            files from before it was kept.
        config: :func:`settings_hash` of ``settings``; "" likewise.
    """

    variant: str
    seed: int
    settings: Mapping[str, Any]
    code: int
    base: str
    commit: str
    machine: str
    sets: Mapping[str, list[str]]
    counts: Mapping[str, Mapping[str, tuple[int, int]]]
    base_counts: Mapping[str, Mapping[str, tuple[int, int]]]
    totals: Mapping[str, float]
    preparation: Mapping[str, float]
    curve: list[Mapping[str, float]]
    source: str = ""
    config: str = ""

    @property
    def path(self) -> str:
        """Its file's name."""
        return f"{self.variant}-{self.seed}.json"

    def write(self, folder: Path) -> None:
        """Writes the file atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / self.path, json.dumps(asdict(self)) + "\n")


def read_result(path: Path) -> Result:
    """Reads a result file.

    Raises:
        ResultError: not one, or damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = Result(**data)
    except (ValueError, TypeError) as error:
        raise ResultError(
            f"{path.name}: not a result file of this version ({error}); delete it and run again"
        ) from error
    if found.config and found.config != settings_hash(found.settings):
        raise ResultError(f"{path.name}: its settings were changed after it was made; delete it and run again")
    return found


def check_same(results: Iterable[Result]) -> None:
    """Checks that results may stand in one table: same code and same base policy.

    Raises:
        ResultError: two of them differ; both files are named.
    """
    first: Result | None = None
    for result in results:
        first = first or result
        for what, one, other in (("code", first.code, result.code), ("base policy", first.base, result.base)):
            if one != other:
                raise ResultError(
                    f"{result.path} was made with another {what} than {first.path} (commits {result.commit[:9]} and "
                    f"{first.commit[:9]}); delete the older one and run the study again"
                )


def kept_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a result depends on, by dotted name."""
    found = _flat(settings_to_dict(settings))
    return {key: value for key, value in found.items() if key.split(".")[0] not in _INDIFFERENT}


def other_settings(made: Mapping[str, Any], wanted: Settings) -> list[str]:
    """The names of the settings in which a result differs from a run; empty if it is that run's.

    A setting that did not exist when the result was made counts as its default.

    Args:
        made: :attr:`Result.settings`.
        wanted: the run's settings.
    """
    now, defaults = kept_settings(wanted), _defaults()
    before = {key: made.get(key, defaults.get(key)) for key in now | dict(made)}
    return sorted(key for key, value in before.items() if key not in now or now[key] != value)


def differing_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of the settings in which two results differ; one that did not exist yet counts as its default.

    Args:
        one: :attr:`Result.settings`, or :func:`kept_settings` of a run.
        other: the same.
    """
    defaults = _defaults()
    names = sorted(one.keys() | other.keys())
    return [name for name in names if one.get(name, defaults.get(name)) != other.get(name, defaults.get(name))]


@cache
def _defaults() -> dict[str, Any]:
    return kept_settings(load_config())


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of a result's settings (12 hexadecimal digits)."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def source_hash() -> str:
    """SHA-256 of names and contents of the packages' modules and the configuration files (12 hexadecimal digits)."""
    packages = [Path(str(package.__file__)).parent for package in (osworld_gym, bepa_torchrl)]
    folders = [*((folder, "*.py") for folder in packages), (CONFIGS, "*.yaml")]
    found = hashlib.sha256()
    for folder, pattern in folders:
        for path in sorted(folder.rglob(pattern)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{folder.name}/{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()[:12]


def in_history(commit: str, root: Path = ROOT) -> bool:
    """Whether the repository has a commit; False outside of a repository."""
    try:
        command = ["git", "-C", str(root), "cat-file", "-e", f"{commit.removesuffix('+')}^{{commit}}"]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def file_hash(path: Path) -> str:
    """SHA-256 of a file (12 hexadecimal digits)."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def commit(root: Path = ROOT) -> str:
    """The repository's commit, with ``+`` if files were changed since; ``unknown`` outside of a repository."""
    try:
        head = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head + ("+" if changed.strip() else "")


def machine() -> str:
    """Processor and number of cores."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
