"""A wrong address of a Ray cluster is an error within seconds, before anything is prepared."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from ray_heads import loaded_machine, ray_head

from bepa_torchrl.commands.train import main
from bepa_torchrl.failures import INFRASTRUCTURE, exit_code
from bepa_torchrl.scale.rollouts.ray_address import check_head
from osworld_gym.errors import DesktopError
from osworld_gym.extras import EXTRAS


@pytest.fixture
def port() -> int:
    """A port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_head_that_listens_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_head(address)
        check_head(f"ray://{address}")
        monkeypatch.setenv("RAY_ADDRESS", address)
        check_head("auto")


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "raised",
    [
        Exception("The current node timed out during startup. This could happen because the GCS is overloaded."),
        RuntimeError("Failed to start GCS. Last connection error: none"),
        ConnectionError("ray could not be reached"),
    ],
)
def test_a_cluster_that_does_not_start_here_is_a_failure_of_the_infrastructure(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits 30 s for its processes, which a busy machine may exceed: ``restarts`` is to try again."""
    import ray

    from bepa_torchrl.scale.rollouts.ray_cluster import connect

    def refuse(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(DesktopError, match="Ray has not started on this machine") as failed:
        connect()
    assert exit_code(failed.value) == INFRASTRUCTURE
    assert str(raised) in str(failed.value)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("raised", [RuntimeError("Maybe you called ray.init twice by accident?"), KeyError("x")])
def test_a_bug_is_not_a_cluster_that_does_not_start(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from bepa_torchrl.scale.rollouts.ray_cluster import connect

    def fail(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(type(raised)) as failed:
        connect()
    assert failed.value is raised


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_local_is_a_cluster_of_its_own_although_another_one_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from bepa_torchrl.scale.rollouts.ray_cluster import DESKTOPS
    from bepa_torchrl.scale.rollouts.ray_rollouts import RayRollouts

    def unused() -> Any:
        raise AssertionError("nothing is played")

    for name, value in loaded_machine().items():
        monkeypatch.setenv(name, value)
    with ray_head(range(21000, 21100)) as head:
        monkeypatch.setenv("RAY_ADDRESS", head)  # where ray.init joins by itself
        rollouts = RayRollouts(
            address="local",
            make_policy=unused,
            make_vector=unused,
            workers=None,
            desktops=3,
            replicas=1,
            gpus_per_replica=0.0,
            shrink_after=None,
            max_rows=1,
            answer_seconds=1.0,
        )
        rollouts.join()
        try:
            assert ray.get_runtime_context().gcs_address != head
            (node,) = ray.nodes()
            assert node["Resources"][DESKTOPS] == 3
        finally:
            ray.shutdown()
        check_head(head)  # it runs on


@pytest.mark.ray
def test_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services  # the user of this machine may have a cluster

    monkeypatch.setattr(services, "find_gcs_addresses", lambda: [])
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    for given in (None, "auto"):
        if given is None:
            monkeypatch.delenv("RAY_ADDRESS", raising=False)
        else:
            monkeypatch.setenv("RAY_ADDRESS", given)
        with pytest.raises(DesktopError, match=r"no Ray cluster runs on this machine; start its head with `ray start"):
            check_head("auto")


def test_auto_is_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    check_head("local")
    with pytest.raises(DesktopError, match=f"no Ray cluster at 127.0.0.1:{port} .*; start its head with `ray start"):
        check_head("auto")


def test_no_address_is_bad_input() -> None:
    with pytest.raises(ValueError, match=r"cluster\.address: expected HOST:PORT, .* got 'head', auto or local"):
        check_head("head")


def test_a_run_ends_before_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: int
) -> None:
    monkeypatch.setitem(EXTRAS, "ray", ())
    overrides = ["collect.mode=async", f"cluster.address='127.0.0.1:{port}'", f"runs={tmp_path}"]
    assert main(overrides, prog="bepa train") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no Ray cluster at 127.0.0.1:{port}" in line
    assert list(tmp_path.iterdir()) == []
