"""Gradient norms of the two parts of the RL+SFT loss, cross-entropy on the expert's rows by GRPO's on the policy's.

Trains ``algo=rl_sft`` for a few iterations with what a run has prepared, and prints the norm of each part's gradient
before clipping, the cross-entropy's with a weight of 1, as means over the optimiser steps:

    python -m benchmarks.rl_sft_gradients runs/default/prepared --iterations 5
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.common import LossModule

from bepa_torchrl.data.packing import pack_rows
from bepa_torchrl.data.step_rows import stack_rows
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_cache, make_env, make_policy, make_trainer
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.methods import method_named
from bepa_torchrl.training.optimization_step import local_passes
from osworld_gym.tasks.suites.registry import load_suite

PARTS = ("loss_objective", "loss_sft")


class PartNorms:
    """Measures each part's gradient, then does what an optimiser step does.

    Args:
        parameters: the trained ones.
        weight: of the cross-entropy in the loss.
    """

    def __init__(self, parameters: Sequence[Tensor], weight: float) -> None:
        self.parameters, self.weight = list(parameters), weight
        self.norms: dict[str, list[float]] = defaultdict(list)

    def __call__(
        self, loss: LossModule, rows: Sequence[TensorDictBase], max_tokens: int
    ) -> tuple[list[dict[str, float]], dict[str, float]]:
        """See :data:`bepa_torchrl.training.optimization_step.Passes`."""
        for part, scale in zip(PARTS, (1.0, self.weight), strict=True):
            for pack in pack_rows(rows, max_tokens):
                loss(stack_rows(rows[i] for i in pack.rows)).get(part).backward()
            gradients = [p.grad.flatten() for p in self.parameters if p.grad is not None]
            self.norms[part].append(float(torch.cat(gradients).norm()) / scale)
            for parameter in self.parameters:
                parameter.grad = None
        return local_passes(loss, rows, max_tokens)


def measure(prepared: Path, overrides: Sequence[str]) -> PartNorms:
    """Trains with the prepared traces and returns the norms."""
    settings = load_config(["algo=rl_sft", "compare=[]", *overrides])
    torch.set_num_threads(settings.threads)
    algo, found = method_named("rl_sft"), load_preparation(prepared)
    suite = load_suite(settings.env.suite)
    train = tuple(map(suite.task, found.manifest.train))
    policy = make_policy(settings, seed=settings.seed)
    with closing(make_env(settings, policy, suite)) as env:
        cache = make_cache(settings, algo, found.converted)
        trainer = make_trainer(settings, algo, policy, env, train, cache)
        groups = trainer.stepper.optimizer.param_groups
        norms = PartNorms([p for group in groups for p in group["params"]], settings.sft.weight)
        trainer.stepper.passes = norms
        trainer.train()
    return norms


def main() -> None:
    """Prints the means and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prepared", type=Path, help="the folder prepared/ of a run on the simulated desktop")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="further settings, such as sft.weight=0.1")
    options = parser.parse_intermixed_args()
    found = measure(options.prepared, [*options.overrides, f"train.iterations={options.iterations}"]).norms
    grpo, sft = (mean(found[part]) for part in PARTS)
    steps = len(found[PARTS[0]])
    sys.stdout.write(f"{steps} optimiser steps: GRPO {grpo:.3f}, cross-entropy with weight 1 {sft:.3f}\n")
    sys.stdout.write(f"cross-entropy by GRPO: {sft / grpo:.1f} ×\n")


if __name__ == "__main__":
    main()
