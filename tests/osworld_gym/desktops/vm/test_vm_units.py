"""The vm provider without an engine: container options, the disk, and the KVM probe on this machine's kernel."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from remote_servers import MemoryServer

from osworld_gym.desktops.guest_server.official_desktop import OfficialDesktop
from osworld_gym.desktops.pool import WarmPool
from osworld_gym.desktops.vm import kvm_probe as vm_kvm
from osworld_gym.desktops.vm.desktop import (
    DISK,
    DISK_SOURCE,
    VmDesktop,
    find_disk,
    host_options,
    machine_environment,
    memory_bytes,
)
from osworld_gym.desktops.vm.kvm_probe import kvm_problem
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import SERVER


def test_environment_of_the_image() -> None:
    assert machine_environment("4G", 4, "32G", True) == {"RAM_SIZE": "4G", "CPU_CORES": "4", "DISK_SIZE": "32G"}
    assert machine_environment("8G", 2, "64G", False)["KVM"] == "N"


def test_options_of_the_container() -> None:
    told = host_options("/disks/a.qcow2", "4G", "bridge", True)
    assert told["binds"] == {"/disks/a.qcow2": {"bind": "/System.qcow2", "mode": "ro"}}
    assert told["port_bindings"] == dict.fromkeys((5000, 9222, 8006, 8080), ("127.0.0.1",))
    assert (told["devices"], told["cap_add"]) == (["/dev/kvm"], ["NET_ADMIN"])
    assert told["mem_limit"] == 5 << 30
    assert host_options("/a", "512M", "internal", False)["devices"] == []
    assert host_options("/a", "512M", "internal", False)["network_mode"] == "internal"


@pytest.mark.parametrize("text", ["", "4", "G", "4T", "four G", "-1G"])
def test_memory_requires_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match="ram: expected"):
        memory_bytes(text)


def test_the_disk_is_the_option_or_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "Ubuntu.qcow2"
    monkeypatch.delenv(DISK, raising=False)
    with pytest.raises(DesktopError, match=DISK_SOURCE):
        find_disk(None)
    with pytest.raises(DesktopError, match="no disk file"):
        find_disk(str(disk))
    disk.write_bytes(b"QFI\xfb")
    assert find_disk(str(disk)) == str(disk)
    monkeypatch.setenv(DISK, str(disk))
    assert find_disk(None) == str(disk)


class Machines(VmDesktop):
    """Machines without an engine: each one is a server in memory, and booting is counted."""

    def __init__(self) -> None:
        OfficialDesktop.__init__(self, 320, 240)
        self._engine: Any = SimpleNamespace(close=lambda: None)
        self._ident, self._ready, self._prepared = "", 5.0, False
        self.servers: list[MemoryServer] = []

    def _start(self) -> None:
        self.servers.append(MemoryServer(ours=False))
        self._ports = {SERVER: self.servers[-1].server_port}


def test_a_machine_is_booted_ahead_and_once() -> None:
    desktop = Machines()
    desktop.prepare()
    desktop.reset(3)
    assert len(desktop.servers) == 1
    assert desktop.screenshot().size == (320, 240)
    desktop.reset(4)
    assert len(desktop.servers) == 2  # a used machine is never used again
    desktop.prepare()
    desktop.servers[-1].stop()  # it ends while it waits in the pool
    desktop.reset(5)
    assert len(desktop.servers) == 4
    desktop.prepare()
    desktop.close()
    desktop.reset(6)
    assert len(desktop.servers) == 6
    desktop.close()
    for server in desktop.servers:
        server.stop()


def test_a_machine_that_is_booting_ahead_ends_with_the_pool() -> None:
    class Booting(Machines):
        def _await_boot(self) -> None:
            started.set()
            ended.wait(60)
            raise DesktopError(FailureReason.never_ready, "the container is gone")

        def close(self) -> None:
            super().close()
            if started.is_set():
                ended.set()

    started, ended = threading.Event(), threading.Event()
    pool = WarmPool(Booting, 1)
    assert started.wait(60)
    pool.close()
    assert ended.is_set()  # not only once it has booted, after minutes
    assert sum(pool.failures.values()) == 0


def test_kvm_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="auto, on or off, got 'yes'"):
        VmDesktop(kvm="yes")


def test_no_engine_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(DesktopError) as caught:
        VmDesktop()
    assert caught.value.reason is FailureReason.never_ready


def test_a_device_that_is_not_kvm_is_no_kvm(tmp_path: Path) -> None:
    assert "fix" in kvm_problem(str(tmp_path / "kvm"))
    assert "does not run a guest" in kvm_problem(os.devnull)


def test_kvm_is_judged_by_running_a_guest_within_the_deadline() -> None:
    """On any machine, the probe returns in time with a reason or with success."""
    start = time.monotonic()
    problem = kvm_problem(deadline=2.0)
    assert time.monotonic() - start < 10
    if not problem:
        vm_kvm.run_guest(vm_kvm.DEVICE)
    elif os.access(vm_kvm.DEVICE, os.R_OK | os.W_OK):
        assert "is there, but" in problem
    else:
        assert "fix" in problem
