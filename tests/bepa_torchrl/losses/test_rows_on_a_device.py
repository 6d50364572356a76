"""Rows that the user has moved to an accelerator, by ``rows.to(device)``: the losses are those of rows on the CPU.

The check runs in a process of its own, since torch cannot forget a backend.
"""

from __future__ import annotations

from pathlib import Path

from device_rows import check_rows_on_device
from process_groups import errors_of, run_ranks


def test_rows_on_an_accelerator_have_the_losses_of_rows_on_the_cpu(tmp_path: Path) -> None:
    assert run_ranks(check_rows_on_device, 1, tmp_path, deadline=300.0) == [0], errors_of(tmp_path)
