"""Real S3 and Azure Blob servers on this machine: moto and azurite, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import requests
from listening_ports import free_ports

ROOT = Path(__file__).parents[2]
#: azurite's public development account
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Server:
    """A server that can be stopped and started again on the same port."""

    def __init__(self, command: list[str], port: int) -> None:
        self.command, self.port, self.address = command, port, f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60.0
        while True:
            try:
                requests.get(self.address, timeout=5.0)
                return
            except requests.ConnectionError:
                assert self._process.poll() is None, f"{self.command} ended with {self._process.returncode}"
                assert time.monotonic() < end, f"{self.command} did not answer"
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10.0)
            self._process = None


def moto_server() -> Server:
    (port,) = free_ports(1)
    return Server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)


def azurite_server(folder: Path) -> Server:
    """Azurite from build/azurite (make test-storage installs it), which keeps its blobs in ``folder``."""
    program = os.environ.get("AZURITE") or str(ROOT / "build/azurite/node_modules/.bin/azurite-blob")
    assert shutil.which(program), f"{program} is missing; fix: make test-storage, which installs it with npm"
    (port,) = free_ports(1)
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent"]
    return Server([program, *options, "--skipApiVersionCheck"], port)


def azurite_connection(server: Server) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};"
        f"BlobEndpoint={server.address}/devstoreaccount1;"
    )
