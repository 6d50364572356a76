"""Ray clusters on this machine, each started by ``ray start --head`` with ports of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from listening_ports import free_ports
from polling import until
from repository import ROOT

START_SECONDS = 90  # a machine under load


def loaded_machine(start_seconds: int = 240) -> dict[str, str]:
    """Environment variables of a Ray cluster on a machine under load: time to start, and no lower priority.

    Ray gives its workers niceness 15 otherwise, and they get almost no CPU beside other jobs.
    """
    return {"RAY_raylet_start_wait_time_s": str(start_seconds), "RAY_worker_niceness": "0"}


class NoStart(Exception):
    """A head has not started; with the ends of its logs."""


@contextmanager
def ray_head(worker_ports: range, attempts: int = 3) -> Iterator[str]:
    """The address of a cluster whose workers use these ports; it is ended afterwards, with everything it started.

    A start is tried again: with several clusters on a machine a component may get no answer, and waits for minutes.
    """
    with ExitStack() as stack:
        while True:
            attempts -= 1
            try:
                address = stack.enter_context(_started(worker_ports))
                break
            except NoStart:
                if attempts == 0:
                    raise
        yield address


@contextmanager
def _started(worker_ports: range) -> Iterator[str]:
    ports = free_ports(3)
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # a short path: sockets are in it
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}"]
    command += [f"--dashboard-agent-listen-port={ports[2]}", "--include-dashboard=false", f"--temp-dir={folder}"]
    command += [f"--min-worker-port={worker_ports.start}", f"--max-worker-port={worker_ports.stop - 1}"]
    command += ["--num-cpus=1", f"--object-store-memory={100 << 20}"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **loaded_machine(START_SECONDS),
    }
    with (folder / "start.log").open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True, cwd=folder
        )
    try:
        _wait_for_start(process, folder)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        process.send_signal(signal.SIGTERM)  # `ray start --block` ends its cluster
        try:
            process.wait(timeout=60.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_start(process: subprocess.Popen[bytes], folder: Path) -> None:
    def output() -> str:
        return (folder / "start.log").read_text()

    until(lambda: process.poll() is not None or "Ray runtime started" in output(), "no start", 2.0 * START_SECONDS)
    if process.poll() is not None:
        logs = folder / "session_latest" / "logs"
        names = ("raylet.err", "raylet.out", "gcs_server.out", "gcs_server.err")
        ends = [f"{name}: {(logs / name).read_text()[-1500:]}" for name in names if (logs / name).exists()]
        raise NoStart("\n".join([output(), *ends]))
