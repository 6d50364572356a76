"""Compares the records and the weights of two runs, for example on other numbers of ranks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy

METHOD = "level2"


def iterations(run: Path, method: str = METHOD) -> list[dict[str, Any]]:
    """The record, without times and the number of micro-batches, which depends on the ranks."""
    left_out = ("seconds", "micro_batches", "passes_per_rank")
    lines = read_lines(run / method / "iterations.jsonl")
    return [{key: v for key, v in line.items() if not any(part in key for part in left_out)} for line in lines]


def updates(run: Path, method: str = METHOD) -> list[dict[str, Any]]:
    """The lines of updates, also without the use of desktops, queue and services, which differs from run to run."""
    left_out = ("queue_", "collect/desktops", "engine/turns_")
    lines = (line for line in iterations(run, method) if line["phase"] == "rl")
    return [{key: v for key, v in line.items() if not any(part in key for part in left_out)} for line in lines]


def assert_same_record(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4, abs=1e-4)), key


def assert_same_weights(found: Path, expected: Path, *, tolerance: float = 1e-4) -> None:
    assert load_file(found).keys() == load_file(expected).keys()
    assert difference(load_policy(found.parent), load_policy(expected.parent)) < tolerance


def difference(some: TransformersPolicy, others: TransformersPolicy) -> float:
    """The largest between two policies' weights."""
    pairs = zip(some.parameters(), others.parameters(), strict=True)
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)


def trained_episodes(folder: Path) -> Counter[tuple[int, int, int]]:
    """How often each (iteration, group, slot) of a method's folder was trained."""
    lines = map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())
    return Counter((line["iteration"], line["group_id"], line["slot"]) for line in lines if line["trained"])
