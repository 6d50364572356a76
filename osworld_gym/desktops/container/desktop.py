"""Provider ``container``: the desktop in a container of any Docker engine, from an image built by ``build-image``.

Each reset starts a new container while the old one is killed. A container has no network: its ports are reached over
its stdin and stdout (``pipe.py``), and it ends when stdin is closed. Its root is read-only; HOME, ``/tmp`` and ``/run``
are memory file systems, so that nothing is written to a disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from osworld_gym.desktops.container.engine import engine, engine_errors, is_local, labels, reap_once, remove
from osworld_gym.desktops.container.image import CONTENT, REPOSITORY, VARIANTS, guest_content, tag
from osworld_gym.desktops.container.pipe import ContainerPipe
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.guest_server.prepared_desktop import MEMORY, PreparedDesktop
from osworld_gym.desktops.local.admission import ADMISSION
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import FORWARDED, SERVER
from osworld_gym.guest.process.program_clock import RATE

if TYPE_CHECKING:
    import docker

LOG = logging.getLogger(__name__)
READY = 60.0  # seconds for a new desktop to be ready
PORTS = (SERVER, *FORWARDED)
UID = 1000
HOSTNAME = "user-virtual-machine"


class ContainerDesktop(PreparedDesktop):
    """Xvfb, openbox and real applications in a container.

    Args:
        width: screen width in pixels.
        height: screen height in pixels.
        apps: commands started on every reset, before the task's setup; each one's window is awaited.
        image: name of the image; None: the full image if it was built, else the basic one.
        memory: memory limit in Docker's notation (``4g``), including HOME and ``/tmp``.
        disk: size limit of each of HOME and ``/tmp``, in the same notation.
        shm: size of ``/dev/shm``, in the same notation.
        cpus: limit of CPU cores; None: all.
        pids: limit of processes and threads.
        network: ``none``, or a network of the engine for the desktop's programs. The host requires none.
        office_clock: how many times as fast as time LibreOffice's clock runs, so that its frames come sooner; 1: as the
            machine's (docs/desktop.md).

    Raises:
        DesktopError: ``never_ready``: no SDK, no engine, or no image; the message has the command that fixes it.
        ValueError: the screen is smaller than 64 or larger than 8192 pixels, or the clock's rate is not 1 to 10.
    """

    def __init__(
        self,
        width: int = 1280,
        height: int = 720,
        apps: Sequence[str | Sequence[str]] = (),
        image: str | None = None,
        memory: str = "4g",
        disk: str = "1g",
        shm: str = "512m",
        cpus: float | None = None,
        pids: int = 2048,
        network: str = "none",
        office_clock: float = RATE,
    ) -> None:
        super().__init__(width, height, apps, office_clock)
        self._engine = engine()
        self._shares = is_local(self._engine)
        self.image = find_image(self._engine, image)
        self._limits = create_options(memory, disk, shm, cpus, pids, network)
        self._container: _Container | None = None
        reap_once(self._engine)

    def _turn(self) -> AbstractContextManager[None]:
        return ADMISSION.start(MEMORY) if self._shares else nullcontext()

    def _start(self, order: dict[str, object]) -> GuestClient:
        container = self._container = _Container(self._engine, self.image, self._limits)
        try:
            container.start(order)
            host, port = container.pipe.address(SERVER)
        except (DesktopError, OSError) as error:
            container.end()
            if isinstance(error, DesktopError):
                raise
            raise DesktopError(FailureReason.never_ready, f"closed while it started: {error}") from error
        return GuestClient(host, port, self._token)

    def _let_go(self) -> Callable[[], None]:
        container, self._container = self._container, None
        if container is None:
            return lambda: None
        ending = threading.Thread(target=container.end, daemon=True)
        ending.start()  # in parallel with the start of the next one
        return ending.join

    def forwarded(self, port: int) -> tuple[str, int] | None:
        container = self._container
        if container is None or port not in PORTS:
            return None
        return container.pipe.address(port)

    def close(self) -> None:
        super().close()
        self._engine.close()  # closes idle connections; the next call opens new ones


class _Container:
    """One container, from its creation to its removal."""

    def __init__(self, client: docker.DockerClient, image: str, options: dict[str, Any]) -> None:
        self._engine = client
        with engine_errors(FailureReason.never_ready, "creating a container"):
            made = client.api.create_container(
                image,
                command=["piped"],
                stdin_open=True,
                hostname=HOSTNAME,
                user=f"{UID}:{UID}",
                labels=labels("container"),
                host_config=client.api.create_host_config(**options),
            )
            self.ident = str(made["Id"])
        try:
            with engine_errors(FailureReason.never_ready, "attaching to a container"):
                params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                self.pipe = ContainerPipe(client.api.attach_socket(self.ident, params=params), PORTS)
        except (DesktopError, OSError):
            remove(client, self.ident)
            raise

    def start(self, order: dict[str, object]) -> None:
        """Returns when the desktop is ready. Raises DesktopError (``never_ready``)."""
        with engine_errors(FailureReason.never_ready, "starting a container"):
            self._engine.api.start(self.ident)
        self.pipe.start(order, READY)

    def end(self) -> None:
        """Kills and removes it. Never raises."""
        self.pipe.close()
        try:
            remove(self._engine, self.ident)
        except DesktopError as error:
            LOG.warning("container %s is left to the reaper: %s", self.ident[:12], error)


def create_options(memory: str, disk: str, shm: str, cpus: float | None, pids: int, network: str) -> dict[str, Any]:
    """The container's ``host_config``: no privileges, no disk, ``network`` only, removed when the container ends.

    The arguments are those of :class:`ContainerDesktop`.
    """
    folder = f"exec,nosuid,nodev,uid={UID},gid={UID}"
    limits: dict[str, Any] = {"mem_limit": memory, "memswap_limit": memory, "pids_limit": pids, "shm_size": shm}
    if cpus is not None:
        limits["nano_cpus"] = int(cpus * 1e9)
    return limits | {
        "read_only": True,
        "tmpfs": {
            "/tmp": f"exec,nosuid,nodev,mode=1777,size={disk}",
            "/var/tmp": f"exec,nosuid,nodev,mode=1777,size={disk}",
            "/home/user": f"{folder},mode=0755,size={disk}",
            "/run/osworld": f"{folder},mode=0700,size=272m",  # the largest screen has 256 MiB
            f"/run/user/{UID}": f"{folder},mode=0700,size=64m",
        },
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "network_mode": network,
        "extra_hosts": {HOSTNAME: "127.0.0.1"},
        "auto_remove": True,
        "log_config": {"type": "none", "config": {}},
    }


def find_image(client: docker.DockerClient, name: str | None) -> str:
    """The image to use.

    Raises:
        DesktopError: ``never_ready``: there is none, or it contains another version of the guest.
    """
    with engine_errors(FailureReason.never_ready, "looking for the image"):
        held = {name: image for image in client.images.list() for name in image.tags}
    wanted = [name] if name is not None else [tag(variant) for variant in VARIANTS]
    image = next((each for each in wanted if each in held), None)
    if image is None:
        fix = "osworld-gym build-image" if name is None or name.startswith(REPOSITORY) else f"docker pull {name}"
        raise DesktopError(FailureReason.never_ready, f"no image {' or '.join(wanted)}; fix: {fix}")
    inside = held[image].labels.get(CONTENT)
    if inside != guest_content():
        variant = image.rpartition(":")[2] if image.startswith(REPOSITORY) else "basic"
        message = f"{image} contains guest {inside}, expected this package's {guest_content()}"
        raise DesktopError(FailureReason.never_ready, f"{message}; fix: osworld-gym build-image --variant {variant}")
    return image
