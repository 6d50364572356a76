"""What every test starts from: the same random numbers, whatever ran before it."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from pathlib import Path

import pytest
from property_tests import load_profile

#: markers of tests that ``make test`` leaves out
TIERS = frozenset(
    ("apps", "browser", "desktop", "docker", "experts", "nightly", "official", "ray", "slow", "soak", "storage", "vllm")
)
#: seconds since 1970 after which no test begins: .ci/run has a limit
START_BEFORE = float(os.environ.get("TESTS_START_BEFORE", "inf"))
NO_TIME = "TESTS_START_BEFORE has passed"

load_profile()


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # pytest-randomly chooses the order of the tests only


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The Makefile finds the files of a tier by their text: a marker from elsewhere would leave the test out."""
    texts: dict[Path, str] = {}
    for item in items:
        for marker in TIERS & {mark.name for mark in item.iter_markers()}:
            if item.path not in texts:
                texts[item.path] = item.path.read_text(encoding="utf-8")
            if not re.search(rf"\bmark\.{marker}\b", texts[item.path]):
                raise pytest.UsageError(
                    f"{item.nodeid} is marked {marker} elsewhere than in its file, so that the Makefile would not "
                    f"find it; fix: write mark.{marker} in the file"
                )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    late = [report for report in terminalreporter.stats.get("skipped", ()) if NO_TIME in str(report.longrepr)]
    if late:
        terminalreporter.write_line(f"not run: {len(late)} tests")
    if exitstatus == pytest.ExitCode.TESTS_FAILED and hasattr(config.option, "randomly_seed"):
        terminalreporter.write_line(f"the order of the tests: --randomly-seed={config.option.randomly_seed}")


def _seed() -> None:
    """Seeds the global generators; numpy and torch only if the test's module has imported them."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > START_BEFORE:
        pytest.skip(NO_TIME)
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()  # again: a fixture that several tests share draws numbers in the first of them only
