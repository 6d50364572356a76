"""The program ``bepa``. Each command is a module of :mod:`bepa_torchrl.commands` with an ``add(commands)``.

Exit codes: 0 success, 2 bad input, 3 infrastructure (a desktop, the disk, a GPU's memory), 130 interrupted. ``--help``
and errors in the arguments import neither torch nor any other large package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from bepa_torchrl.commands.arguments import parse_settings
from bepa_torchrl.commands.moved import MOVED, add_moved
from osworld_gym.commands.arguments import CommandParser
from osworld_gym.commands.output import finished

#: the modules of the commands, in the order of the help; each has the name of its command
COMMANDS = (
    "train",
    "rollouts",
    "engine",
    "status",
    "evaluate",
    "analyze",
    "why",
    "view",
    "export",
    "record",
    "experts",
    "plan",
    "doctor",
)
_OTHER_NAMES = {"eval": "evaluate"}  #: command → module


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: the command line; None: the process's own.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    return finished(lambda: _run(given), "bepa")


def _run(arguments: list[str]) -> int:
    options = parse_settings(_parser(arguments), arguments)
    options.arguments = arguments
    from bepa_torchrl.failures import BAD_INPUT, guarded
    from osworld_gym.extensions import import_modules
    from osworld_gym.extras import missing_extra

    problem = missing_extra("bepa", "training") if options.needs_extra else None
    if problem:
        print(f"bepa: {problem}", file=sys.stderr)
        return BAD_INPUT
    name = " ".join(["bepa", options.command, *([options.action] if "action" in options else [])])

    def program() -> int:
        import_modules(getattr(options, "imports", ()))
        return int(options.program(options))

    return guarded(program, name)


def _parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command that the arguments name; without one, of all commands."""
    parser: argparse.ArgumentParser = CommandParser(
        prog="bepa", description="BEPA: training computer-use agents on TorchRL."
    )
    parser.set_defaults(needs_extra=True)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    named = _OTHER_NAMES.get(arguments[0], arguments[0]) if arguments else None
    for command in (named,) if named in COMMANDS else COMMANDS:
        import_module(f"bepa_torchrl.commands.{command}").add(commands)
    if named in MOVED:
        add_moved(commands, named)
    return parser


if __name__ == "__main__":
    sys.exit(main())
