"""Checkpoints: damage is found before loading, the newest intact one is used, a full disk changes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cache_traces import make_trace
from small_disk import small_disk
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.training.checkpoint import Checkpoints, PolicyWeights, RandomStates, damage

COMPONENTS = ("weights", "optimizer", "cache", "random")


def components(mark: int, *, width: int = 8) -> dict[str, Any]:
    """A small model after one optimiser step, a cache with one trace, the random state."""
    torch.manual_seed(mark)
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(width)).sum().backward()
    optimizer.step()
    cache = TaskTraceCache()
    cache.put("a", make_trace("a", 2, mark=mark))
    policy = SimpleNamespace(model=model, version=mark, device="cpu")
    return {"weights": PolicyWeights(policy), "optimizer": optimizer, "cache": cache, "random": RandomStates()}


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def saved_twice(folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=2)
    for step in (1, 2):
        checkpoints.save(components(step), step=step)
    return checkpoints


def newest(checkpoints: Checkpoints) -> Path:
    return checkpoints.paths()[0][1]


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints = saved_twice(tmp_path)
    drawn = torch.rand(3)  # the generator is where it was at the second save, plus these
    other = components(7)
    found = checkpoints.recover()
    assert found is not None
    assert (found.step, found.notes) == (2, ())
    checkpoints.load(found.path, other)
    assert torch.equal(torch.rand(3), drawn)
    expected = components(2)
    for key, value in expected["weights"].policy.model.state_dict().items():
        assert torch.equal(value, other["weights"].policy.model.state_dict()[key])
    assert other["weights"].policy.version == 2
    moments = [part["optimizer"].state_dict()["state"][0]["exp_avg"] for part in (expected, other)]
    assert torch.equal(*moments)
    assert other["cache"].task_ids() == ["a"]
    assert not any(path.suffix in (".pkl", ".pt", ".memmap") for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_checkpoint_of_two_gpus_is_loaded_with_another_number(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchRL keeps a state of each GPU, and sets each: torch has no generator for one that is not there."""
    states = [torch.full((16,), gpu, dtype=torch.uint8) for gpu in range(2)]
    generators: dict[int, torch.Tensor] = {}

    def set_state(state: torch.Tensor, device: int) -> None:
        if device >= count:
            raise IndexError("tuple index out of range")
        generators[device] = state

    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("torch.cuda.random.set_rng_state", set_state)
    with monkeypatch.context() as two:
        two.setattr("torch.cuda.is_initialized", lambda: True)
        two.setattr("torch.cuda.is_available", lambda: True)
        two.setattr("torch.cuda.get_rng_state_all", lambda: states)
        path = Checkpoints(tmp_path, keep=2).save({"random": RandomStates()}, step=1)
    drawn = torch.rand(3)
    Checkpoints(tmp_path, keep=2).load(path, {"random": RandomStates()})
    assert torch.equal(torch.rand(3), drawn)
    assert {gpu: state.tolist() for gpu, state in generators.items()} == {
        gpu: states[gpu].tolist() for gpu in range(min(count, 2))
    }


@pytest.mark.parametrize("name", COMPONENTS)
def test_one_flipped_bit_in_any_file_of_a_component_is_found(name: str, tmp_path: Path) -> None:
    checkpoints = saved_twice(tmp_path)
    bad = newest(checkpoints)
    files = [path for path in (bad / "components").glob(f"*-{name}/**/*") if path.is_file()]
    assert files
    for file in files:
        whole = file.read_bytes()
        flip_bit(file)
        reason = damage(bad)
        assert reason is not None
        assert file.name in reason
        file.write_bytes(whole)
    assert damage(bad) is None


def test_resume_goes_back_to_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved_twice(tmp_path)
    bad = newest(checkpoints)
    flip_bit(next(bad.glob("components/*-optimizer/tensors.safetensors")))
    found = checkpoints.recover()
    assert found is not None
    assert found.step == 1
    (note,) = found.notes
    assert "iteration-000000000002 is damaged" in note
    assert "renamed to iteration-000000000002.damaged; going on from iteration 1" in note
    assert (tmp_path / "iteration-000000000002.damaged").is_dir()
    assert [step for step, _ in checkpoints.paths()] == [1]
    again = Checkpoints(tmp_path, keep=2)
    again.save(components(2), step=2)
    assert damage(newest(again)) is None


@pytest.mark.parametrize("change", ["torn", "missing", "no manifest", "another program's"])
def test_damage_of_every_kind(change: str, tmp_path: Path) -> None:
    checkpoints = saved_twice(tmp_path)
    bad = newest(checkpoints)
    weights, manifest = next(bad.glob("components/*-weights/model.safetensors")), bad / "manifest.json"
    if change == "torn":
        weights.write_bytes(weights.read_bytes()[:-9])
    elif change == "missing":
        weights.unlink()
    elif change == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("[]")
    assert damage(bad) is not None
    found = checkpoints.recover()
    assert found is not None
    assert found.step == 1


def test_nothing_intact_is_an_error_that_touches_nothing(tmp_path: Path) -> None:
    checkpoints = saved_twice(tmp_path)
    for _, path in checkpoints.paths():
        flip_bit(next(path.glob("components/*-weights/model.safetensors")))
    with pytest.raises(CheckpointError, match=r"no intact checkpoint .*000002.*000001.*start again from iteration 0"):
        checkpoints.recover()
    assert len(checkpoints.paths()) == 2
    assert Checkpoints(tmp_path / "none", keep=2).recover() is None


def test_checkpoints_newer_than_the_one_that_is_gone_on_from_are_set_aside(tmp_path: Path) -> None:
    """Else the next save would be removed as the oldest, and the next resume would take another training's."""
    first = Checkpoints(tmp_path, keep=3)
    for step in (2, 4, 6):
        first.save(components(step), step=step)
    again = Checkpoints(tmp_path, keep=1)
    notes = again.leave(tmp_path / "iteration-000000000002")
    assert notes == [
        f"checkpoint iteration-00000000000{n} is newer than iteration-000000000002, renamed to "
        f"iteration-00000000000{n}.left"
        for n in (6, 4)
    ]
    again.save(components(3), step=3)
    found = again.recover()
    assert found is not None
    assert found.step == 3
    assert again.leave(found.path) == []
    assert again.leave(tmp_path / "elsewhere" / "iteration-000000000001") == []
    assert sorted(path.name[-6:] for path in tmp_path.iterdir()) == ["000003", "4.left", "6.left"]


def test_leftovers_of_a_killed_save_are_removed(tmp_path: Path) -> None:
    checkpoints = saved_twice(tmp_path)
    stage = tmp_path / ".iteration-000000000003.stage-0123"
    (stage / "components").mkdir(parents=True)
    (stage / "components" / "big").write_bytes(b"x")
    checkpoints.remove_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000000000001", "iteration-000000000002"]


def test_a_full_disk_is_an_error_and_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """PolicyWeights fit on the disk and optimiser moments do not: through memory maps this was SIGBUS."""
    with small_disk(tmp_path, size=3_000_000, largest_file=1_500_000) as disk:
        checkpoints = Checkpoints(disk / "run", keep=2)
        checkpoints.save(components(1), step=1)
        with pytest.raises(OSError, match=r"could not be saved.*(No space left|too large).*is intact: free some"):
            checkpoints.save(components(2, width=512), step=2)
        assert [path.name for path in (disk / "run").iterdir()] == ["iteration-000000000001"]
        assert damage(newest(checkpoints)) is None


def test_space_is_checked_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved_twice(tmp_path)
    size = sum(path.stat().st_size for path in newest(checkpoints).rglob("*") if path.is_file())
    usage = SimpleNamespace(total=10 * size, used=9 * size, free=int(1.1 * size))
    monkeypatch.setattr("bepa_torchrl.training.checkpoint.shutil.disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"disk full: a checkpoint requires .* MB are free; the previous checkpoint is"):
        checkpoints.save(components(3), step=3)
    assert [step for step, _ in checkpoints.paths()] == [2, 1]
