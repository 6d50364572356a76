"""One method's training run in one process: ``python -m bepa_torchrl.experiment.method_process <folder>``.

    config.yaml                      its settings
    iterations.jsonl, episodes.jsonl its record, from which the launcher shows progress
    logs/, log.txt                   TensorBoard and CSV logs; the output of the process
    checkpoints/                     see :mod:`bepa_torchrl.training.checkpoint`
    policy/, results.json            at the end

``prepared/`` is in the parent folder. The process locks its folder and is killed when its launcher exits.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import torch
from tensordict import TensorDictBase
from torchrl.record.loggers import CSVLogger
from torchrl.record.loggers.tensorboard import TensorboardLogger

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.divergence import cache_divergence, injected_divergence
from bepa_torchrl.evaluation.success_rate import Evaluation, evaluate, subsets
from bepa_torchrl.experiment.config import read_settings
from bepa_torchrl.experiment.factory import make_cache, make_env, make_policy, make_trainer, rollout_policy
from bepa_torchrl.experiment.loss_and_optimizer import FINE_TUNING, REINFORCEMENT, make_optimizer
from bepa_torchrl.experiment.method_handle import NOTICE, end_with_launcher, interrupt_once
from bepa_torchrl.experiment.preparation import Preparation, final_evaluation, load_preparation, phi
from bepa_torchrl.experiment.run_record import RunRecord, rewind_logs
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import Tasks
from bepa_torchrl.experts import TraceError, load_traces
from bepa_torchrl.experts.reroll import reroll
from bepa_torchrl.experts.self_rollout import train_after_handover
from bepa_torchrl.failures import guarded
from bepa_torchrl.methods import Method, SeedSource, method_named
from bepa_torchrl.monitoring.prometheus import method_samples
from bepa_torchrl.policies.allocator import set_allocator
from bepa_torchrl.policies.base import EngineSampler, ModelSampler, Policy
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.prefix import check_replayable
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.rollout.starts import responses_in, responses_of, start_shares
from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.storage.ledger import Ledger
from bepa_torchrl.storage.lock import locked
from bepa_torchrl.training.checkpoint import Checkpoints
from bepa_torchrl.training.optimization_step import local_passes
from bepa_torchrl.training.supervised import fine_tune
from bepa_torchrl.training.trainer import BEPATrainer, Metrics
from osworld_gym.atomic import remove_leftovers, write_text
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.torchrl_env import OSWorldEnv

if TYPE_CHECKING:
    from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
    from bepa_torchrl.scale.sharding.leader import Leader
    from bepa_torchrl.scale.sharding.sampling_copy import SamplingCopy

#: folder of the inference engine's copies of the weights
_ENGINE = ".engine"  # hidden: scratch, which storage= must not upload
#: folder of the finished episodes of the final evaluation, until it is complete
_EVALUATING = "evaluating"
#: a user creates this file in the method's folder to restart the workers of ``collect.mode=async`` on Ray
RESTART_WORKERS = "restart_workers"
#: task sets whose success rates are among an iteration's metrics
_LIVE = ("train", "held_out", "expert_only")


class MethodRun:
    """Trains and evaluates one method. The caller holds the folder's lock.

    Args:
        folder: the method's folder, with ``config.yaml``.
    """

    def __init__(self, folder: Path) -> None:
        config = read_settings(folder / "config.yaml")
        self.folder, self.config = folder, config
        set_allocator(config.policy.device)  # before other ranks are started, and before CUDA is used
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.algo: Method = method_named(config.algo.name)
        suite = load_suite(config.env.suite)
        self.prepared: Preparation = load_preparation(folder.parent / "prepared")
        manifest = self.prepared.manifest
        manifest.check(suite)
        train, held_out = (tuple(map(suite.task, ids)) for ids in (manifest.train, manifest.held_out))
        self.tasks = Tasks(suite, train, held_out)  # from the manifest, without checking again which can run here
        self.policy: Policy
        self.leader: Leader | None
        self.rollout: ModelSampler
        self.record = RunRecord(folder, images=config.record.images)
        self.sets = subsets(self.tasks.train, self.tasks.held_out, self.prepared.manifest.expert_only)
        self.started = perf_counter()
        self.totals = {"episodes": 0.0, "optimizer_steps": 0.0, "seconds": 0.0}
        self.totals |= {f"failed_{reason.value}": 0.0 for reason in FailureReason}
        self.failures: Counter[FailureReason] = Counter()  #: of the process's own desktops
        self.starts: dict[str, float] = {}  #: shares of responses in the final evaluation (``record.starts``)
        self._counted: Counter[FailureReason] = Counter()  #: those of them that are in the totals

    def run(self) -> int:
        """Trains, evaluates, writes ``results.json`` and the policy; returns the exit code."""
        start = self._start()
        with (
            self._trained() as (self.policy, self.leader),
            self._sampler() as self.rollout,
            closing(make_env(self.config, self.rollout.renderer.image_scaling, self.tasks.suite)) as env,
            nullcontext() if self.leader is None else self.leader.explained(),
        ):
            self.failures = env.vector.failures
            if start is None:
                self._line(0, "base", self._summary(self.prepared.base.get("sampled")))
                if self.algo.sft is not SeedSource.nothing:
                    self._fine_tune(self._traces_of(self.algo.sft)[0])
            if self.algo.rl:
                self._reinforce(env, start)
            final: dict[str, Evaluation] = {}
            if self.config.eval.final_episodes:
                every = [*self.tasks.train, *self.tasks.held_out]
                self._sync()
                kept = self.record if self.config.record.outcomes else None
                stages = Stages(Ledger(self.folder / _EVALUATING))
                final = final_evaluation(
                    self.config,
                    self.rollout,
                    env.vector,
                    every,
                    record=kept,
                    stages=stages,
                    keep=self._count_starts if self.config.record.starts else None,
                )
                self.failures.update(stages.failures)
            self._count_failures()
            self._finish(final)
        return 0

    def _trained(self) -> AbstractContextManager[tuple[Policy, Leader | None]]:
        """The policy in training and, if it is divided over several ranks, their leader."""
        if self.config.train.ranks == 1:
            return nullcontext((make_policy(self.config, seed=self.config.seed), None))
        from bepa_torchrl.experiment.ranks import divided_policy

        return divided_policy(self.config, self.folder)

    def _sampler(self) -> AbstractContextManager[ModelSampler]:
        """The policy that samples."""
        engine = self.folder / _ENGINE
        if self.leader is None:
            return rollout_policy(self.config, self.policy, folder=engine)
        from bepa_torchrl.experiment.ranks import sampling_copy

        return sampling_copy(self.config, self.leader, folder=engine)

    def _start(self) -> Path | None:
        """The checkpoint to resume from, or None; removes what was recorded after it."""
        remove_leftovers(self.folder)
        shutil.rmtree(self.folder / _ENGINE, ignore_errors=True)
        checkpoints = Checkpoints(self.folder / "checkpoints", keep=self.config.train.keep)
        checkpoints.remove_leftovers()
        recovered = checkpoints.recover() if self.config.resume else None
        for note in () if recovered is None else recovered.notes:
            sys.stdout.write(f"{NOTICE}{note}\n")
            sys.stdout.flush()
        step = -1 if recovered is None else recovered.step
        if step < (self.config.train.iterations if self.algo.rl else 0):  # trains again, and may get other weights
            shutil.rmtree(self.folder / _EVALUATING, ignore_errors=True)
        self.record.rewind(step)
        rewind_logs(self.folder / "logs", step, self.record.evaluated())
        if recovered is None:
            return None
        self.totals = self._totals_so_far()
        return recovered.path

    # --- phases -------------------------------------------------------------------------------------------------

    def _fine_tune(self, traces: TaskTraceCache) -> None:
        config = self.config
        if self.leader is not None:
            self.leader.begin(FINE_TUNING)
        fine_tune(
            self.policy,
            traces,
            make_optimizer(config, self.policy, lr=config.sft.lr),
            epochs=config.sft.epochs,
            batch=config.sft.batch,
            max_tokens=config.train.max_tokens,
            clip_norm=config.optimizer.clip_norm,
            seed=config.seed,
            on_epoch=lambda epoch, metrics: self._line(0, "sft", metrics | {"epoch": float(epoch)}),
            passes=local_passes if self.leader is None else self.leader.passes,
            nonfinite_steps=config.train.nonfinite_steps,
        )

    def _reinforce(self, env: OSWorldEnv, start: Path | None) -> None:
        logs = str(self.folder / "logs")
        if self.leader is not None:
            self.leader.begin(REINFORCEMENT)
        cache = make_cache(self.config, self.algo, *self._traces_of(self.algo.seed_source))
        if cache is not None and self.algo.prefix and not check_replayable(cache, "the run's preparation"):
            sys.stdout.write(f"{NOTICE}{self.algo.name}: no trace can be replayed, so that every group is as GRPO's\n")
        trainer = make_trainer(
            self.config,
            self.algo,
            self.policy,
            env,
            self.tasks.train,
            cache,
            held_out=self.tasks.held_out,
            rollout=self.rollout,
            leader=self.leader,
            plans=self._plans() if self._needs_plans() else None,
            checkpoints=self.folder / "checkpoints",
            loggers=[TensorboardLogger("tensorboard", logs), CSVLogger("csv", logs)],
            on_iteration=self._after_iteration,
        )
        try:
            # a lost rank is explained here: shutting the collector down may take longer than its exit is waited for
            with nullcontext() if self.leader is None else self.leader.explained():
                if start is not None:
                    trainer.resume(start)
                trainer.train()
        finally:
            trainer.collector.shutdown()

    def _traces_of(self, source: SeedSource) -> list[TaskTraceCache]:
        """The prepared traces of a source, the preferred ones first."""
        prepared = self.prepared
        if source is SeedSource.nothing:
            return []
        if source is SeedSource.converted:
            return [prepared.converted]
        after = self.config.expert.handover_loss == "after"
        own = train_after_handover(prepared.self_rolled) if after else prepared.self_rolled
        return [own, *([prepared.converted] if self.config.expert.seed_from_converted else [])]

    def _needs_plans(self) -> bool:
        refreshed = self.algo.refresh and self.config.cache.refresh == "actions"
        return refreshed or bool(self.config.loss.distill_weight)

    def _plans(self) -> dict[str, str]:
        """Task id → the plan of its first trace that has one."""
        folder = self.folder.parent / "prepared"
        plan, plans = phi(self.config, folder), dict[str, str]()
        for trace in load_traces(folder / "experts"):
            with suppress(TraceError):
                plans.setdefault(trace.task_id, plan(trace))
        return plans

    def _after_iteration(self, trainer: BEPATrainer, batch: TensorDictBase, metrics: Metrics) -> Metrics:
        config, iteration = self.config, trainer.iteration
        extra: dict[str, Any] = {}
        if config.eval.every and iteration % config.eval.every == 0 and iteration < config.train.iterations:
            if (collector := self._asynchronous(trainer)) is not None:
                collector.evaluate(iteration)
            else:
                extra |= self._quick_evaluation(trainer)
            if trainer.replacement.cache is not None:
                extra |= cache_divergence(self._whole_policy(), trainer.replacement.cache, batch)
        extra |= injected_divergence(batch)
        extra |= self._starts(trainer, batch)
        self._record(trainer, batch)
        every = config.expert.reroll_every
        if every and iteration % every == 0 and self.algo.seed_source is SeedSource.self_rolled:
            extra |= self._reroll(trainer)
        if (collector := self._asynchronous(trainer)) is not None:
            self._report_evaluations(trainer, collector)
            self._restart_workers(collector)
            if self.leader is not None:
                cast("SamplingCopy", self.rollout).release()  # the rollouts are sampled elsewhere
        extra["policy_version"] = float(self.policy.version)
        self._line(iteration, "rl", metrics | extra)
        self.record.sync()  # the checkpoint of this iteration comes next
        if config.cluster.address is not None and config.collect.mode == "async":  # else this process is not of Ray's
            from bepa_torchrl.scale.rollouts.ray_metrics import export  # requires the extra ``ray``

            export((sample.name, sample.help, sample.labels, sample.value) for sample in method_samples(self.folder))
        return extra

    def _asynchronous(self, trainer: BEPATrainer) -> AsyncGroupCollector | None:
        """The trainer's collector with ``collect.mode=async``."""
        return cast("AsyncGroupCollector", trainer.collector) if self.config.collect.mode == "async" else None

    def _record(self, trainer: BEPATrainer, batch: TensorDictBase) -> None:
        """Writes the iteration's episodes and groups, and keeps the record below its limit."""
        settings, iteration = self.config.record, trainer.iteration
        assert trainer.collector.last is not None
        whole = bool(settings.every) and (iteration % settings.every == 0 or iteration == 1)
        self.record.episodes(iteration, batch, trainer.collector.last.results, whole=whole)
        self.record.groups(iteration, trainer.replacement.reports)
        removed = "" if settings.limit_gb is None else self.record.thin(round(settings.limit_gb * 1e9))
        if removed:
            sys.stdout.write(f"{NOTICE}{removed}\n")
            sys.stdout.flush()

    def _reroll(self, trainer: BEPATrainer) -> Metrics:
        """LEVEL-1 with the current policy, for tasks whose cached trace is missing or stale."""
        expert, cache = self.config.expert, trainer.replacement.cache
        assert cache is not None
        self._sync()
        return reroll(
            self.rollout,
            trainer.collector.env.vector,
            cache,
            load_traces(self.folder.parent / "prepared" / "experts"),
            self.tasks.train,
            seed=self.config.seed,
            iteration=trainer.iteration,
            version=self.policy.version,
            stale_after=expert.reroll_stale,
            tries=expert.selfroll_attempts,
            temperature=self.config.collect.temperature,
            max_leak=expert.max_leak,
            plan=phi(self.config, self.folder.parent / "prepared"),
            handover=expert.handover,
            after_handover=expert.handover_loss == "after",
        )

    def _starts(self, trainer: BEPATrainer, batch: TensorDictBase) -> Metrics:
        """Shares of the iteration's responses that begin with the texts of ``record.starts``."""
        starts = self.config.record.starts
        if not starts:
            return {}
        assert trainer.collector.last is not None
        injected = responses_in(row for row in row_list(batch) if bool(row.get(K.OFF_POLICY)))
        own = responses_of(trainer.collector.last.results)
        return start_shares(own, starts, "collect") | start_shares(injected, starts, "cache")

    def _count_starts(self, played: Mapping[str, Sequence[EpisodeResult]]) -> None:
        self.starts = start_shares(responses_of(played["sampled"]), self.config.record.starts, "eval")

    def _quick_evaluation(self, trainer: BEPATrainer) -> Metrics:
        config = self.config
        self._sync()
        played: list[EpisodeResult] = []
        found = evaluate(
            self.rollout,
            trainer.collector.env.vector,
            [*self.tasks.train, *self.tasks.held_out],
            episodes=config.eval.episodes,
            temperature=1.0,
            seed=config.eval.seed,
            retries=config.collect.retries,
            keep=played.extend,
        )
        return self._summary(found) | start_shares(responses_of(played), config.record.starts, "eval")

    def _report_evaluations(self, trainer: BEPATrainer, collector: AsyncGroupCollector) -> None:
        """Writes the evaluations that workers have completed; at the end of the training, waits for the others."""
        ended = trainer.iteration >= self.config.train.iterations
        for evaluation in collector.remaining_evaluations() if ended else collector.finished_evaluations():
            metrics = self._summary(evaluation.counts) | {
                f"eval/{key}": value for key, value in evaluation.metrics().items()
            }
            self.record.evaluation(evaluation.iteration, trainer.iteration, evaluation.episodes)
            self._line(evaluation.iteration, "eval", {"reported_at": trainer.iteration, **metrics})
            trainer.log(metrics, evaluation.iteration)

    def _restart_workers(self, collector: AsyncGroupCollector) -> None:
        """Restarts the workers if a user has asked for it by creating the file."""
        requested = self.folder / RESTART_WORKERS
        if requested.exists():
            requested.unlink()
            if collector.restart_workers():
                done = "are restarted one after the other"
            else:
                done = "are threads, or in a rollout cluster: not restarted"
            sys.stdout.write(f"{NOTICE}the workers {done}\n")
            sys.stdout.flush()

    def _whole_policy(self) -> Policy:
        """The policy in training, as one that this process can score with alone."""
        return self.policy if self.leader is None else cast("SamplingCopy", self.rollout).whole()

    def _sync(self) -> None:
        """Gives the inference engine, if there is one, the current weights."""
        if isinstance(self.rollout, EngineSampler):
            self.rollout.sync()

    # --- what is written ----------------------------------------------------------------------------------------

    def _line(self, iteration: int, phase: str, metrics: dict[str, Any]) -> None:
        now = perf_counter() - self.started
        self.totals["episodes"] += metrics.get("collect/episodes", 0.0) + metrics.get("reroll/episodes", 0.0)
        self.totals["optimizer_steps"] += metrics.get("train/optimizer_steps", metrics.get("sft/optimizer_steps", 0.0))
        self.totals["seconds"] += now
        self._count_failures()
        if "collect/desktops" not in metrics:  # the rollouts' desktops are not the process's own
            for reason in FailureReason:
                self.totals[f"failed_{reason.value}"] += metrics.get(f"collect/failed_{reason.value}", 0.0)
        self.started = perf_counter()
        totals = {f"total/{name}": value for name, value in self.totals.items()}
        self.record.iteration({"iteration": iteration, "phase": phase, **metrics, **totals})

    def _count_failures(self) -> None:
        """Adds the desktops' failures since the last call to the totals."""
        for reason, count in self.failures.items():
            self.totals[f"failed_{reason.value}"] += count - self._counted[reason]
        self._counted = Counter(self.failures)

    def _totals_so_far(self) -> dict[str, float]:
        last = read_lines(self.folder / "iterations.jsonl")[-1]
        return {name: float(last[f"total/{name}"]) for name in self.totals}

    def _summary(self, evaluation: Evaluation | None) -> dict[str, float]:
        if evaluation is None:
            return {}
        rates = {name: evaluation.success(self.sets[name]) for name in _LIVE if name in self.sets}
        return {f"eval/{name}": rate for name, rate in rates.items() if rate is not None}

    def _finish(self, final: dict[str, Evaluation]) -> None:
        self.totals["seconds"] += perf_counter() - self.started
        results = {
            "algo": self.algo.name,
            "about": self.algo.about,
            "seed": self.config.seed,
            "iterations": self.config.train.iterations if self.algo.rl else 0,
            "settings": final_settings(self.config),
            "totals": self.totals,
            "starts": self.starts,
            "policy_version": self.policy.version,
            "success": {
                mode: {name: evaluation.success(ids) for name, ids in self.sets.items()}
                for mode, evaluation in final.items()
            },
            "counts": {mode: evaluation.to_json() for mode, evaluation in final.items()},
            "tasks": self.tasks.suite.fingerprint((*self.tasks.train, *self.tasks.held_out)),
        }
        shutil.rmtree(self.folder / "policy", ignore_errors=True)  # left from before the run was extended
        if self.leader is None:
            self.policy.save(self.folder / "policy")
        else:
            self.leader.export(self.folder / "policy", dtype=getattr(torch, self.config.policy.dtype))
        write_text(self.folder / "results.json", json.dumps(results, indent=1))
        shutil.rmtree(self.folder / _EVALUATING, ignore_errors=True)


def final_settings(config: Settings) -> dict[str, Any]:
    """The settings that affect a method's results and that a resume may change."""
    iterations = config.train.iterations if method_named(config.algo.name).rl else 0
    return {"iterations": iterations, "final_episodes": config.eval.final_episodes, "eval_seed": config.eval.seed}


def finished(folder: Path, config: Settings) -> bool:
    """Whether ``results.json`` exists for these settings; it may have greedy episodes that they do not ask for."""
    path = folder / "results.json"
    if not path.exists():
        return False
    results = json.loads(path.read_text(encoding="utf-8"))
    greedy = bool(config.eval.final_episodes) and config.eval.greedy
    return results["settings"] == final_settings(config) and (not greedy or "greedy" in results["success"])


def main(arguments: list[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    end_with_launcher()
    interrupt_once()
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m bepa_torchrl.experiment.method_process", description=__doc__)
    parser.add_argument("folder", type=Path, help="the method's folder, with its config.yaml")
    folder: Path = parser.parse_args(arguments).folder
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def train() -> int:
        with locked(folder):
            return MethodRun(folder).run()

    try:
        return guarded(train, folder.name)
    except Exception as error:  # noqa: BLE001  a bug: its last line says that the process was not ended from outside
        traceback.print_exc()
        sys.stderr.write(f"{folder.name}: {type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
