"""BEPATrainer: the training loop, its metrics and loggers, and exact resumption."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.checkpoint import CheckpointError
from torchrl.envs.transforms import Compose
from torchrl.record.loggers import CSVLogger

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data.step_rows import groups_of
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, SeedKey, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import GroupStepper, trainable
from bepa_torchrl.training.trainer import BEPATrainer


def wins(key: SeedKey) -> bool:
    """In even iterations one slot of every task succeeds, in odd ones none: the cache is refreshed, then used."""
    _, iteration, task, slot = key
    return iteration % 2 == 0 and slot == task % 3


def trainer_of(
    folder: Path | None, *, iterations: int, losses: list[float] | None = None, **options: Any
) -> BEPATrainer:
    policy = ScriptedLearner(wins)
    replacement = TraceReplacement(TaskTraceCache())
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(6)),
        policy,
        [lamp_task(i) for i in range(3)],
        groups=2,
        group_size=3,
        seed=1,
        postproc=Compose(replacement, OldLogProb(policy)),
    )
    optimizer = torch.optim.AdamW(trainable(policy, frozen=["visual"]), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)

    def note(trainer: BEPATrainer, batch: TensorDictBase, metrics: dict[str, float]) -> dict[str, float]:
        assert len(list(groups_of(batch))) == 2
        assert trainer.iteration > 0
        if losses is not None:
            losses.append(metrics.get("train/loss", 0.0))
        return {"extra": 1.0}

    return BEPATrainer(
        collector=collector,
        loss_module=BEPALoss(policy),
        stepper=GroupStepper(policy, optimizer),
        iterations=iterations,
        replacement=replacement,
        minibatch_groups=1,
        checkpoints=folder,
        save_every=2,
        on_iteration=note,
        **options,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save_every": 2.5}, "save_every: expected an integer >= 1, got 2.5"),
        ({"keep": 0}, "keep: expected an integer >= 1, got 0"),
        ({"inner_epochs": True}, "inner_epochs: expected an integer >= 1, got True"),
        ({"minibatch_groups": 0}, "minibatch_groups: expected an integer >= 1, or None, got 0"),
        ({"iterations": 1.5}, "iterations: expected an integer >= 0, got 1.5"),
    ],
)
def test_a_number_that_is_no_count_is_refused(options: dict[str, Any], message: str) -> None:
    """``save_every=2.5`` saved every fifth iteration, and ``minibatch_groups=0`` failed in the first one."""
    given = {"collector": None, "loss_module": None, "stepper": None, "replacement": None, "iterations": 1, **options}
    with pytest.raises(ValueError, match=message):
        BEPATrainer(**given)


def weights(trainer: BEPATrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.stepper.policy.parameters()])


def test_loop_counts_what_happened(tmp_path: Path) -> None:
    """Three tasks, two per iteration. Iteration 0 refreshes two tasks in two optimiser steps. Iteration 1 plays the
    third, which has no trace and so no signal, and one of the two, which gets its trace, then 2 steps old, injected.
    """
    trainer = trainer_of(None, iterations=2, loggers=[CSVLogger("run", str(tmp_path))])
    before = weights(trainer)
    trainer.train()
    metrics = trainer.metrics
    assert trainer.iteration == 2
    assert trainer.stepper.policy.version == 2 + metrics["train/optimizer_steps"] == 2 + 1
    assert not torch.equal(before, weights(trainer))
    assert metrics["extra"] == 1.0
    assert (metrics["groups"], metrics["groups_failed"], metrics["cache/tasks"]) == (2.0, 2.0, 2.0)
    assert (metrics["cache/injected"], metrics["cache/injected_on_policy"], metrics["cache/staleness"]) == (
        1.0,
        1.0,
        2.0,
    )
    assert metrics["train/optimizer_steps_without_signal"] == 1.0
    assert metrics["collect/success"] == 0.0
    lines = (tmp_path / "run" / "scalars" / "collect" / "success.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["1", "2"]
    assert float(lines[0].split(",")[1]) == pytest.approx(1 / 3)
    assert trainer.collector.closed


def test_resumed_run_gives_the_uninterrupted_curve(tmp_path: Path) -> None:
    straight: list[float] = []
    whole = trainer_of(tmp_path / "whole", iterations=5, losses=straight)
    whole.train()
    broken: list[float] = []
    trainer_of(tmp_path / "broken", iterations=2, losses=broken).train()
    second = trainer_of(tmp_path / "broken", iterations=5, losses=broken)
    assert second.resume().name.startswith("iteration")
    assert (second.iteration, second.stepper.policy.version) == (2, 3)
    second.train()
    assert broken == pytest.approx(straight, rel=1e-4, abs=1e-5)
    start = weights(trainer_of(tmp_path / "start", iterations=5))
    apart, moved = (weights(second) - weights(whole)).norm(), (weights(whole) - start).norm()
    assert apart < 1e-3 * moved
    assert second.replacement.cache is not None
    assert whole.replacement.cache is not None
    assert second.replacement.cache.stats() == whole.replacement.cache.stats()
    assert second.collector.next_group == whole.collector.next_group == 10


def test_checkpoints_rotate_and_the_last_iteration_is_saved(tmp_path: Path) -> None:
    trainer_of(tmp_path, iterations=5).train()
    assert len([path for path in tmp_path.iterdir() if not path.name.startswith(".")]) == 2
    fresh = trainer_of(tmp_path, iterations=5)
    fresh.resume()
    assert fresh.iteration == 5
    fresh.train()
    assert fresh.iteration == 5
    assert not any(path.suffix in (".pkl", ".pt") for path in tmp_path.rglob("*"))


def test_nothing_to_resume_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        trainer_of(tmp_path, iterations=1).resume()


def test_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    """A limit on file sizes simulates a full disk: the save fails atomically, the last checkpoint is kept."""
    trainer = trainer_of(tmp_path, iterations=3)
    iterator = iter(trainer.collector)
    next(iterator)
    trainer.iteration = 1
    trainer.save_trainer(force_save=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        trainer.iteration = 2
        with pytest.raises(OSError, match=r"model.safetensors.*(File too large|disk)"):
            trainer.save_trainer(force_save=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name[-1] for path in tmp_path.iterdir()] == ["1"]
    trainer.resume()
    assert trainer.iteration == 1
