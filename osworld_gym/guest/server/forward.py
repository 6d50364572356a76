"""Forwards connections: listening sockets to channels, channels to ports, and a listening socket to a proxy.

Host → desktop: the owner accepts on its 127.0.0.1 and carries the bytes of each connection in a channel, so that no
socket of the host's network enters the desktop. Desktop → host: the desktop listens in its own network and passes that
socket to the owner, which forwards each connection to an HTTP proxy.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping

from .channels import CHUNK, Channels, Stream

CONNECT = 10.0  # seconds
MANY = 256  # simultaneous connections of one port; further ones wait


def pass_proxy(proxy: Mapping[str, int]) -> None:
    """Listens in the desktop's network for connections to the proxy, and passes that socket to the owner.

    Args:
        proxy: ``port`` to listen on, and ``channel``, the descriptor of the Unix socket on which it is passed, which is
            closed.
    """
    with (
        socket.socket(fileno=proxy["channel"]) as channel,
        socket.create_server(("127.0.0.1", proxy["port"])) as listener,
    ):
        socket.send_fds(channel, [b"proxy"], [listener.fileno()])


def to_channels(listener: socket.socket, channels: Channels, port: int) -> None:
    """Forwards each connection of ``listener`` to the other end's ``port``, in threads, until it is shut down."""

    def serve(near: socket.socket) -> None:
        with contextlib.closing(channels.connect(port)) as stream:
            join(near, stream)

    accept(listener, serve)


def to_address(listener: socket.socket, target: tuple[str, int]) -> None:
    """Forwards each connection of ``listener`` to ``target``, in threads, until the listener is shut down."""

    def serve(near: socket.socket) -> None:
        with socket.create_connection(target, CONNECT) as far:
            far.settimeout(None)
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()

    accept(listener, serve)


def accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Calls ``serve`` with each connection, each in a thread, until the listener is shut down, and then closes it."""
    threading.Thread(target=_accept, args=(listener, serve), name="accepting", daemon=True).start()


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    slots = threading.Semaphore(MANY)

    def answer(near: socket.socket) -> None:
        try:
            with near, contextlib.suppress(OSError):  # e.g. nothing listens there: the client sees it closed
                serve(near)
        finally:
            slots.release()

    with listener:
        while True:
            slots.acquire()
            try:
                near, _ = listener.accept()
            except OSError:
                return
            near.settimeout(None)
            with contextlib.suppress(OSError):
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                threading.Thread(target=answer, args=(near,), daemon=True).start()
            except RuntimeError:  # no more threads
                near.close()
                slots.release()


def join(local: socket.socket, stream: Stream) -> None:
    """Carries bytes between a socket and a channel until both directions have ended or one of the two broke."""
    stream.on_break = lambda: shut(local)
    back = threading.Thread(target=_outward, args=(local, stream), daemon=True)
    back.start()
    try:
        while data := stream.recv(CHUNK):
            local.sendall(data)
        local.shutdown(socket.SHUT_WR)
        stream.wait_over()
    finally:
        shut(local)
        back.join()


def _outward(local: socket.socket, stream: Stream) -> None:
    with contextlib.suppress(OSError):
        while data := local.recv(CHUNK):
            stream.sendall(data)
        return stream.end()
    stream.close()


def shut(local: socket.socket) -> None:
    """Shuts a socket down, which ends the threads that read, write or accept."""
    with contextlib.suppress(OSError):
        local.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copies bytes until the end of ``source``, then shuts down the sink's write side."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RD)
