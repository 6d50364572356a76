"""``cluster.trainer=ray``: ``bepa train`` places the trainer's ranks in a Ray cluster, and is none of them.

The ranks run ``python -m bepa_torchrl train`` with the same settings, in the environment that torchrun would give them;
rank 0 is the run, with preparation, desktops and record. This process needs no GPU. It passes their output on, ends all
of them with the first one that is lost, and places them again while ``restarts`` allows it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray

from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.method_handle import LAUNCHER, exit_text
from bepa_torchrl.experiment.restarts import Restarts
from bepa_torchrl.experiment.run_folder import run_folder, runs_folder
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import RAY_CLUSTER
from bepa_torchrl.failures import INFRASTRUCTURE
from bepa_torchrl.scale.rollouts.ray_address import LOCAL
from bepa_torchrl.scale.rollouts.ray_cluster import DESKTOPS, connect
from bepa_torchrl.scale.sharding.placement.bundles import Needs
from bepa_torchrl.scale.sharding.placement.ray_ranks import RayRanks, placed_ranks

_FIX = (
    "lower train.ranks, cluster.cpus_per_rank or cluster.replicas, or add nodes (cluster.place_timeout waits for them)"
)


@dataclass(frozen=True)
class _Command:
    """What the ranks run.

    Args:
        settings: of the run.
        overrides: the command line, with the run's name.
        config_dir: a user's folder with further settings.
    """

    settings: Settings
    overrides: tuple[str, ...]
    config_dir: Path | None

    def arguments(self) -> list[str]:
        """Of Python."""
        folder = [] if self.config_dir is None else ["--config-dir", str(self.config_dir.absolute())]
        return ["-u", "-m", "bepa_torchrl", "train", *folder, *self.overrides]


def needs_of(settings: Settings) -> Needs:
    """What ranks and rollout services ask of the cluster."""
    cluster = settings.cluster
    services = cluster.replicas if settings.collect.mode == "async" and cluster.listen is None else 0
    return Needs(
        ranks=settings.train.ranks,
        cpus_per_rank=cluster.cpus_per_rank,
        gpus_per_rank=0 if settings.policy.device == "cpu" else 1,
        services=services,
        gpus_per_service=cluster.gpus_per_replica if services else 0.0,
    )


def train_on_ray(settings: Settings, overrides: Sequence[str], *, config_dir: Path | None) -> int:
    """Runs the experiment on ranks that Ray places; returns its exit code.

    Args:
        settings: of the run (:func:`bepa_torchrl.experiment.launcher.effective_settings`).
        overrides: the command line.
        config_dir: a user's folder with further settings.

    Raises:
        ConfigError: a node does not see the run's folder. PlacementError: the cluster has no room, or a rank does not
            start. DesktopError: no cluster.
    """
    named = [] if settings.name else [f"name={run_folder(settings).name}"]  # one name for all attempts
    command = _Command(settings, (*overrides, *named), config_dir)
    with _connected(settings):
        restarts = Restarts(settings.restarts, _say)
        return restarts.run(lambda: _attempt(command, restarts.used), failed=lambda code: code == INFRASTRUCTURE)


def _attempt(command: _Command, attempt: int) -> int:
    settings = command.settings
    with placed_ranks(
        needs_of(settings),
        launcher=LAUNCHER,
        describe=exit_text,
        on_line=_pass_on,
        seconds=settings.cluster.place_timeout,
        fix=_FIX,
    ) as ranks:
        _check_folder(settings, ranks)
        _say(f"placed {len(ranks)} trainer ranks: {_hosts(ranks)}")
        environment = {
            RAY_CLUSTER: ray.get_runtime_context().gcs_address,
            "OMP_NUM_THREADS": str(settings.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "COLUMNS": str(shutil.get_terminal_size().columns),
        }
        ranks.start(command.arguments(), environment, str(Path.cwd()), attempt=attempt)
        try:
            outcome = ranks.follow()
        except KeyboardInterrupt:
            ranks.interrupt()
            raise
    if outcome.lost is not None:
        sys.stderr.write(f"bepa train: {outcome.lost}\n")
    return outcome.code


def _hosts(ranks: RayRanks) -> str:
    """The nodes of the ranks, in order."""
    counts: dict[str, int] = {}
    for rank in range(len(ranks)):
        counts[ranks.host(rank)] = counts.get(ranks.host(rank), 0) + 1
    return ", ".join(f"{count} on {host}" for host, count in counts.items())


def _check_folder(settings: Settings, ranks: RayRanks) -> None:
    """Raises ConfigError if a rank's node does not see the folder of the runs, or the current one."""
    runs = runs_folder(settings).absolute()
    while not runs.exists():
        runs = runs.parent
    with tempfile.NamedTemporaryFile("w", prefix=".bepa-", dir=runs, encoding="utf-8") as marker:
        text = Path(marker.name).name
        marker.write(text)
        marker.flush()
        os.fsync(marker.fileno())
        unseen = ranks.unseen(marker.name, text, str(Path.cwd()))
    if unseen is not None:
        rank, host, path = unseen
        raise ConfigError(
            f"rank {rank}'s node {host} does not see this machine's folder {path}; start bepa train in, and set runs= "
            "to, a folder that all machines share under the same path: settings and checkpoints are in it"
        )


@contextmanager
def _connected(settings: Settings) -> Iterator[None]:
    """A connection to the cluster, and an ordinary exit at SIGTERM."""
    address = settings.cluster.address
    assert address is not None
    if address == LOCAL:
        connect(log_to_driver=False, resources={DESKTOPS: settings.env.desktops})
    else:
        connect(address, log_to_driver=False)
    with ExitStack() as stack:
        stack.callback(ray.shutdown)
        before = signal.signal(signal.SIGTERM, _end)  # Ray has set its own
        stack.callback(signal.signal, signal.SIGTERM, before)
        yield


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what follows ends the ranks
    sys.exit(128 + signal.SIGTERM)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _pass_on(rank: int, name: str, line: str) -> None:
    """A line of a rank: rank 0's as it is, others' with their rank, on standard error."""
    stream = sys.stdout if name == "out" and rank == 0 else sys.stderr
    stream.write(f"{line}\n" if rank == 0 else f"rank {rank}: {line}\n")
    stream.flush()
