"""``bepa engine``: a vLLM engine for runs on other machines (``policy.engine.url``)."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bepa_torchrl.policies.vllm.rows import EngineSpec, RowEngine

_HELP = "a vLLM engine that samples for runs on other machines"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("engine", help=_HELP, description=f"Serves {_HELP} (policy.engine.url), by HTTP.")
    parser.add_argument(
        "--listen", default="127.0.0.1:7400", metavar="HOST:PORT", help="where it listens (default: %(default)s)"
    )
    parser.add_argument("--token-file", type=Path, help="the secret of the runs; else in BEPA_ENGINE_TOKEN")
    parser.add_argument("--folder", type=Path, help="for the weights that it is given (default: a temporary one)")
    parser.set_defaults(program=engine)


def engine(options: argparse.Namespace) -> int:
    """Serves until it gets SIGTERM or Ctrl-C.

    Raises:
        ValueError: bad input, or no supported vLLM. OSError: infrastructure.
    """
    from bepa_torchrl.distributed.channel.handshake import ENGINE_TOKEN, parse_address, read_token
    from bepa_torchrl.policies.vllm.errors import engine_version

    address, token = parse_address(options.listen), read_token(options.token_file, variable=ENGINE_TOKEN)
    version = str(engine_version())
    from bepa_torchrl.policies.vllm.http_engine.server import EngineServer

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with tempfile.TemporaryDirectory(prefix="bepa-engine-") as temporary:
            folder = Path(temporary) / "weights" if options.folder is None else options.folder
            server = EngineServer(address, token, folder=folder, make_engine=_make_engine, version=version)
            try:
                print(f"vLLM {version} at http://{server.address[0]}:{server.address[1]}", flush=True)
                threading.Event().wait()
            finally:
                server.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _make_engine(spec: EngineSpec, start_timeout: float, stall_timeout: float) -> RowEngine:
    import torch

    from bepa_torchrl.policies.vllm.engine import Engine  # imports vLLM

    on_cpu = not torch.cuda.is_available()
    return Engine(spec, on_cpu=on_cpu, start_timeout=start_timeout, stall_timeout=stall_timeout)
