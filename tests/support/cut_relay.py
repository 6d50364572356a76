"""A TCP relay whose connections a test cuts, at once or after some bytes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CutRelay:
    """Forwards connections to ``target``, from the port ``address[1]`` of this machine.

    Args:
        target: (host, port).
        cut_after: bytes of both directions together after which each connection is cut; None: never.
    """

    def __init__(self, target: tuple[str, int], *, cut_after: int | None = None) -> None:
        self.target, self.cut_after, self.cuts = target, cut_after, 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cuts the connections that are open now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += len(pairs)
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        """Cuts everything and refuses further connections."""
        self._open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target, timeout=10.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            left = [float("inf") if self.cut_after is None else self.cut_after]
            with self._lock:
                self._pairs.append((near, far))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(*ends, left), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, left: list[float]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                left[0] -= len(data)
                if left[0] < 0:
                    sink.sendall(data[: len(data) // 2])  # within a frame
                    break
                sink.sendall(data)
            else:
                sink.shutdown(socket.SHUT_WR)
                return
            self.cut()
