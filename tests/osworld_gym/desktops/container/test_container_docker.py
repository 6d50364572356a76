"""The container provider on a real engine: contract, limits, isolation, cleanup."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_containers import of

from osworld_gym.desktops.checks import run_checks
from osworld_gym.desktops.container import build as container_build
from osworld_gym.desktops.container.desktop import ContainerDesktop
from osworld_gym.desktops.container.engine import OWNER, STARTED, engine, owned, reap
from osworld_gym.desktops.container.image import tag
from osworld_gym.desktops.container.owner import Owner
from osworld_gym.desktops.pool import WarmPool
from osworld_gym.errors import DesktopError, FailureReason

pytest_plugins = ("docker_engine",)
pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

OWN_CODE = """
import sys, time
from osworld_gym.desktops.container.desktop import ContainerDesktop
from osworld_gym.desktops.container.engine import labels
desktop = ContainerDesktop(image=sys.argv[1])
desktop.reset(0)
print("ready", flush=True)
if sys.argv[2] == "orphan":
    # a container that its owner's stdin does not hold: the reaper's case
    container = desktop._engine.containers.run(sys.argv[1], ["serve"], detach=True, labels=labels("container"))
    print(container.id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def desktop(image: str) -> Iterator[ContainerDesktop]:
    with ContainerDesktop(image=image) as made:
        yield made


def test_the_contract_holds(image: str) -> None:
    results = run_checks(lambda: ContainerDesktop(image=image))
    assert [f"{r.name}: {r.detail}" for r in results if r.outcome != "passed"] == []


def test_it_has_no_network_no_privileges_and_a_read_only_root(desktop: ContainerDesktop) -> None:
    desktop.reset(0)
    routes = desktop.run("cat /proc/net/route | wc -l; ls /sys/class/net", shell=True).output.split()
    assert routes == ["1", "lo"]
    status = desktop.run("grep -E 'CapEff|NoNewPrivs' /proc/self/status", shell=True).output.split()
    assert status == ["NoNewPrivs:", "1", "CapEff:", "0" * 16] or status == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert desktop.run("id -u; id -un; hostname; echo $HOME", shell=True).output.split() == [
        "1000",
        "user",
        "user-virtual-machine",
        "/home/user",
    ]
    for path in ("/etc/x", "/usr/x", "/opt/osworld_guest/x", "/x", "/var/x"):
        assert desktop.run(["touch", path]).returncode != 0, path


def test_the_host_cannot_be_reached(desktop: ContainerDesktop) -> None:
    """The container can reach neither the host's loopback nor its network addresses."""
    desktop.reset(0)
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing; only selects the local address
            own = probe.getsockname()[0]
        for host in ("127.0.0.1", own, "172.17.0.1", "host.docker.internal"):
            got = desktop.run(["timeout", "5", "bash", "-c", f"echo > /dev/tcp/{host}/{port}"])
            assert got.returncode != 0, host
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_full_disk_and_a_fork_bomb_stay_inside(image: str) -> None:
    with ContainerDesktop(image=image, disk="32m", shm="32m", pids=200, memory="1g") as desktop:
        desktop.reset(0)
        for folder in ("/tmp", "/home/user", "/dev/shm"):
            # by exit status: a full /tmp has no space for a command's output either
            fill = f"! head -c 600M /dev/zero > {folder}/big && test $(stat -c %s {folder}/big) -le 33554432"
            got = desktop.run(fill, shell=True)
            assert got.returncode == 0, folder
            desktop.run(["rm", f"{folder}/big"])
        got = desktop.run("for i in $(seq 400); do sleep 60 & done; echo made", shell=True)
        assert "made" not in got.output
        assert "Resource temporarily unavailable" in got.error or "Cannot fork" in got.error
        desktop.reset(1)
        assert desktop.screenshot().size == (1280, 720)


def test_too_much_memory_ends_the_eater_not_the_host(image: str) -> None:
    with ContainerDesktop(image=image, memory="600m") as desktop:
        desktop.reset(0)
        eaten = "raised"
        with contextlib.suppress(DesktopError):
            eaten = str(desktop.run(["python3", "-c", "x = bytearray(2 << 30)"], timeout=60).returncode)
        assert eaten != "0"
        desktop.reset(1)
        assert desktop.run(["true"]).returncode == 0


def test_ports_of_the_inside_are_reached_and_no_other(desktop: ContainerDesktop) -> None:
    desktop.reset(0)
    desktop.write_file("/tmp/web/page.txt", b"from within")
    desktop.launch(["python3", "-m", "http.server", "9222", "--directory", "/tmp/web"], shell=False, window=False)
    address = desktop.forwarded(9222)
    assert address is not None
    assert _get(address, "/page.txt") == b"from within"
    assert desktop.forwarded(22) is None
    url, token = desktop.server or ("", "")
    host, port = url.removeprefix("http://").split(":")
    assert _status((host, int(port)), "") == 401
    assert _status((host, int(port)), token) == 200
    # programs inside reach the server on OSWorld's port
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:5000/platform').read().decode())"
    assert desktop.run(["python3", "-c", script]).output.strip() == "Linux"


def test_a_port_that_nobody_serves_closes_the_connection(desktop: ContainerDesktop) -> None:
    desktop.reset(0)
    address = desktop.forwarded(8080)
    assert address is not None
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert desktop.run(["true"]).returncode == 0


def test_the_health_check_reports_healthy(desktop: ContainerDesktop, client: Any) -> None:
    desktop.reset(0)
    assert desktop._container is not None
    started = time.time() - 5
    for event in client.events(since=int(started), until=int(started) + 90, decode=True):
        if event.get("id") == desktop._container.ident and str(event.get("status", "")).startswith("health_status"):
            assert event["status"] == "health_status: healthy"
            return
    pytest.fail("no health status within 90 s")


def test_labels_say_who_and_when(desktop: ContainerDesktop, client: Any) -> None:
    desktop.reset(0)
    (found,) = owned(client, Owner.this())
    assert found["Labels"][OWNER] == str(Owner.this())
    assert found["Labels"][STARTED].startswith("20")
    config = client.api.inspect_container(found["Id"])["HostConfig"]
    assert config["NetworkMode"] == "none"
    assert (config["Memory"], config["PidsLimit"], config["CapDrop"]) == (4 << 30, 2048, ["ALL"])
    assert config["PortBindings"] in (None, {})


def test_a_prepared_desktop_takes_any_seed(desktop: ContainerDesktop) -> None:
    desktop.reset(3)
    plain = desktop.screenshot().pixels.copy()
    desktop.prepare()
    before = desktop._container
    desktop.reset(3)
    assert desktop._container is before
    assert (desktop.screenshot().pixels == plain).all()


def test_home_begins_as_the_images_template(
    client: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, settings = f"{image}-test-template", tmp_path / "home" / ".config" / "app" / "settings"
    settings.parent.mkdir(parents=True, mode=0o700)
    settings.write_text("of the template")
    settings.chmod(0o600)
    monkeypatch.setattr(container_build, "host_template", lambda _variant: tmp_path / "home")
    monkeypatch.setattr(container_build, "tag", lambda _variant: name)
    try:
        container_build.build(client, "basic", None, None, lambda _line: None)
        with ContainerDesktop(image=name) as desktop:
            for seed in range(2):
                desktop.reset(seed)
                assert desktop.read_file("/home/user/.config/app/settings") == b"of the template"
                desktop.write_file("/home/user/.config/app/settings", b"changed")
    finally:
        client.api.remove_image(name)


def test_resets_and_closing_give_back_descriptors_and_threads(image: str) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with ContainerDesktop(image=image) as desktop:
        for seed in range(5):
            desktop.reset(seed)
            desktop.screenshot()
    end = time.monotonic() + 10
    while threading.active_count() > before[1] and time.monotonic() < end:
        time.sleep(0.05)  # threads exit once their sockets are closed
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) <= before


def test_the_warm_pool_hands_containers_out(image: str, client: Any) -> None:
    pool = WarmPool(lambda: ContainerDesktop(image=image), ahead=2)
    try:
        desktop = pool.desktop()
        for seed in range(4):
            desktop.reset(seed)
            with pytest.raises(FileNotFoundError):
                desktop.read_file("/tmp/used")
            desktop.write_file("/tmp/used", b"yes")
            assert desktop.screenshot().size == (1280, 720)
        desktop.close()
    finally:
        pool.close()
    assert of(client, os.getpid()) == []


def test_a_killed_container_is_died_and_the_next_reset_works(desktop: ContainerDesktop, client: Any) -> None:
    desktop.reset(0)
    assert desktop._container is not None
    client.api.kill(desktop._container.ident)
    with pytest.raises(DesktopError) as caught:
        desktop.screenshot()
    assert caught.value.reason is FailureReason.died
    desktop.reset(1)
    assert desktop.screenshot().size == (1280, 720)


def test_a_frozen_container_is_hung_and_ends(desktop: ContainerDesktop, client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("osworld_gym.desktops.guest_server.desktop.ANSWER", 1.0)
    desktop.reset(0)
    assert desktop._container is not None
    client.api.pause(desktop._container.ident)
    with pytest.raises(DesktopError) as caught:
        desktop.screenshot()
    assert caught.value.reason is FailureReason.hung
    desktop.reset(1)
    assert desktop.screenshot().size == (1280, 720)


@pytest.mark.usefixtures("client")
def test_an_image_that_is_not_there_names_its_fix() -> None:
    with pytest.raises(DesktopError, match="fix: osworld-gym build-image"):
        ContainerDesktop(image="osworld-gym/desktop:none")


def test_an_image_of_another_guest_is_refused(client: Any, image: str) -> None:
    name = "osworld-gym/desktop:test-other"
    made = client.api.create_container(image, labels={})
    client.api.commit(made["Id"], *name.split(":"), changes=["LABEL osworld-gym.content=other"])
    client.api.remove_container(made["Id"])
    try:
        with pytest.raises(DesktopError, match="contains guest other"):
            ContainerDesktop(image=name)
    finally:
        client.api.remove_image(name)


def test_a_killed_owner_leaves_nothing(client: Any, image: str) -> None:
    """The engine closes the container's stdin, which ends it, and removes it."""
    owner = _owner(image, "held")
    (held,) = of(client, owner.pid)
    _kill(owner)
    _await_removal(client, held)


def test_the_reaper_removes_what_a_killed_owner_left_and_spares_the_living(client: Any, image: str) -> None:
    owner, living = _owner(image, "orphan"), _owner(image, "held")
    assert owner.stdout is not None
    orphan = owner.stdout.readline().strip()
    _kill(owner)
    assert orphan in of(client, owner.pid)
    assert reap(client) >= 1
    assert of(client, owner.pid) == []
    (held,) = of(client, living.pid)
    _kill(living)
    _await_removal(client, held)


def test_a_foreign_container_is_never_touched(client: Any, image: str) -> None:
    made = client.api.create_container(image, labels={"somebody": "else"})
    try:
        reap(client)
        assert client.api.inspect_container(made["Id"])["Id"] == made["Id"]
    finally:
        client.api.remove_container(made["Id"])


def test_a_second_engine_client_sees_the_image(image: str) -> None:
    assert image == tag("basic")
    with contextlib.closing(engine()) as second:
        assert second.images.get(image).attrs["Config"]["User"] == "1000:1000"


def _owner(image: str, kind: str) -> subprocess.Popen[str]:
    """Another process with a running desktop."""
    command = [sys.executable, "-c", OWN_CODE, image, kind]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    return owner


def _kill(owner: subprocess.Popen[str]) -> None:
    with owner:  # closes the pipe
        owner.kill()


def _await_removal(client: Any, ident: str) -> None:
    import docker

    try:
        client.api.wait(ident, timeout=30, condition="removed")
    except docker.errors.NotFound:
        return


def _get(address: tuple[str, int], path: str) -> bytes:
    """The reply's body; repeats the request until the server inside is ready."""
    end = time.monotonic() + 20
    while True:
        connection = http.client.HTTPConnection(*address, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        finally:
            connection.close()


def _status(address: tuple[str, int], token: str) -> int:
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=10)) as connection:
        connection.request("GET", "/health", headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        if answer.status == 200:
            assert json.loads(answer.read())["status"] == "ok"
        return answer.status
