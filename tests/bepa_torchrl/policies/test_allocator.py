"""The allocator's setting on a GPU: added unless the user has one, and not for an engine."""

from __future__ import annotations

import os

import pytest

from bepa_torchrl.policies.allocator import MARK, NAMES, allocator_variables, chosen_here, set_allocator


def test_it_is_added_on_a_gpu_unless_the_user_has_chosen() -> None:
    assert allocator_variables("cuda:1", {}) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True", MARK: "1"}
    assert allocator_variables("cpu", {}) == {}
    for name in NAMES:
        assert allocator_variables("cuda", {name: "max_split_size_mb:128"}) == {}


def test_only_what_was_added_is_taken_away_for_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, MARK):
        monkeypatch.delenv(name, raising=False)
    assert chosen_here({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}) == []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_allocator("cuda")
    assert chosen_here(os.environ) == ["PYTORCH_ALLOC_CONF", MARK]
    set_allocator("cuda")  # a process that this one starts
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
