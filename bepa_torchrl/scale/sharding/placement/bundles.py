"""What ranks ask a Ray cluster for, which rank is where, and the environment of each. Imports neither Ray nor torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CPU, GPU = "CPU", "GPU"  #: Ray's names
DEVICES = "CUDA_VISIBLE_DEVICES"
INTERFACE = "GLOO_SOCKET_IFNAME"  #: gloo's, without which it takes the one that the host's name resolves to
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run asks of a cluster.

    Args:
        ranks: number of ranks.
        cpus_per_rank: Ray's CPUs of each, above 0.
        gpus_per_rank: Ray's GPUs of each: 1, or 0 on the CPU.
        services: rollout services that the run starts in the same cluster.
        gpus_per_service: Ray's GPUs of each.
    """

    ranks: int
    cpus_per_rank: float
    gpus_per_rank: int
    services: int = 0
    gpus_per_service: float = 0.0

    def bundles(self) -> list[dict[str, float]]:
        """One bundle of the placement group per rank."""
        gpus = {GPU: float(self.gpus_per_rank)} if self.gpus_per_rank else {}
        return [{CPU: self.cpus_per_rank, **gpus} for _ in range(self.ranks)]

    def total(self) -> dict[str, float]:
        """What ranks and services need together, by resource; services use no CPUs of Ray's."""
        gpus = self.ranks * self.gpus_per_rank + self.services * self.gpus_per_service
        return {CPU: self.ranks * self.cpus_per_rank, **({GPU: gpus} if gpus else {})}

    def lacking(self, resources: Mapping[str, float]) -> bool:
        """Whether a cluster with these resources, free or not, has too little for ranks and services."""
        return any(resources.get(name, 0.0) < count for name, count in self.total().items())

    def __str__(self) -> str:
        gpus = f"{self.gpus_per_rank:g} GPU and " if self.gpus_per_rank else ""
        ranks = f"{self.ranks} trainer rank{'s' * (self.ranks > 1)} with {gpus}{self.cpus_per_rank:g} CPU each"
        if not self.services or not self.gpus_per_service:
            return ranks
        services = f"{self.services} rollout service{'s' * (self.services > 1)}"
        return f"{ranks}, and {services} with {self.gpus_per_service:g} GPU each"


def no_room(
    needs: Needs, total: Mapping[str, float], free: Mapping[str, float], nodes: int, *, seconds: float, fix: str
) -> str:
    """One line: what was asked for, what the cluster has, how to fix it.

    Args:
        needs: what was asked for.
        total: the cluster's resources.
        free: those that nobody holds.
        nodes: the cluster's nodes.
        seconds: how long the run has waited.
        fix: what the user may do.
    """
    names = list(needs.total())
    held = "" if needs.lacking(total) else f" (free: {_amounts(free, names)})"
    return (
        f"the Ray cluster had no room within {seconds:g} s for {needs}: together {_amounts(needs.total(), names)}; it "
        f"has {_amounts(total, names)} on {nodes} node{'s' * (nodes != 1)}{held}; {fix}"
    )


def _amounts(resources: Mapping[str, float], names: Sequence[str]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in names)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is.

    Args:
        rank: the rank.
        bundle: its bundle in the placement group.
        node: id of the bundle's node.
        local_rank: among the ranks of its node.
        local_ranks: ranks of its node.
    """

    rank: int
    bundle: int
    node: str
    local_rank: int
    local_ranks: int


def places(nodes: Sequence[str], first: str) -> list[Place]:
    """Numbers the ranks node by node, as torchrun does.

    Args:
        nodes: of each bundle, the id of its node.
        first: the node of rank 0, if it has a bundle; otherwise that of the first bundle is.
    """
    order = sorted(dict.fromkeys(nodes), key=lambda node: node != first)
    found: list[Place] = []
    for node in order:
        bundles = [number for number, of in enumerate(nodes) if of == node]
        for local, bundle in enumerate(bundles):
            found.append(Place(len(found), bundle, node, local, len(bundles)))
    return found


def rank_environment(
    place: Place,
    places: Sequence[Place],
    *,
    address: str,
    port: int,
    attempt: int,
    gpus: Mapping[int, Sequence[str]],
    interface: str | None,
) -> dict[str, str]:
    """What torchrun would set for a rank.

    Each rank sees the GPUs of all ranks of its node, of which LOCAL_RANK is the number of its own.

    Args:
        place: the rank's.
        places: those of all ranks.
        address: of rank 0's node.
        port: of the store there.
        attempt: how many times the ranks have been placed before.
        gpus: rank → the GPUs that Ray has given it, as in CUDA_VISIBLE_DEVICES.
        interface: the network interface by which the other nodes reach this one; not used on a single node.
    """
    here = [other for other in places if other.node == place.node]
    devices = [gpu for other in sorted(here, key=lambda other: other.local_rank) for gpu in gpus[other.rank]]
    return {
        "TORCHELASTIC_RUN_ID": "bepa-ray",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(len(places)),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        **({DEVICES: ",".join(devices)} if devices else {}),
        **({INTERFACE: interface} if interface is not None and len(here) < len(places) else {}),
    }


def store_address(places: Sequence[Place], address: str) -> str:
    """Where the store listens: on rank 0's address, or on the loopback interface if all ranks are on one node."""
    return LOOPBACK if len({place.node for place in places}) == 1 else address


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and what is given; an interface that the node's ``ray start`` had is kept."""
    kept = {INTERFACE} & os.environ.keys()
    return {**os.environ, **{name: value for name, value in given.items() if name not in kept}}
