"""A method's run on several ranks (``train.ranks``): rank 0 is the method's process, which starts the others.

``python -m bepa_torchrl.experiment.ranks FOLDER`` is one of the others. If torchrun has started the run, the others are
its processes. Each rank has a part of the weights, gradients
and optimiser's state, and computes a part of each step's rows. Rank 0 alone has desktops, cache and record; it samples
with a whole copy of the policy, or an engine, which gets the weights after each step. With ``collect.mode=async`` it
sends the weights to the rollout services instead. Ranks 1, 2, … end with rank 0.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from torchrl.objectives.common import LossModule

from bepa_torchrl.experiment.config import ConfigError, read_settings, with_changes
from bepa_torchrl.experiment.factory import make_policy, rollout_policy
from bepa_torchrl.experiment.loss_and_optimizer import FINE_TUNING, make_method_loss, make_optimizer
from bepa_torchrl.experiment.method_handle import LAUNCHER, end_with_launcher, exit_text
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.failures import guarded
from bepa_torchrl.losses import SFTLoss
from bepa_torchrl.methods import method_named
from bepa_torchrl.policies.allocator import set_allocator
from bepa_torchrl.policies.base import ModelSampler, Policy
from bepa_torchrl.scale.sharding.followers import Followers
from bepa_torchrl.scale.sharding.leader import Leader
from bepa_torchrl.scale.sharding.policy import ShardablePolicy, shard_policy
from bepa_torchrl.scale.sharding.process_group import join_local_ranks
from bepa_torchrl.scale.sharding.rank import FollowingRank
from bepa_torchrl.scale.sharding.sampling_copy import SamplingCopy
from bepa_torchrl.scale.sharding.torchrun import TorchrunFollowers, TorchrunJob, follow_parts, torchrun_job
from bepa_torchrl.training.optimization_step import trainable

#: environment variable with the file of the ranks' rendezvous
_RENDEZVOUS = "BEPA_RANKS_FILE"
#: joins the process group; returns the mesh of all ranks
JoinGroup = Callable[[], DeviceMesh]


@contextmanager
def divided_policy(settings: Settings, folder: Path) -> Iterator[tuple[Policy, Leader]]:
    """The policy in training, divided over several ranks, and their leader, with the other ranks running.

    Args:
        folder: the method's folder, from which the other ranks read the settings.

    Raises:
        RankLostError: another rank does not start.
    """
    job = torchrun_job()
    failed = True
    with _started(settings, folder) if job is None else _led(job, settings, folder) as (followers, join):
        try:
            mesh = join()
            policy = _sharded_policy(settings, mesh)
            yield policy, Leader(policy, mesh, followers, gradient_sync=settings.train.gradient_sync)
            failed = False
        finally:
            followers.close(kill=failed)
            if dist.is_initialized() and not (failed and settings.policy.device != "cpu"):
                dist.destroy_process_group()  # NCCL's would wait for operations that have failed


@contextmanager
def _started(settings: Settings, folder: Path) -> Iterator[tuple[Followers, JoinGroup]]:
    """The other ranks as processes of this one."""
    with tempfile.TemporaryDirectory(prefix="bepa-ranks-") as shared:
        rendezvous = Path(shared) / "store"
        followers = Followers(
            [sys.executable, "-u", "-m", "bepa_torchrl.experiment.ranks", str(folder)],
            settings.train.ranks,
            name=folder.name,
            environment={LAUNCHER: str(os.getpid()), _RENDEZVOUS: str(rendezvous)},
            describe=exit_text,
        )
        yield followers, partial(_join, settings, rendezvous, 0)


@contextmanager
def _led(job: TorchrunJob, settings: Settings, folder: Path) -> Iterator[tuple[TorchrunFollowers, JoinGroup]]:
    """The other ranks as processes of torchrun."""
    timeout = settings.train.rank_timeout
    part = {"folder": str(folder.absolute()), "settings": _digest(folder), "timeout": timeout}
    followers = TorchrunFollowers(job, part, name=folder.name, timeout=timeout)
    yield followers, partial(job.join, followers.part, device=_kind(settings), timeout=timeout)


@contextmanager
def sampling_copy(settings: Settings, leader: Leader, *, folder: Path) -> Iterator[SamplingCopy]:
    """What samples in rank 0's process in a run on several ranks: a whole copy of the policy, or an engine.

    Args:
        folder: folder for the engine's copies of the weights.
    """
    sampler = SamplingCopy(partial(_made_copy, settings, folder), leader.policy, leader.weights)
    try:
        yield sampler
    finally:
        sampler.close()


@contextmanager
def _made_copy(settings: Settings, folder: Path) -> Iterator[tuple[ShardablePolicy, ModelSampler]]:
    """The whole copy, and what samples with its weights, which ends afterwards."""
    copy = make_policy(settings, seed=settings.seed)
    assert isinstance(copy, ShardablePolicy)
    with rollout_policy(settings, copy, folder=folder) as sampler:
        yield copy, sampler


def _join(settings: Settings, rendezvous: Path, rank: int) -> DeviceMesh:
    """Joins the process group. Raises RankLostError if the other ranks do not within ``train.rank_timeout``."""
    kind, train = _kind(settings), settings.train
    join_local_ranks(rendezvous, rank, train.ranks, device=kind, timeout=train.rank_timeout)
    return init_device_mesh(kind, (train.ranks,))


def _sharded_policy(settings: Settings, mesh: DeviceMesh) -> ShardablePolicy:
    """This rank's shards of the policy, in float32; passes are computed in ``policy.dtype``."""
    whole = with_changes(settings, {"policy.dtype": "float32"})
    if mesh.device_type == "cuda":
        whole = with_changes(whole, {"policy.device": f"cuda:{torch.cuda.current_device()}"})
    policy = make_policy(whole, seed=settings.seed)
    assert isinstance(policy, ShardablePolicy)
    trainable(policy, frozen=settings.train.frozen)  # before sharding: a frozen tower is not divided
    half = settings.policy.dtype != "float32"
    shard_policy(policy, mesh, compute_dtype=getattr(torch, settings.policy.dtype) if half else None)
    return policy


def _make_phase(settings: Settings, policy: ShardablePolicy, phase: str) -> tuple[LossModule, Optimizer]:
    """The loss and the optimiser that rank 0 makes for the same phase."""
    if phase == FINE_TUNING:
        return SFTLoss(policy), make_optimizer(settings, policy, lr=settings.sft.lr)
    return make_method_loss(settings, method_named(settings.algo.name), policy), make_optimizer(settings, policy)


def main(arguments: list[str] | None = None) -> int:
    """The entry point of ranks 1, 2, …; returns the exit code."""
    end_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all ranks; rank 0 ends the others
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m bepa_torchrl.experiment.ranks", description=__doc__)
    parser.add_argument("folder", type=Path, help="the method's folder, with its config.yaml")
    folder: Path = parser.parse_args(arguments).folder
    rank, rendezvous = int(os.environ["RANK"]), Path(os.environ[_RENDEZVOUS])
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def follow() -> int:
        settings = read_settings(folder / "config.yaml")
        _follow(settings, partial(_join, settings, rendezvous, rank), sys.stdin)
        return 0

    return guarded(follow, f"{folder.name}: rank {rank}")


def follow_torchrun(job: TorchrunJob) -> int:
    """Ranks 1, 2, … of a run that torchrun has started; returns when rank 0 ends.

    Raises:
        ConfigError: the run's folder is not on a disk that this machine shares with rank 0's.
        RankLostError: rank 0 or torchrun has ended, or another rank has exited or is late.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends the others

    def follow(part: Mapping[str, Any], number: int, lines: Iterator[str]) -> None:
        folder = Path(part["folder"])
        if _digest(folder) != part["settings"]:
            raise ConfigError(
                f"{folder} of rank 0 is not this machine's (rank {job.rank}); set runs= to a folder that all machines "
                "share under the same path: settings and checkpoints are in it"
            )
        settings = read_settings(folder / "config.yaml")
        _follow(settings, partial(job.join, number, device=_kind(settings), timeout=part["timeout"]), lines)

    follow_parts(job, follow)
    return 0


def _follow(settings: Settings, join: JoinGroup, lines: Iterable[str]) -> None:
    """Joins the other ranks, and executes rank 0's commands until they end."""
    set_allocator(settings.policy.device)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    mesh = join()
    policy = _sharded_policy(settings, mesh)
    make_phase = partial(_make_phase, settings, policy)
    rank = FollowingRank(
        policy,
        mesh,
        make_phase,
        clip_norm=settings.optimizer.clip_norm,
        gradient_sync=settings.train.gradient_sync,
    )
    rank.follow(lines)
    dist.destroy_process_group()


def _kind(settings: Settings) -> str:
    return torch.device(settings.policy.device).type


def _digest(folder: Path) -> str | None:
    """sha256 of a method's settings; None: they are not there."""
    try:
        return hashlib.sha256((folder / "config.yaml").read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
