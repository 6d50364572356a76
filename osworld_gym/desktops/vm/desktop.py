"""Provider ``vm``: OSWorld's official virtual machine, in its official Docker image (with QEMU inside).

Each reset starts a new container, in which the machine boots from its disk, mounted read-only. The engine assigns the
ports, on 127.0.0.1 only. KVM is used if a probe runs on it; else QEMU emulates the processor.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osworld_gym.desktops.container.engine import engine, engine_errors, is_local, labels, reap_once, remove
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.guest_server.official_desktop import OfficialDesktop
from osworld_gym.desktops.vm.kvm_probe import DEVICE, kvm_problem
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import CHROME, SERVER, VLC

if TYPE_CHECKING:
    import docker

LOG = logging.getLogger(__name__)
IMAGE = "happysixd/osworld-docker"
DISK = "OSWORLD_VM_DISK"  # environment variable: the disk file
DISK_SOURCE = "https://huggingface.co/datasets/xlangai/ubuntu_osworld/resolve/main/Ubuntu.qcow2.zip"
MOUNTED = "/System.qcow2"
SCREEN_VIEWER = 8006
PORTS = (SERVER, CHROME, SCREEN_VIEWER, VLC)
SLICE = 3.0  # seconds between two checks that the container is still running
LOG_LINES = 5


class VmDesktop(OfficialDesktop):
    """OSWorld's official desktop (Ubuntu, GNOME), in QEMU in a container.

    Args:
        disk: path of the machine's disk, a qcow2 file; None: the path in ``OSWORLD_VM_DISK``.
        width: screen width in pixels.
        height: screen height in pixels; the official disk has 1920×1080.
        image: the Docker image with QEMU.
        ram: the machine's memory in QEMU's notation (``4G``); the container's limit is 1 GiB higher.
        cores: number of the machine's processors.
        disk_size: size to which the disk may grow.
        kvm: ``auto`` (use it if a probe runs on it), ``on`` or ``off``.
        ready: seconds for the machine to boot; with emulation it takes many times longer.
        network: a network of the engine; ``bridge``, Docker's default, has Internet access.
        client_password: password of the disk's account; setup steps give it to ``sudo`` as ``{CLIENT_PASSWORD}``.

    Raises:
        DesktopError: ``never_ready``: no SDK, engine, image or disk; the message has the command that fixes it.
        ValueError: ``kvm`` is not one of the three values, or ``ram`` is malformed.
    """

    def __init__(
        self,
        disk: str | None = None,
        width: int = 1920,
        height: int = 1080,
        image: str = IMAGE,
        ram: str = "4G",
        cores: int = 4,
        disk_size: str = "32G",
        kvm: str = "auto",
        ready: float = 300.0,
        network: str = "bridge",
        client_password: str = OfficialDesktop.client_password,
    ) -> None:
        if kvm not in ("auto", "on", "off"):
            raise ValueError(f"kvm: expected auto, on or off, got {kvm!r}")
        super().__init__(width, height)
        self.client_password, self._prepared = client_password, False
        self._engine = engine()
        _require_local(self._engine)
        require_image(self._engine, image)
        self._image, self._ready, self.reset_limit = image, ready, ready
        use_kvm = kvm == "on" or (kvm == "auto" and not kvm_problem())
        self._environment = machine_environment(ram, cores, disk_size, use_kvm)
        self._host = host_options(find_disk(disk), ram, network, use_kvm)
        self._ident = ""
        self._ports: dict[int, int] = {}
        reap_once(self._engine)

    def reset(self, seed: int) -> None:
        """Boots a new machine from the disk, unless :meth:`prepare` did. Every machine shows the same screen."""
        del seed
        if not (self._prepared and self._answers()):
            self._boot()
        self._prepared = False
        self._unsettled = True  # the first screenshot waits for a still screen

    def prepare(self) -> None:
        """Boots the machine of the next reset."""
        self._boot()
        self._prepared = True

    def _boot(self) -> None:
        self.close()
        try:
            self._start()
            self._client = GuestClient("127.0.0.1", self._ports[SERVER])
            self._await_boot()
        except DesktopError:
            self.close()
            raise

    def _start(self) -> None:
        with engine_errors(FailureReason.never_ready, "starting the machine's container"):
            made = self._engine.api.create_container(
                self._image,
                environment=self._environment,
                labels=labels("vm"),
                ports=list(PORTS),
                host_config=self._engine.api.create_host_config(**self._host),
            )
            self._ident = str(made["Id"])
            self._engine.api.start(self._ident)
            published = self._engine.api.inspect_container(self._ident)["NetworkSettings"]["Ports"]
        bound = {port: published.get(f"{port}/tcp") for port in PORTS}
        if not all(bound.values()):
            raise DesktopError(FailureReason.never_ready, f"the engine published no ports: {published}; {self._said()}")
        self._ports = {port: int(entries[0]["HostPort"]) for port, entries in bound.items()}

    def _await_boot(self) -> None:
        """Waits until the server returns a frame of the right size. Raises DesktopError early if the container ends."""
        end = time.monotonic() + self._ready
        while True:
            try:
                return self._await_ready(max(0.0, min(SLICE, end - time.monotonic())))
            except DesktopError as error:
                if time.monotonic() >= end:
                    message = f"the machine was not ready within {self._ready:g} s: {error}; {self._said()}"
                    raise DesktopError(FailureReason.never_ready, message) from error
            with engine_errors(FailureReason.died, "inspecting the machine's container"):
                state = self._engine.api.inspect_container(self._ident)["State"]
            if not state["Running"]:
                message = f"the machine's container ended with status {state['ExitCode']}; {self._said()}"
                raise DesktopError(FailureReason.never_ready, message)

    def _said(self) -> str:
        with engine_errors(FailureReason.died, "reading the container's output"):
            lines = self._engine.api.logs(self._ident, tail=LOG_LINES).decode("utf-8", "replace").strip()
        return f"the container said: {lines or 'nothing'}"

    @property
    def server(self) -> tuple[str, str] | None:
        address = self.forwarded(SERVER)
        return None if address is None else (f"http://{address[0]}:{address[1]}", "")

    def forwarded(self, port: int) -> tuple[str, int] | None:
        """See :meth:`Desktop.forwarded`. Port 8006 is also forwarded: the machine's screen in a browser."""
        return ("127.0.0.1", self._ports[port]) if port in self._ports else None

    def close(self) -> None:
        self._prepared = False
        if self._client is not None:
            self._client.close()
            self._client = None
        self._ports = {}
        if self._ident:
            try:
                remove(self._engine, self._ident)
            except DesktopError as error:
                LOG.warning("container %s is left to the reaper: %s", self._ident[:12], error)
            self._ident = ""
        self._engine.close()  # closes idle connections; the next call opens new ones


def machine_environment(ram: str, cores: int, disk_size: str, kvm: bool) -> dict[str, str]:
    """The environment variables of the official image; ``KVM=N`` makes QEMU emulate."""
    given = {"RAM_SIZE": ram, "CPU_CORES": str(cores), "DISK_SIZE": disk_size}
    return given if kvm else given | {"KVM": "N"}


def host_options(disk: str, ram: str, network: str, kvm: bool) -> dict[str, Any]:
    """The container's ``host_config``, as in OSWorld, with ports on 127.0.0.1 that the engine assigns."""
    return {
        "binds": {disk: {"bind": MOUNTED, "mode": "ro"}},
        "devices": [DEVICE] if kvm else [],
        "cap_add": ["NET_ADMIN"],
        "port_bindings": dict.fromkeys(PORTS, ("127.0.0.1",)),
        "network_mode": network,
        "mem_limit": memory_bytes(ram) + (1 << 30),
        "log_config": {"type": "json-file", "config": {"max-size": "1m"}},
    }


def memory_bytes(text: str) -> int:
    """Bytes of a size such as ``4G`` or ``512M``. Raises ValueError for any other format."""
    units = {"M": 1 << 20, "G": 1 << 30}
    if not text[:-1].isdigit() or text[-1:].upper() not in units:
        raise ValueError(f"ram: expected a number with M or G, got {text!r}")
    return int(text[:-1]) * units[text[-1].upper()]


def find_disk(disk: str | None) -> str:
    """The disk's absolute path. Raises DesktopError (``never_ready``) if none is given or the file does not exist."""
    named = disk or os.environ.get(DISK, "")
    fix = f"fix: download {DISK_SOURCE}, unpack it, and set {DISK}=/path/to/Ubuntu.qcow2"
    if not named:
        raise DesktopError(FailureReason.never_ready, f"no disk is named for the official machine; {fix}")
    if not Path(named).is_file():
        raise DesktopError(FailureReason.never_ready, f"no disk file {named}; {fix}")
    return str(Path(named).absolute())


def require_image(client: docker.DockerClient, image: str) -> None:
    """Raises DesktopError (``never_ready``) if the engine does not have the image."""
    import docker

    with engine_errors(FailureReason.never_ready, "looking for the image"):
        try:
            client.api.inspect_image(image)
        except docker.errors.ImageNotFound as error:
            message = f"no image {image}; fix: docker pull {image}"
            raise DesktopError(FailureReason.never_ready, message) from error


def _require_local(client: docker.DockerClient) -> None:
    if not is_local(client):
        address = client.api.base_url
        message = f"the disk and the ports require an engine of this machine, not {address}; fix: unset DOCKER_HOST"
        raise DesktopError(FailureReason.never_ready, message)
