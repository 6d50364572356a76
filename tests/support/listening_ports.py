"""Ports for servers whose address a test must know before they start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

#: below the ports that the system gives to outgoing connections, and above those of Ray's workers
PORTS = range(23000, 32000)

_RESERVATIONS: list[socket.socket] = []  # open until this process ends


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nothing listens, and that no other test process on this machine gets.

    A server may take its port long after this, when another test could have found it free too.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _reserve(port)
            found.append(port)
    return found


def _reserve(port: int) -> None:
    """Raises OSError if a process has reserved it: the name of an abstract socket is that of one process."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0a port of a test of bepa_torchrl: {port}")
    except OSError:
        reservation.close()
        raise
    _RESERVATIONS.append(reservation)
