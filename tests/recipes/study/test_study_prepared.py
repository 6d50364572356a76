"""A folder of runs belongs to one base policy and one preparation: nothing of another one is used without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from bepa_torchrl.experiment.config import load_config, with_changes
from recipes.study import runner
from recipes.study.bases import Base
from recipes.study.prepared import NOTE, claim_folder, preparation_settings, prepared_base
from recipes.study.records import ResultError
from recipes.study.runner import Run, run_missing
from recipes.study.variants import FREE_PARTS, PARTS, VARIANTS


class Child:
    """In place of a training, which ends at once."""

    started: ClassVar[list[str]] = []

    def __init__(self, folder: Path, **_: Any) -> None:
        self.started.append(folder.name)

    def wait(self, _: float) -> int:
        return 0

    def stop(self) -> None: ...


class Written:
    """In place of a result."""

    def write(self, out: Path) -> None: ...


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Base:
    def prepared(_: Any, root: Path, *__: Any) -> None:
        (root / "prepared").mkdir(exist_ok=True)

    monkeypatch.setattr(runner, "prepared_run", prepared)
    monkeypatch.setattr(runner, "make_policy", lambda *_, **__: None)
    monkeypatch.setattr(runner, "make_tasks", lambda *_: None)
    monkeypatch.setattr(runner, "MethodChild", Child)
    monkeypatch.setattr(Child, "started", [])
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return Base("free/seed-0", folder)


def started(tmp_path: Path, run: Run) -> list[str]:
    """The trainings so far, this one included."""
    work, out = tmp_path / "work", tmp_path / "out"
    run_missing([run], work, out, processes=1, log=lambda _: None, summary=lambda *_: Written())  # type: ignore[arg-type,return-value]
    return Child.started


def test_a_preparation_of_other_weights_is_refused(tmp_path: Path, base: Base) -> None:
    """A base policy that was trained again has the name and the folder of the earlier one."""
    assert started(tmp_path, Run(VARIANTS["grpo"], 0, (), base)) == ["grpo"]
    (base.checkpoint / "model.safetensors").write_bytes(b"others")
    again = Run(VARIANTS["bepa"], 0, (), base)
    with pytest.raises(ResultError, match=r"work/seed0 was prepared with another base policy .* another --work"):
        started(tmp_path, again)
    assert Child.started == ["grpo"]
    made = prepared_base(tmp_path / "work" / "seed0", again.settings())
    assert made != base.hash() == prepared_base(tmp_path, again.settings())


def test_a_preparation_of_other_settings_is_refused_by_their_names(tmp_path: Path, base: Base) -> None:
    settings = with_changes(load_config([]), {"policy.checkpoint": str(base.checkpoint), "env.train_limit": 4})
    root = tmp_path / "work" / "seed0"
    claim_folder(root, settings)
    moved = base.checkpoint.rename(tmp_path / "elsewhere")
    same = {"policy.checkpoint": str(moved), "optimizer.lr": 0.1, "train.iterations": 2, "expert.reroll_every": 5}
    claim_folder(root, with_changes(settings, same))
    with pytest.raises(ResultError, match=r"work/seed0 was prepared with other settings \(env\.train_limit\)"):
        claim_folder(root, with_changes(settings, same | {"env.train_limit": 5}))
    note = root / NOTE
    note.write_text(note.read_text().replace('"expert.handover": 0,', ""))  # of a version without that setting
    claim_folder(root, with_changes(settings, same))
    with pytest.raises(ResultError, match=r"other settings \(expert\.handover\)"):
        claim_folder(root, with_changes(settings, same | {"expert.handover": 1}))


@pytest.mark.slow
def test_variants_that_share_a_preparation_ask_for_the_same_one() -> None:
    by_group: dict[str, dict[str, Any]] = {}
    for variant in (variant for parts in (PARTS, FREE_PARTS) for part in parts.values() for variant in part):
        run = Run(variant, 0)
        found = preparation_settings(run.settings())
        assert by_group.setdefault(run.group(), found) == found, variant.name
