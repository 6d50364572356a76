"""Process 1 of a container: starts the guest, connects it to its owner, ends when either of them has ended.

- ``piped``: reads the configuration from stdin and writes the guest's reply to stdout, one line each; afterwards both
  streams carry :mod:`channels`, so that the container needs no network.
- ``serve``: reads the configuration from the environment (``OSWORLD_WIDTH``, ``OSWORLD_HEIGHT``, ``OSWORLD_SEED``,
  ``OSWORLD_TOKEN``); the server listens on port 5000 of every interface.
- ``health``: exit status 0 when the server answers.

When process 1 ends, the kernel ends every other process of the container. An empty HOME is filled from the image's
template, if it has one.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from .ports import SERVER
from .process.processes import deny_tracing
from .server.channels import Channels, ProtocolError, Stream
from .server.forward import CONNECT, join

TEMPLATE = Path("/opt/osworld_template")
PLACES = {"folder": "/run/osworld", "home": "/home/user", "runtime": "/run/user/1000"}
HEALTH = 5.0  # seconds for the server to answer


def main(arguments: list[str]) -> int:
    """Runs one of the three commands; returns the exit status, 2 for an unknown command."""
    if arguments == ["health"]:
        return _health()
    if arguments not in (["piped"], ["serve"]):
        print(f"container: expected piped, serve or health, got {arguments}", file=sys.stderr)
        return 2
    deny_tracing()  # it knows the token, and its streams are the owner's
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # the kernel ends the other processes
    return _piped() if arguments == ["piped"] else _serve()


def _piped() -> int:
    order = json.loads(sys.stdin.buffer.readline(1 << 16))
    # the owner's port requires its token; programs inside reach the server on the port of OSWorld's machines
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own_port = int(listener.getsockname()[1])
        guest, line = _start(order | {"inner": SERVER}, listener)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    if "error" in json.loads(line):
        return 1
    threading.Thread(target=_join, args=(guest, own_port), daemon=True).start()
    return _wait(guest)


def _serve() -> int:
    env = os.environ
    size = {"width": int(env.get("OSWORLD_WIDTH", "1920")), "height": int(env.get("OSWORLD_HEIGHT", "1080"))}
    order = size | {"seed": int(env.get("OSWORLD_SEED", "0")), "token": env.get("OSWORLD_TOKEN", "")}
    with socket.create_server(("0.0.0.0", SERVER)) as listener:  # noqa: S104  # inside the container only
        guest, line = _start(order, listener)
    print(line.decode().strip(), file=sys.stderr, flush=True)
    return 1 if "error" in json.loads(line) else _wait(guest)


def _start(order: dict[str, Any], listener: socket.socket) -> tuple[subprocess.Popen[bytes], bytes]:
    """Starts the guest; returns its process and its line of JSON, the display or the error."""
    home = Path(PLACES["home"])
    if TEMPLATE.is_dir() and not any(home.iterdir()):
        shutil.copytree(TEMPLATE, home, symlinks=True, dirs_exist_ok=True)
    command, pipe = [sys.executable, "-m", __package__ or ""], subprocess.PIPE
    guest = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[listener.fileno()])
    fields = order | PLACES | {"marker": secrets.token_hex(8), "socket": listener.fileno()}
    _stream(guest.stdin).write(json.dumps(fields).encode() + b"\n")
    _stream(guest.stdin).flush()
    line = _stream(guest.stdout).readline()
    return guest, line or b'{"error": "the guest ended without output"}\n'


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _join(guest: subprocess.Popen[bytes], own_port: int) -> None:
    """Runs the channels until the owner closes stdin; then ends the guest and with it the container."""

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def accept(stream: Stream, port: int) -> None:
        with socket.create_connection(("127.0.0.1", own_port if port == SERVER else port), CONNECT) as connection:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            join(connection, stream)

    try:
        Channels(sys.stdin.buffer.read, write, accept).run()
    except ProtocolError as error:
        print(f"container: {error}", file=sys.stderr, flush=True)
    guest.kill()


def _wait(guest: subprocess.Popen[bytes]) -> int:
    """Collects every orphan until the guest has ended; returns the guest's status, 1 for a signal."""
    while True:
        pid, status = os.wait()
        if pid == guest.pid:
            return max(os.waitstatus_to_exitcode(status), 0) or int(os.WIFSIGNALED(status))


def _health() -> int:
    connection = http.client.HTTPConnection("127.0.0.1", SERVER, timeout=HEALTH)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        print(f"container: no answer on port {SERVER}: {error}")
        return 1
    return int(status not in (200, 401))  # 401: it answers, but requires its token


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
