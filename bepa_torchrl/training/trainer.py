"""BEPATrainer: TorchRL's trainer on batches of complete groups, with checkpoints for exact resumption."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from tensordict import TensorDictBase
from torch.optim import Optimizer
from torchrl.checkpoint import CheckpointError
from torchrl.objectives.common import LossModule
from torchrl.record.loggers import Logger
from torchrl.trainers import Trainer

from bepa_torchrl.data.step_rows import trained_rows
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import GroupReport, TraceReplacement
from bepa_torchrl.training.checkpoint import Checkpoints, LoadWith, PolicyWeights, RandomStates, components_in
from bepa_torchrl.training.optimization_step import GroupStepper, minibatches
from osworld_gym.counts import check_count

_log = logging.getLogger(__name__)
Metrics = dict[str, float]
_SHARDED = "sharded"  #: the component of policy and optimiser on several ranks
LoadShards = Callable[[Any, Optimizer, Path], None]
OnIteration = Callable[["BEPATrainer", TensorDictBase, Metrics], Metrics]


class BEPATrainer(Trainer):
    """Repeats: collect complete groups, finalise them, take optimiser steps on minibatches of groups.

    Args:
        collector: yields complete groups; its postproc finalises them.
        loss_module: has ``denominators``, as all losses of ``bepa_torchrl.losses``.
        stepper: takes the optimiser steps and holds the optimiser and the policy.
        iterations: total batches to collect, including those before a resume.
        replacement: the collector's TraceReplacement, for its reports and its cache (saved in checkpoints).
        inner_epochs: passes over a batch.
        minibatch_groups: groups per optimiser step; None: all of the batch.
        loggers: receive every metric, with the iteration as step.
        checkpoints: folder of the checkpoints; None: none are written.
        save_every: iterations between two checkpoints; the last iteration is always saved.
        keep: checkpoints kept, the newest ones.
        load_shards: loads a checkpoint of several ranks into policy and optimiser, from the component's folder
            (:func:`bepa_torchrl.scale.sharding.checkpoints.sharded.load_component`); None: such a checkpoint is
            refused.
        state: policy and optimiser as one checkpoint component, if they are divided over several ranks
            (:class:`bepa_torchrl.scale.sharding.leader.ShardedState`); None: they are whole.
        on_iteration: called after each iteration with the trainer, its batch and its metrics; the dict that it returns
            is added to the metrics (evaluation, the run's record).

    Raises:
        ValueError: a number that is no integer, or below 1 (``iterations``: below 0).
    """

    loss_module: LossModule
    collector: GroupRolloutCollector

    def __init__(
        self,
        *,
        collector: GroupRolloutCollector,
        loss_module: LossModule,
        stepper: GroupStepper,
        iterations: int,
        replacement: TraceReplacement,
        inner_epochs: int = 1,
        minibatch_groups: int | None = None,
        loggers: Sequence[Logger] = (),
        checkpoints: Path | None = None,
        save_every: int = 10,
        keep: int = 2,
        load_shards: LoadShards | None = None,
        state: Any | None = None,
        on_iteration: OnIteration | None = None,
    ) -> None:
        check_count("iterations", iterations, 0)
        for name, given in (("inner_epochs", inner_epochs), ("save_every", save_every), ("keep", keep)):
            check_count(name, given)
        if minibatch_groups is not None:
            check_count("minibatch_groups", minibatch_groups, why="or None")
        self.iterations, self.iteration = iterations, 0
        self.stepper, self.replacement, self.minibatch_groups = stepper, replacement, minibatch_groups
        self.loggers, self.save_every, self.on_iteration = tuple(loggers), save_every, on_iteration
        self.metrics: Metrics = {}
        self._state, self._load_shards = state, load_shards
        self._minibatches: tuple[TensorDictBase, ...] = ()
        self._rest: Iterator[TensorDictBase] = iter(())
        self._started = perf_counter()
        self.saved = None if checkpoints is None else Checkpoints(checkpoints, keep=keep)
        super().__init__(
            collector=collector,
            total_frames=sys.maxsize,
            frame_skip=1,
            optim_steps_per_batch=0,  # set for each batch, by _split
            loss_module=loss_module,
            optimization_stepper=stepper,
            progress_bar=False,
            num_epochs=inner_epochs,
            auto_log_optim_steps=False,
        )
        self.register_op("pre_steps_log", self._begin)
        self.register_op("pre_epoch", self._restart)
        self.register_op("process_optim_batch", self._next_minibatch)
        self.register_op("post_steps_log", self._end)

    # --- the loop -----------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Trains until ``iterations`` batches were collected, then shuts the collector down."""
        if self.iteration >= self.iterations:
            self.collector.shutdown()
            return
        self._started = perf_counter()
        super().train()

    def _begin(self, batch: TensorDictBase) -> None:
        """The batch is collected and finalised."""
        assert self.collector.last is not None
        self.metrics = {"seconds_collect": perf_counter() - self._started}
        self.metrics |= {f"collect/{name}": value for name, value in self.collector.last.metrics().items()}
        self.metrics |= self.collector.engine_metrics()
        self.metrics |= report_metrics(self.replacement.reports, self.stepper.policy.version)
        if self.replacement.cache is not None:
            self.metrics["cache/tasks"] = float(len(self.replacement.cache.task_ids()))
        self._started = perf_counter()
        self.metrics["rows"] = float(batch.shape[0])
        self._split(batch)

    def _split(self, batch: TensorDictBase) -> None:
        """Sets the minibatches of the batch, and with their number the optimiser steps of an epoch."""
        self._minibatches = tuple(minibatches(batch, self.minibatch_groups))
        self.optim_steps_per_batch = len(self._minibatches)

    def _restart(self, batch: TensorDictBase) -> TensorDictBase:
        """An epoch begins: each goes through the minibatches in the same order."""
        self._rest = iter(self._minibatches)
        return batch

    def _next_minibatch(self, _batch: TensorDictBase) -> TensorDictBase:
        """The rows of one optimiser step: those of the next groups that have a loss (TRAINED).

        All ranks get these rows: :class:`~bepa_torchrl.scale.sharding.gradient.ShardedPasses` compares.
        """
        rows = next(self._rest)
        self.replacement.check_whole_groups(rows)
        return trained_rows(rows)

    def _end(self, batch: TensorDictBase) -> None:
        """The optimiser steps are taken."""
        self.metrics["seconds_train"] = perf_counter() - self._started
        self.metrics |= {f"train/{name}": value for name, value in self.stepper.drain().items()}
        self.iteration += 1
        if self.on_iteration is not None:
            self.metrics |= self.on_iteration(self, batch, self.metrics)
        self.log(self.metrics, self.iteration)
        if self.iteration >= self.iterations:
            self.request_stop()
        self._started = perf_counter()

    def log(self, metrics: Metrics, iteration: int) -> None:
        """Gives the loggers metrics, with the iteration that they belong to as step."""
        for logger in self.loggers:
            for name, value in metrics.items():
                logger.log_scalar(name, value, step=iteration)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _components(self) -> dict[str, Any]:
        """The components of a checkpoint; TorchRL's defaults would save the weights twice (policy and loss)."""
        whole = {"weights": PolicyWeights(self.stepper.policy), "stepper": self.stepper}
        return self._with_others(whole if self._state is None else {_SHARDED: self._state})

    def _components_of(self, path: Path) -> dict[str, Any]:
        """The components that load a checkpoint, which another number of processes may have written."""
        sharded = _SHARDED in components_in(path)
        if sharded == (self._state is not None):
            return self._components()
        if self._state is not None:
            return self._with_others(self._state.of_one_process())
        policy, optimizer, load = self.stepper.policy, self.stepper.optimizer, self._load_shards
        if load is None:
            raise CheckpointError(f"{path} was saved by several ranks; pass the trainer load_shards=, which reads it")
        return self._with_others({_SHARDED: LoadWith(lambda part: load(policy, optimizer, part))})

    def _with_others(self, policy_and_optimizer: dict[str, Any]) -> dict[str, Any]:
        components: dict[str, Any] = {
            **policy_and_optimizer,
            "collector": self.collector,
            "cache": self.replacement.cache,
            "random": RandomStates(),
            "progress": _Progress(self),
        }
        return {name: component for name, component in components.items() if component is not None}

    def save_trainer(self, force_save: bool = False) -> None:
        """Writes a checkpoint if one is due, atomically; then removes older ones."""
        if self.saved is not None and (force_save or self.iteration % self.save_every == 0):
            self.saved.save(self._components(), step=self.iteration)

    def resume(self, path: Path | None = None) -> Path:
        """Loads a checkpoint and returns its folder; ``train`` continues from there.

        Args:
            path: the checkpoint; None: the newest intact one. Newer ones are renamed: damaged ones, and those that the
                training from an older checkpoint takes the place of.

        Raises:
            ValueError: the trainer has no checkpoint folder.
            CheckpointError: there is no checkpoint, or it does not match this run.
        """
        if self.saved is None:
            raise ValueError("resume requires checkpoints=, the folder of the checkpoints")
        if path is None:
            recovered = self.saved.recover()
            if recovered is None:
                raise CheckpointError(f"no checkpoint to resume from in {self.saved.folder}; start without resume")
            for note in recovered.notes:
                _log.warning("%s", note)
            path = recovered.path
        self.saved.load(path, self._components_of(path))
        for note in self.saved.leave(path):
            _log.warning("%s", note)
        return path


class _Progress:
    """The trainer's counters as a checkpoint component."""

    def __init__(self, trainer: BEPATrainer) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, int]:
        return {"iteration": self.trainer.iteration, "collected_frames": self.trainer.collected_frames}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.trainer.iteration = int(state_dict["iteration"])
        self.trainer.collected_frames = int(state_dict["collected_frames"])


def report_metrics(reports: Sequence[GroupReport], version: int) -> Metrics:
    """Counts of replacements, and the mean age of the injected traces in optimiser steps (``cache/staleness``)."""
    reports = [report for report in reports if report.valid]  # the others have desktop failures only
    injected = [report for report in reports if report.injected is not None]
    sources = Counter(report.injected for report in injected)
    ages = [version - report.injected_version for report in injected if report.injected_version is not None]
    metrics = {
        "groups": float(len(reports)),
        "groups_failed": float(sum(report.successes == 0 for report in reports)),
        "groups_solved": float(sum(report.successes == report.valid for report in reports)),
        "cache/refreshed": float(sum(report.refreshed for report in reports)),
        "cache/injected": float(len(injected)),
    }
    if shares := [report.reworded for report in reports if report.reworded is not None]:
        metrics["cache/reworded"] = sum(shares) / len(shares)
    if ages:
        metrics["cache/staleness"] = sum(ages) / len(ages)
    return metrics | {f"cache/injected_{source}": float(count) for source, count in sources.items()}
