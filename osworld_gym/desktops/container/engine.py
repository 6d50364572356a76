"""The Docker engine: connection, errors and their fixes, labels, removal of containers, the reaper.

Every container has the label :data:`OWNER`; only containers with this label are listed or removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from osworld_gym.desktops.container.owner import Owner
from osworld_gym.errors import DesktopError, FailureReason

if TYPE_CHECKING:
    import docker

LOG = logging.getLogger(__name__)
OWNER = "osworld-gym.owner"
STARTED = "osworld-gym.started"
PROVIDER = "osworld-gym.provider"
CALL = 60.0  # seconds that the engine may take for one reply
REMOVAL = 30.0  # seconds for a container to be removed
_reaped: set[str] = set()  # engines whose left-over containers this process has removed
_reaping = threading.Lock()


def engine(timeout: float = CALL) -> docker.DockerClient:
    """A client of the engine at DOCKER_HOST or the default socket, after a successful ping.

    Args:
        timeout: seconds for each call.

    Raises:
        DesktopError: ``never_ready``: the SDK is missing, or the engine cannot be used; the message has the fix.
    """
    try:
        import docker
    except ImportError as error:
        message = "the docker SDK is missing; fix: pip install 'osworld-gym[container]'"
        raise DesktopError(FailureReason.never_ready, message) from error
    try:
        client = docker.from_env(timeout=timeout)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise DesktopError(FailureReason.never_ready, engine_problem(error)) from error
    return client


def is_local(client: docker.DockerClient) -> bool:
    """Whether the engine runs on this machine (same memory and loopback); one behind TCP or SSH may not."""
    return str(client.api.base_url).startswith(("http+docker://localhost", "npipe://"))


def engine_problem(error: BaseException) -> str:
    """Why the engine cannot be used, and the one command that fixes it."""
    said = _words(error)
    if "Permission denied" in said or "PermissionError" in said:
        return "no permission to use the Docker engine; fix: sudo usermod -aG docker $USER, then log in again"
    if "No such file" in said or "refused" in said or "FileNotFoundError" in said:
        if host := os.environ.get("DOCKER_HOST"):
            fix = "start it there (sudo systemctl start docker), or unset DOCKER_HOST"
            return f"no Docker engine answers at DOCKER_HOST={host}; fix: {fix}"
        if shutil.which("docker") is None and shutil.which("dockerd") is None:
            return "Docker is not installed; fix: sudo apt-get install -y docker.io, or https://docs.docker.com/engine"
        return "no Docker engine answers; fix: sudo systemctl start docker, or sudo scripts/start-dockerd.sh"
    return f"the Docker engine does not work: {said}; fix: docker info says what it lacks"


def _words(error: BaseException | None) -> str:
    """The error and its causes, in one line."""
    parts = []
    while error is not None:
        parts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "; ".join(parts)


@contextlib.contextmanager
def engine_errors(reason: FailureReason, what: str) -> Iterator[None]:
    """Converts the engine's errors to DesktopError with ``reason``, and its timeouts to ``hung``."""
    import docker
    import requests

    try:
        yield
    except requests.exceptions.Timeout as error:
        raise DesktopError(FailureReason.hung, f"{what}: the Docker engine did not answer in time") from error
    except docker.errors.ImageNotFound as error:
        raise DesktopError(reason, f"{what}: {error.explanation}") from error
    except docker.errors.APIError as error:
        raise DesktopError(reason, f"{what}: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise DesktopError(reason, f"{what}: {engine_problem(error)}") from error


def labels(provider: str) -> dict[str, str]:
    """Labels that mark a container as owned by this process."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {OWNER: str(Owner.this()), STARTED: now, PROVIDER: provider}


def remove(client: docker.DockerClient, ident: str) -> None:
    """Kills and removes a container and waits until it is removed; does nothing if it does not exist.

    Raises:
        DesktopError: ``hung``: it was not removed within :data:`REMOVAL` seconds; ``died``: the engine refused.
    """
    import docker

    with engine_errors(FailureReason.died, f"removing container {ident[:12]}"):
        try:
            client.api.remove_container(ident, force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code != 409:  # 409: it is already being removed
                raise
            with contextlib.suppress(docker.errors.NotFound):
                client.api.wait(ident, timeout=REMOVAL, condition="removed")


def owned(client: docker.DockerClient, owner: Owner | None = None) -> list[Mapping[str, Any]]:
    """The engine's containers with our label, running or not, of one owner or of all."""
    label = f"{OWNER}={owner}" if owner is not None else OWNER
    with engine_errors(FailureReason.died, "listing containers"):
        return list(client.api.containers(all=True, filters={"label": label}))


def reap(client: docker.DockerClient) -> int:
    """Removes the containers of owners that are known to have ended; returns their number."""
    count = 0
    for container in owned(client):
        text = container["Labels"].get(OWNER, "")
        try:
            dead = Owner.parse(text).dead
        except ValueError:
            LOG.warning("container %s has the owner label %r, which is not ours", container["Id"][:12], text)
            continue
        if dead:
            remove(client, container["Id"])
            count += 1
    return count


def reap_once(client: docker.DockerClient) -> None:
    """Removes the containers of ended owners, once per process and engine."""
    with _reaping:
        address = str(client.api.base_url)
        if address in _reaped:
            return
        _reaped.add(address)
    if count := reap(client):
        LOG.warning("removed %d containers whose owners have exited", count)
