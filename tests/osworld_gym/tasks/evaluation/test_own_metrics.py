"""Metrics and getters of a user's own: evaluator processes import them by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_desktop import FileDesktop
from installed import install

from osworld_gym.extensions import import_modules
from osworld_gym.tasks import GETTERS, METRICS, Task
from osworld_gym.tasks.evaluation import own_pool
from osworld_gym.tasks.evaluation.own_pool import OwnEvaluators
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.types import StopReason

CODE = """
import os

def half(result):
    assert os.getpid() != {pid}, "not in a process of its own"
    return float(result == "read by our getter") / 2

def our_getter(run, config):
    return "read by our getter"
"""
ADDED = """
from osworld_gym.tasks import GETTERS, METRICS

METRICS["half"], GETTERS["our_getter"] = half, our_getter
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; evaluator processes are started new."""
    evaluators = OwnEvaluators(size=1)
    monkeypatch.setattr(own_pool, "_shared", [evaluators])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    evaluators.close()


def score(folder: Path) -> float:
    task = Task(id="t", instruction="i", evaluator={"func": "half", "result": {"type": "our_getter"}})
    cache = FileCache(folder, offline=True, also=())
    verdict = verify(task, FileDesktop(), stop=StopReason.finished, evaluators=Evaluators(), files=cache)
    return verdict.score


def test_those_of_an_imported_module(folder: Path) -> None:
    (folder / "module_of_metrics.py").write_text(CODE.format(pid=os.getpid()) + ADDED)
    import_modules(["module_of_metrics"])
    try:
        assert score(folder) == 0.5
    finally:
        del METRICS["half"], GETTERS["our_getter"], sys.modules["module_of_metrics"]


def test_those_of_an_installed_package(folder: Path) -> None:
    groups = (
        "[osworld_gym.metrics]\nhalf = package_of_metrics:half\n"
        "[osworld_gym.getters]\nour_getter = package_of_metrics:our_getter\n"
    )
    install(folder / "site", "package-of-metrics", groups, CODE.format(pid=os.getpid()))
    sys.path.insert(0, str(folder / "site"))
    try:
        assert score(folder) == 0.5
    finally:
        sys.modules.pop("package_of_metrics", None)
