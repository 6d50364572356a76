"""``bepa rollouts``: plays the rollouts of a run that is trained in another cluster (``cluster.listen``)."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from bepa_torchrl.commands.arguments import add_settings

_HELP = "play the rollouts of a run that is trained in another cluster"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("rollouts", help=_HELP, description=f"Connects to a trainer, to {_HELP}.")
    parser.add_argument("--connect", required=True, metavar="HOST:PORT", help="where it listens (cluster.listen)")
    parser.add_argument("--token-file", type=Path, help="the trainer's token; else in BEPA_CHANNEL_TOKEN")
    parser.add_argument(
        "--wait", type=float, default=600.0, metavar="SECONDS", help="give up without a connection for so long (600)"
    )
    add_settings(parser)
    parser.set_defaults(program=rollouts)


def rollouts(options: argparse.Namespace) -> int:
    """Plays until the training has ended.

    Raises:
        ValueError: bad input. DesktopError, OSError: infrastructure.
    """
    from bepa_torchrl.experiment.rollout_side import local_changes, play_run
    from bepa_torchrl.scale.rollouts.channel.errors import RunEndedError
    from bepa_torchrl.scale.rollouts.channel.handshake import parse_address, read_token

    address, token = parse_address(options.connect), read_token(options.token_file)
    changes = local_changes(options.overrides, options.config_dir)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # SIGTERM becomes an ordinary exit, which ends the desktops too
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        play_run(address, token, changes, wait=options.wait, note=_print)
    except RunEndedError as end:  # before the first weights
        _print(str(end))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _print(line: str) -> None:
    print(line, flush=True)
