"""Ray clusters on this machine, each started by ``ray start --head`` with ports of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from repository import ROOT

START_SECONDS = 240.0  # a machine under load


@contextmanager
def ray_head(worker_ports: range) -> Iterator[str]:
    """The address of a cluster whose workers use these ports; it is ended afterwards, with everything it started."""
    ports = free_ports(3)
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: sockets are in it
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}"]
    command += [f"--dashboard-agent-listen-port={ports[2]}", "--include-dashboard=false", f"--temp-dir={folder}"]
    command += [f"--min-worker-port={worker_ports.start}", f"--max-worker-port={worker_ports.stop - 1}"]
    command += ["--num-cpus=2", f"--object-store-memory={100 << 20}"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_raylet_start_wait_time_s": str(int(START_SECONDS)),
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        wait_for_start(process)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        process.send_signal(signal.SIGTERM)  # `ray start --block` ends its cluster
        try:
            process.communicate(timeout=60.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_start(process: subprocess.Popen[str]) -> None:
    """Reads the output until the cluster has started."""
    assert process.stdout is not None
    lines: list[str] = []
    end = time.monotonic() + START_SECONDS
    for line in process.stdout:
        lines.append(line)
        if "Ray runtime started" in line:
            return
        assert time.monotonic() < end, "".join(lines)
    raise AssertionError("".join(lines))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
