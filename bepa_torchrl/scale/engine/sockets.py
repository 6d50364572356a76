"""The ZeroMQ sockets of a vLLM client (``vllm/v1/engine/core_client.py``), which must be closed before it is dropped.

vLLM schedules their closing on the client's event loop; if that ends first, they stay open (see also its pull request
57757). Python then ends their context whenever it collects garbage, in whatever thread, and libzmq waits there for ever
until they are closed.
"""

from __future__ import annotations

import threading
from typing import Any

_SOCKETS = ("output_socket", "input_socket", "first_req_send_socket", "first_req_rcv_socket", "stats_update_socket")


async def close_sockets(client: Any) -> None:
    """Closes those that are open; to be run on the client's event loop, since a socket belongs to one thread."""
    for name in _SOCKETS:
        socket = getattr(client.resources, name)
        if socket is not None:
            socket.close(linger=0)


def end_context(client: Any, timeout: float) -> bool:
    """Ends the client's context; whether that took less than ``timeout`` seconds.

    If a socket is still open, a thread waits for it, and holds the context so that no other has to.
    """
    thread = threading.Thread(target=client.resources.ctx.term, name="vllm context", daemon=True)
    thread.start()
    thread.join(timeout)
    return not thread.is_alive()
