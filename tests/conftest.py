"""What every test starts from: the same random numbers, whatever ran before it."""

from __future__ import annotations

import random
import sys

import pytest
from property_tests import load_profile

load_profile()


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # pytest-randomly chooses the order of the tests only


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
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
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()  # again: a fixture that several tests share draws numbers in the first of them only
