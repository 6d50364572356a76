"""The default tests draw the same examples and the same random numbers every time."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from property_tests import FACTOR, NIGHTLY, PROFILE, examples

ROOT = Path(__file__).parent


def names_of(path: Path, module: str) -> set[str]:
    """What a file imports from a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.name for node in found for alias in node.names}


def test_no_property_test_chooses_its_own_profile() -> None:
    files = [path for path in sorted(ROOT.rglob("test_*.py")) if "given" in names_of(path, "hypothesis")]
    assert len(files) > 10
    wrong = [path.name for path in files if "settings" in names_of(path, "hypothesis")]
    wrong += [path.name for path in files if "examples" not in names_of(path, "property_tests")]
    assert not wrong, f"expected @examples(n) of tests/support/property_tests.py, got settings of their own: {wrong}"


def test_the_profiles() -> None:
    current = settings()
    assert current.derandomize == (PROFILE != NIGHTLY)
    for profile in (current, settings.get_profile("default"), settings.get_profile(NIGHTLY)):
        assert (profile.deadline, profile.print_blob) == (None, True)
        assert HealthCheck.too_slow in profile.suppress_health_check
    assert not settings.get_profile(NIGHTLY).derandomize
    assert examples(7).max_examples == (7 * FACTOR if PROFILE == NIGHTLY else 7)


@pytest.mark.parametrize("_", [1, 2])
def test_random_numbers_do_not_depend_on_what_ran_before(_: int) -> None:
    drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert drawn == (random.random(), float(np.random.rand()), float(torch.rand(())))
