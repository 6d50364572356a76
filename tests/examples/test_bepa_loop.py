"""examples/bepa_loop.py and the trainer compute the same metrics and weights from the same seed."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from repository import ROOT
from tensordict import TensorDictBase
from torchrl.envs.transforms import Compose

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, SeedKey, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import GroupStepper, trainable
from bepa_torchrl.training.trainer import BEPATrainer

EXAMPLE = ROOT / "examples" / "bepa_loop.py"
PLAN, SEED_KEY = "1. Press it.", (9, 9, 0, 0)
ITERATIONS, GROUPS, SIZE = 4, 3, 4


def wins(key: SeedKey) -> bool:
    """Task 0: only its LEVEL-1 seed; task 1: slot 2, at first; task 2: half of the slots, always."""
    _, iteration, task, slot = key
    return key == SEED_KEY or (task == 1 and iteration <= 1 and slot == 2) or (task == 2 and slot % 2 == 0)


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bepa_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bepa_loop"] = module
    spec.loader.exec_module(module)
    return module


def optimizer_of(policy: ScriptedLearner) -> torch.optim.AdamW:
    return torch.optim.AdamW(trainable(policy, frozen=["visual"]), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)


def by_trainer() -> tuple[list[dict[str, float]], ScriptedLearner]:
    policy = ScriptedLearner(wins)
    cache = TaskTraceCache()
    with lamp_vector(1) as vector:
        (seed,) = run_episodes(policy, vector, [EpisodeJob(lamp_task(0), SEED_KEY, 1, plan=PLAN)])
    cache.put("lamp-0", seed.rows)
    replacement = TraceReplacement(cache)
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(5)),
        policy,
        [lamp_task(i) for i in range(4)],
        groups=GROUPS,
        group_size=SIZE,
        postproc=Compose(replacement, OldLogProb(policy)),
    )
    history: list[dict[str, float]] = []

    def note(_trainer: BEPATrainer, _batch: TensorDictBase, numbers: dict[str, float]) -> dict[str, float]:
        names = {"success": "collect/success", "injected": "cache/injected", "cache": "cache/tasks"}
        names |= {"loss": "train/loss", "updates": "train/optimizer_steps"}
        history.append({short: numbers.get(name, 0.0) for short, name in names.items()})
        return {}

    stepper = GroupStepper(policy, optimizer_of(policy))
    BEPATrainer(
        collector=collector,
        loss_module=BEPALoss(policy),
        stepper=stepper,
        iterations=ITERATIONS,
        replacement=replacement,
        minibatch_groups=2,
        on_iteration=note,
    ).train()
    return history, policy


def by_loop(loop: ModuleType) -> tuple[list[dict[str, float]], ScriptedLearner]:
    policy = ScriptedLearner(wins)
    seed = loop.Episode(lamp_task(0), SEED_KEY, 1, PLAN)
    tasks = [lamp_task(i) for i in range(4)]
    with lamp_vector(5) as vector:
        loop.play(policy, vector, [seed])
        options = {"groups": GROUPS, "group_size": SIZE, "minibatch_groups": 2, "micro_batch": 1000}
        cache = {"lamp-0": seed}
        found = loop.bepa(policy, vector, tasks, optimizer_of(policy), cache, iterations=ITERATIONS, **options)
        return list(found), policy


def test_flat_loop_and_trainer_give_the_same_metrics_and_weights(loop: ModuleType) -> None:
    (expected, trained), (found, looped) = by_trainer(), by_loop(loop)
    assert len(found) == ITERATIONS
    for one, other in zip(found, expected, strict=True):
        assert {k: one[k] for k in ("success", "injected", "cache", "updates")} == pytest.approx(
            {k: other[k] for k in ("success", "injected", "cache", "updates")}
        )
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
    assert sum(numbers["injected"] for numbers in found) >= 3
    assert max(numbers["cache"] for numbers in found) == 3
    for a, b in zip(trained.parameters(), looped.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    start = ScriptedLearner(wins)
    moved = [not torch.equal(a, b) for a, b in zip(start.parameters(), trained.parameters(), strict=True)]
    assert any(moved)


def test_flat_loop_stays_readable() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 260
