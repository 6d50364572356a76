"""``osworld-gym``: check this machine (``doctor``), open or serve a desktop, list and check tasks.

Each command is a module of :mod:`osworld_gym.commands` with a function ``add(commands)``. Exit status: 0 success,
1 a check failed, 2 bad input, 3 the infrastructure failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from osworld_gym import __version__
from osworld_gym.commands import desktop, doctor, install, serve, tasks
from osworld_gym.commands.arguments import CommandParser, parse
from osworld_gym.commands.output import BAD_INPUT, INFRASTRUCTURE, finished, output_closed
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.extensions import import_modules

COMMANDS = (doctor, desktop, serve, install, tasks)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; an error is one line on standard error."""
    return finished(lambda: _run(argv), "osworld-gym")


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = parse(_parser(), sys.argv[1:] if argv is None else argv)
        import_modules(getattr(arguments, "imports", ()))
        return int(arguments.command(arguments))
    except (TaskError, ValueError) as error:
        print(f"osworld-gym: {error}", file=sys.stderr)
        return BAD_INPUT
    except DesktopError as error:
        print(f"osworld-gym: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    except BrokenPipeError:  # ``osworld-gym tasks list | head``
        if not output_closed():
            raise
        return 0
    except OSError as error:  # the disk
        print(f"osworld-gym: {error}", file=sys.stderr)
        return INFRASTRUCTURE


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="osworld-gym", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"osworld-gym {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
