"""Ray gives away no GPU that the trainer's ranks have; the GPUs are pretended, by ``num_gpus``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import ray
from ray_heads import loaded_machine

from bepa_torchrl.scale.rollouts import ray_cluster, ray_gpus
from bepa_torchrl.scale.rollouts.ray_gpus import check_node, other_gpus
from osworld_gym.errors import DesktopError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
EVERY = ("4", "5", "6", "7")


@contextmanager
def cluster(monkeypatch: pytest.MonkeyPatch, taken: tuple[str, ...]) -> Iterator[None]:
    """A cluster of this process, which was started with the GPUs that are not taken."""
    for name, value in loaded_machine().items():
        monkeypatch.setenv(name, value)
    with other_gpus(taken, EVERY) as options:
        ray_cluster.connect(num_cpus=2, object_store_memory=100 << 20, log_to_driver=False, **options)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.parametrize("before", [None, "4,5,6,7"])
def test_a_cluster_of_the_run_has_the_gpus_that_the_ranks_have_not(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)

    @ray.remote(num_cpus=0, num_gpus=2)
    def seen() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    with cluster(monkeypatch, ("4", "5")):
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
        assert sorted(ray.get(seen.remote(), timeout=300).split(",")) == ["6", "7"]
        check_node(("4", "5"))
        with pytest.raises(
            ValueError, match=r"gives away the GPUs 6, which train\.ranks has; start Ray on this machin"
        ):
            check_node(("5", "6"))
        held = seen.options(num_gpus=1).remote
        monkeypatch.setattr(ray_gpus, "_ANSWER_SECONDS", 1.0)

        @ray.remote(num_cpus=0, num_gpus=1)
        class Holder:
            def ready(self) -> bool:
                return True

        holder = Holder.remote()
        assert ray.get(holder.ready.remote(), timeout=300)
        assert ray.get(held(), timeout=300) in ("6", "7")
        with pytest.raises(DesktopError, match="gives 2 GPUs away, and did not say in 1 s which, since others hold"):
            check_node(("4", "5"))


def test_a_node_without_gpus_gives_none_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with cluster(monkeypatch, EVERY):
        check_node(EVERY)
    with other_gpus((), ()) as options:
        assert options == {}
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
