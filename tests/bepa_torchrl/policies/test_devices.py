"""Policies on a pretend accelerator: no devices are mixed, and what leaves the process is on the CPU.

Each check runs in a process of its own, since torch cannot forget a backend.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from device_checks import FAMILIES, TUNINGS, check_policy
from pretend_checks import check_refusals, check_ties
from process_groups import errors_of, run_ranks

DEADLINE = 550.0  #: seconds, many times what a check requires on a machine that does nothing else
#: each family and each way of training once
FEW = list(zip(FAMILIES, TUNINGS, strict=True))
#: another way of training for each family
OTHERS = list(zip(FAMILIES, [*TUNINGS][1:] + [*TUNINGS][:1], strict=True))
ALL = [*itertools.product(FAMILIES, TUNINGS, (torch.float32, torch.bfloat16))]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "tuning"), FEW)
def test_a_policy_of_each_family_works_on_an_accelerator(tmp_path: Path, family: str, tuning: str) -> None:
    """Load, sample, score, update, save, resume, publish, export; results equal the CPU's."""
    arguments = (family, tuning, torch.float32, False)
    assert run_ranks(check_policy, 1, tmp_path, *arguments, deadline=DEADLINE) == [0], errors_of(tmp_path)


def with_engine(folder: Path, family: str, tuning: str, dtype: torch.dtype) -> None:
    """The same with an engine behind HTTP, which is verified after each sync."""
    arguments = (family, tuning, dtype, True)
    assert run_ranks(check_policy, 1, folder, *arguments, deadline=DEADLINE) == [0], errors_of(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "tuning"), OTHERS)
def test_half_precision_and_an_engine_work_on_an_accelerator(tmp_path: Path, family: str, tuning: str) -> None:
    with_engine(tmp_path, family, tuning, torch.bfloat16)


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "tuning", "dtype"), ALL)
def test_every_policy_works_on_an_accelerator(tmp_path: Path, family: str, tuning: str, dtype: torch.dtype) -> None:
    with_engine(tmp_path, family, tuning, dtype)


@pytest.mark.parametrize("check", [check_refusals, pytest.param(check_ties, marks=pytest.mark.slow)])
def test_the_pretend_accelerator_refuses_what_a_gpu_refuses(tmp_path: Path, check: object) -> None:
    assert run_ranks(check, 1, tmp_path) == [0], errors_of(tmp_path)  # type: ignore[arg-type]
