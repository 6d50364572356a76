"""``bepa rollouts``: plays the rollouts of a run that is trained in another cluster (``cluster.listen``)."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from bepa_torchrl.commands.arguments import add_settings
from osworld_gym.extras import require_extra

_HELP = "play the rollouts of a run that is trained in another cluster"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("rollouts", help=_HELP, description=f"Connects to a trainer, to {_HELP}.")
    parser.add_argument(
        "--connect", required=True, metavar="HOST:PORT", help="where it listens (cluster.listen); or https://HOST:PORT"
    )
    parser.add_argument("--token-file", type=Path, help="the trainer's token; else in BEPA_CHANNEL_TOKEN")
    parser.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="certificates of which one has signed the trainer's; implies https"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="give up after so long without a connection (default: 600)",
    )
    add_settings(parser)
    parser.set_defaults(program=rollouts)


def rollouts(options: argparse.Namespace) -> int:
    """Plays until the training has ended.

    Raises:
        ValueError: bad input. DesktopError, OSError: infrastructure.
    """
    from bepa_torchrl.experiment.rollout_side import local_changes, play_run
    from bepa_torchrl.scale.wire.access import Access, read_ca, read_token
    from bepa_torchrl.scale.wire.errors import RunEndedError

    require_extra("wire", "bepa rollouts")
    if not options.wait >= 0:
        raise ValueError(f"--wait: expected a number of seconds of at least 0, got {options.wait:g}")
    access = Access(
        _url(options.connect, secure=options.tls_ca is not None),
        read_token(options.token_file),
        read_ca(options.tls_ca, "--tls-ca"),
    )
    changes = local_changes(options.overrides, options.config_dir)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # SIGTERM becomes an ordinary exit, which ends the desktops too
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        play_run(access, changes, wait=options.wait, note=_print)
    except RunEndedError as end:  # before the first weights
        _print(str(end))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _url(connect: str, *, secure: bool) -> str:
    """The URL of the trainer. Raises ValueError for neither HOST:PORT nor a URL."""
    from bepa_torchrl.scale.wire.access import address_text, check_url, parse_address

    if "://" not in connect:
        return f"{'https' if secure else 'http'}://{address_text(parse_address(connect))}"
    if secure and not connect.startswith("https://"):
        raise ValueError(f"--tls-ca is for https, got --connect {connect}; leave it out, or connect by https://")
    return check_url(connect, "--connect")


def _print(line: str) -> None:
    print(line, flush=True)
