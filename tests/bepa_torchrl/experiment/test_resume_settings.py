"""Which settings a resumed run may change; the others are errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bepa_torchrl.experiment.config import load_config, settings_to_dict
from bepa_torchrl.experiment.method_process import final_settings, finished
from bepa_torchrl.experiment.run_folder import changed_settings, run_folder
from bepa_torchrl.experiment.run_record import RecordError

SAVED = {
    "name": "p", "resume": False, "threads": 1, "optimizer": {"lr": 1e-6, "betas": [0.9, 0.999]},
    "train": {"iterations": 12, "max_tokens": 64, "frozen": [], "ranks": 2}, "eval": {"every": 10},
    "record": {"every": 5}, "env": {"options": {}},
}  # fmt: skip
FIRST = ["experiment=smoke", "name=p"]


def asked(*overrides: str, **changes: object) -> dict[str, object]:
    """The changes of a resume with these overrides; ``changes``: composed values by dotted key."""
    requested = {key: dict(value) if isinstance(value, dict) else value for key, value in SAVED.items()}
    for dotted, value in changes.items():
        outer, _, inner = dotted.partition(".")
        if inner:
            requested[outer][inner] = value  # type: ignore[index]
        else:
            requested[outer] = value
    return changed_settings(SAVED, requested, ["resume=true", *overrides], FIRST)


def test_only_what_is_written_out_counts() -> None:
    """Without overrides the command line composes the defaults, which are not changes."""
    assert asked("name=p", **{"train.iterations": 20, "optimizer.lr": 1.0}) == {}


def test_a_run_can_be_made_longer() -> None:
    changes = {"train.iterations": 40, "train.max_tokens": 32, "eval.every": 2, "record.every": 1, "threads": 2}
    assert asked(*(f"{key}={value}" for key, value in changes.items()), **changes) == changes


def test_a_mapping_changes_only_what_is_in_it() -> None:
    """The rest of its section is that of the defaults, which the command line has not given."""
    saved = settings_to_dict(load_config(["train.iterations=10"]))
    given = ["train={keep: 3}"]
    assert changed_settings(saved, settings_to_dict(load_config(given)), given, []) == {"train.keep": 3}


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_number_of_ranks_may_change(ranks: int) -> None:
    assert asked(f"train.ranks={ranks}", **{"train.ranks": ranks}) == {"train.ranks": ranks}


def test_what_stays_equal_may_be_repeated() -> None:
    assert asked("experiment=smoke", "optimizer.lr=1e-6", "train.iterations=12") == {}


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        (
            ["optimizer.lr=1e-2"],
            {"optimizer.lr": 1e-2},
            "cannot change optimizer.lr: 1e-06 → 0.01; it may",
        ),
        (["optimizer={lr: 1}"], {"optimizer.lr": 1}, "cannot change optimizer.lr: 1e-06 → 1;"),
        (["experiment=paper"], {}, "cannot change experiment: smoke → paper"),
        (["env=local"], {}, "cannot change env: sim → local"),
        (["env.options={a: 1}"], {"env.options": {"a": 1}}, r"env.options.a: \(not set\) → 1"),
        (["train.frozen=[visual]"], {"train.frozen": ["visual"]}, r"train.frozen: \[\] → \['visual'\]"),
    ],
)
def test_everything_else_is_refused_by_name(overrides: list[str], changes: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        asked(*overrides, **changes)


def test_all_refused_settings_are_named_at_once() -> None:
    with pytest.raises(RecordError, match=r"env: sim → local; optimizer.lr: 1e-06 → 1; it may"):
        asked("env=local", "optimizer.lr=1", "train.iterations=40", **{"optimizer.lr": 1, "train.iterations": 40})


def test_greedy_episodes_that_a_resume_asks_for_are_played(tmp_path: Path) -> None:
    """``eval.greedy`` may be changed: results without them are not those of these settings."""
    without, asked, none = (
        load_config(["experiment=smoke", *more])
        for more in (["eval.greedy=false"], ["eval.greedy=true"], ["eval.greedy=true", "eval.final_episodes=0"])
    )
    assert not finished(tmp_path, without)
    results = {"settings": final_settings(without), "success": {"sampled": {}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert finished(tmp_path, without)
    assert not finished(tmp_path, asked)
    results["success"]["greedy"] = {}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert finished(tmp_path, asked)
    assert finished(tmp_path, without)  # what was played in addition does not matter
    (tmp_path / "results.json").write_text(json.dumps({"settings": final_settings(none), "success": {}}))
    assert finished(tmp_path, none)


def test_the_folder_of_all_runs_may_be_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other setting with a folder; it was a folder of the name ``~`` in the current one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_folder(load_config(["runs='~/runs'", "name=first"])) == tmp_path / "runs" / "first"
