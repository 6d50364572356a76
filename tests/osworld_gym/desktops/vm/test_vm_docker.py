"""The vm provider on a real engine, with a small substitute for the official machine (standin_server.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker_containers import of

from osworld_gym.desktops.checks import run_checks
from osworld_gym.desktops.vm.desktop import PORTS, SERVER, VmDesktop
from osworld_gym.errors import DesktopError, FailureReason

pytest_plugins = ("docker_engine",)
pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]
Make = Callable[..., VmDesktop]
OWN_CODE = """
import sys, time
from osworld_gym.desktops.vm.desktop import VmDesktop
desktop = VmDesktop(disk=sys.argv[1], image=sys.argv[2], kvm="off", ready=60.0)
desktop.reset(0)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def make(standin: str, tmp_path: Path) -> Make:
    """Creates a machine whose disk takes a given time to boot, or is broken."""

    def made(disk: str = "0", **options: Any) -> VmDesktop:
        path = tmp_path / f"disk-{disk}.qcow2"
        path.write_text(disk)
        return VmDesktop(**({"disk": str(path), "image": standin, "kvm": "off", "ready": 60.0} | options))

    return made


def test_the_contract_holds(make: Make) -> None:
    results = run_checks(make)
    assert [f"{r.name}: {r.detail}" for r in results if r.outcome != "passed"] == []


def test_settings_reach_the_image_and_ports_are_on_this_machine_alone(make: Make, client: Any) -> None:
    with make(ram="2G", cores=1, disk_size="40G") as desktop:
        desktop.reset(0)
        (found,) = of(client, os.getpid())
        said = client.api.logs(found).decode().splitlines()[0]
        assert json.loads(said) == {"RAM_SIZE": "2G", "CPU_CORES": "1", "DISK_SIZE": "40G", "KVM": "N"}
        detail = client.api.inspect_container(found)
        assert detail["HostConfig"]["Memory"] == 3 << 30
        assert detail["HostConfig"]["Devices"] in (None, [])
        assert detail["HostConfig"]["CapAdd"] == ["NET_ADMIN"]
        assert [(m["Destination"], m["RW"]) for m in detail["Mounts"]] == [("/System.qcow2", False)]
        bound = detail["NetworkSettings"]["Ports"]
        assert {entry["HostIp"] for port in PORTS for entry in bound[f"{port}/tcp"]} == {"127.0.0.1"}
        assert desktop.forwarded(9222) == ("127.0.0.1", int(bound["9222/tcp"][0]["HostPort"]))
        assert desktop.server == (f"http://127.0.0.1:{bound[f'{SERVER}/tcp'][0]['HostPort']}", "")
    assert desktop.server is None


def test_kvm_on_gives_the_device(make: Make, client: Any) -> None:
    with make(kvm="on") as desktop:
        desktop.reset(0)
        (found,) = of(client, os.getpid())
        detail = client.api.inspect_container(found)
        assert [device["PathOnHost"] for device in detail["HostConfig"]["Devices"]] == ["/dev/kvm"]
        assert json.loads(client.api.logs(found).decode().splitlines()[0])["KVM"] is None


def test_it_is_ready_when_the_machine_answers_not_later(make: Make) -> None:
    with make("4") as desktop:
        start = time.monotonic()
        desktop.reset(0)
        assert 4 < time.monotonic() - start < 30
        assert desktop.screenshot().size == (1920, 1080)


def test_a_machine_that_does_not_boot_is_never_ready(make: Make) -> None:
    with make("600", ready=3.0) as desktop, pytest.raises(DesktopError, match="within 3 s") as caught:
        desktop.reset(0)
    assert caught.value.reason is FailureReason.never_ready


def test_a_container_that_ends_is_noticed_long_before_the_deadline(make: Make) -> None:
    start = time.monotonic()
    with make("broken", ready=300.0) as desktop, pytest.raises(DesktopError, match="the disk does not boot"):
        desktop.reset(0)
    assert time.monotonic() - start < 60


def test_a_machine_with_another_screen_size_is_refused_by_name(make: Make) -> None:
    with make(width=1280, height=720, ready=8.0) as desktop, pytest.raises(DesktopError, match=r"1920, 1080"):
        desktop.reset(0)


def test_a_killed_machine_is_died_and_the_next_reset_works(make: Make, client: Any) -> None:
    with make() as desktop:
        desktop.reset(0)
        (found,) = of(client, os.getpid())
        client.api.kill(found)
        with pytest.raises(DesktopError) as caught:
            desktop.screenshot()
        assert caught.value.reason in (FailureReason.died, FailureReason.bad_screenshot)
        desktop.reset(1)
        assert desktop.screenshot().size == (1920, 1080)


def test_what_a_killed_owner_left_goes_when_the_next_process_begins(standin: str, tmp_path: Path, client: Any) -> None:
    disk = tmp_path / "disk.qcow2"
    disk.write_text("0")
    command = [sys.executable, "-c", OWN_CODE, str(disk), standin]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        owner.kill()
    assert len(of(client, owner.pid)) == 1
    begin = (
        "from osworld_gym.desktops.vm.desktop import VmDesktop; "
        f"VmDesktop(disk={str(disk)!r}, image={standin!r}, kvm='off')"
    )
    subprocess.run([sys.executable, "-c", begin], check=True, timeout=120)
    assert of(client, owner.pid) == []
