"""Whether a Ray cluster's head accepts connections. Ray's own attempt takes minutes to fail; ``auto`` needs Ray."""

from __future__ import annotations

import os
import socket

from bepa_torchrl.scale.wire.access import parse_address
from osworld_gym.errors import DesktopError, FailureReason

LOCAL = "local"  #: as an address: a cluster on this machine, for this process
FIX = "start its head with `ray start --head`, or correct the address"
_SECONDS = 10.0


def check_head(address: str) -> None:
    """Connects to the head's port, and closes the connection. Does nothing for ``local``.

    Args:
        address: HOST:PORT, or ``auto``, which is that of ``RAY_ADDRESS``, or else this machine's cluster.

    Raises:
        ValueError: no HOST:PORT.
        DesktopError: nothing accepts a connection there within 10 s, or no cluster runs on this machine.
    """
    head = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    head = head if head and head != "auto" else _running_here()
    if head == LOCAL:
        return
    try:
        target = parse_address(head.removeprefix("ray://"))
    except ValueError as error:
        raise ValueError(f"cluster.address: {error}, auto or local") from error
    try:
        socket.create_connection(target, _SECONDS).close()
    except OSError as error:
        raise DesktopError(FailureReason.never_ready, f"no Ray cluster at {head} ({error}); {FIX}") from error


def _running_here() -> str:
    """The address of this machine's cluster. Raises DesktopError if none runs."""
    from ray._private.services import canonicalize_bootstrap_address  # what ray.init does first, without the rest

    try:
        return str(canonicalize_bootstrap_address("auto"))
    except ConnectionError as error:
        raise DesktopError(FailureReason.never_ready, f"no Ray cluster runs on this machine; {FIX}") from error
