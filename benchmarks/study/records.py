"""Result files: one small JSON per variant and seed, with what is needed to trust it."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bepa_torchrl.experiment.config import settings_to_dict
from bepa_torchrl.experiment.settings import Settings
from osworld_gym.atomic import write_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"
#: code that decides what a run gives; the rest may change without making results old
_CODE = (
    "bepa_torchrl/cache",
    "bepa_torchrl/data",
    "bepa_torchrl/evaluation",
    "bepa_torchrl/experts",
    "bepa_torchrl/functional",
    "bepa_torchrl/losses",
    "bepa_torchrl/policies",
    "bepa_torchrl/rollout",
    "bepa_torchrl/training",
    "osworld_gym/desktops/sim",
    "osworld_gym/tasks/oracles/sim",
    "osworld_gym/tasks/suites/sim",
    "osworld_gym/uitars",
)
#: settings that do not change a result
_INDIFFERENT = ("name", "runs", "resume", "processes", "threads", "compare", "record")


class ResultError(ValueError):
    """A result file that cannot be used; the message names it."""


@dataclass(frozen=True)
class Result:
    """One run.

    Args:
        variant: its name.
        seed: of task order, desktops and sampling.
        config: hash of its settings, see :func:`config_hash`.
        code: hash of the code, see :func:`code_hash`.
        base: SHA-256 of the base policy's weights.
        commit: of the repository when it ran.
        machine: processor and number of cores.
        sets: task ids by name (``train``, ``expert_only``, ``held_out/unknown``, …).
        counts: mode (``sampled``, ``greedy``) → task id → (successes, episodes) after training.
        base_counts: the same for the base policy.
        totals: episodes, optimizer_steps, seconds (wall time beside another run).
        preparation: counts of what was prepared before training.
        curve: selected metrics per iteration.
    """

    variant: str
    seed: int
    config: str
    code: str
    base: str
    commit: str
    machine: str
    sets: Mapping[str, list[str]]
    counts: Mapping[str, Mapping[str, tuple[int, int]]]
    base_counts: Mapping[str, Mapping[str, tuple[int, int]]]
    totals: Mapping[str, float]
    preparation: Mapping[str, float]
    curve: list[Mapping[str, float]]

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
        return Result(**data)
    except (ValueError, TypeError) as error:
        raise ResultError(
            f"{path.name}: not a result file of this version ({error}); delete it and run again"
        ) from error


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
                    f"{first.commit[:9]}); delete the older one and run `make results`"
                )


def config_hash(settings: Settings) -> str:
    """Hash of the settings that a result depends on (12 hexadecimal digits)."""
    kept = {key: value for key, value in settings_to_dict(settings).items() if key not in _INDIFFERENT}
    return _digest(json.dumps(kept, sort_keys=True).encode())


def code_hash(root: Path = ROOT) -> str:
    """Hash of the code that a result depends on, without comments and docstrings (12 hexadecimal digits)."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(ast.dump(_without_docstrings(ast.parse(path.read_text(encoding="utf-8")))).encode())
    return digest.hexdigest()[:12]


def file_hash(path: Path) -> str:
    """SHA-256 of a file (12 hexadecimal digits)."""
    return _digest(path.read_bytes())


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


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree
