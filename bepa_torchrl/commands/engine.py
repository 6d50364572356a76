"""``bepa engine``: a vLLM engine for runs on other machines (``policy.engine.url``)."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bepa_torchrl.commands.arguments import check_new
from osworld_gym.extras import require_extra

if TYPE_CHECKING:
    from bepa_torchrl.scale.engine.engine_interface import EngineSpec, RowEngine

_HELP = "a vLLM engine that samples for runs on other machines"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("engine", help=_HELP, description=f"Serves {_HELP} (policy.engine.url), by HTTP.")
    parser.add_argument(
        "--listen", default="127.0.0.1:7400", metavar="HOST:PORT", help="where it listens (default: %(default)s)"
    )
    parser.add_argument("--token-file", type=Path, help="the secret of the runs; else in BEPA_ENGINE_TOKEN")
    parser.add_argument("--tls-certificate", metavar="FILE", help="certificate with its chain, PEM (default: no TLS)")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further argument of vLLM's AsyncEngineArgs, its value as JSON: --argument tensor_parallel_size=2",
    )
    text = "where the weights that it is given are kept while it runs (default: the system's temporary folder)"
    parser.add_argument("--folder", type=Path, help=text)
    parser.set_defaults(program=engine)


def engine(options: argparse.Namespace) -> int:
    """Serves until it gets SIGTERM or Ctrl-C.

    Raises:
        ValueError: bad input, or no supported vLLM. OSError: infrastructure.
    """
    from bepa_torchrl.scale.engine.errors import engine_version
    from bepa_torchrl.scale.wire.access import ENGINE_TOKEN, parse_address, plain_warning, read_tls, read_token

    require_extra("wire", "bepa engine")
    arguments = _arguments(options.argument)
    address, token = parse_address(options.listen), read_token(options.token_file, variable=ENGINE_TOKEN)
    tls = read_tls(options.tls_certificate, options.tls_key, ("--tls-certificate", "--tls-key"))
    version = str(engine_version())
    if options.folder is not None and not options.folder.is_dir():
        check_new(options.folder, "--folder")
        options.folder.mkdir(parents=True)
    from bepa_torchrl.scale.engine.http.server import EngineServer

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        # a folder of its own, also in --folder, which may have other files: the server removes its folder at the end
        with tempfile.TemporaryDirectory(prefix="bepa-engine-", dir=options.folder) as temporary:
            folder = Path(temporary) / "weights"
            make_engine = partial(_make_engine, arguments)
            server = EngineServer(address, token, folder=folder, make_engine=make_engine, version=version, tls=tls)
            try:
                if warning := plain_warning(server.address, tls, "give --tls-certificate and --tls-key"):
                    print(warning, file=sys.stderr, flush=True)
                print(f"vLLM {version} at {server.url}", flush=True)
                threading.Event().wait()
            finally:
                server.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _arguments(given: list[str]) -> dict[str, Any]:
    """Arguments from the command line. Raises ValueError if one is not NAME=JSON."""
    arguments = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            if not (name.isidentifier() and equals):
                raise ValueError("no name")
            arguments[name] = json.loads(value)
        except ValueError as error:
            raise ValueError(
                f"--argument: expected NAME=VALUE with a value in JSON, such as tensor_parallel_size=2 or "
                f"quantization='\"fp8\"', got {text!r}"
            ) from error
    return arguments


def _make_engine(arguments: dict[str, Any], spec: EngineSpec, start_timeout: float, stall_timeout: float) -> RowEngine:
    import torch

    from bepa_torchrl.scale.engine.engine import Engine  # imports vLLM

    on_cpu = not torch.cuda.is_available()
    return Engine(spec, on_cpu=on_cpu, arguments=arguments, start_timeout=start_timeout, stall_timeout=stall_timeout)
