"""Commands that have another name now; each says which, and ends with exit code 2."""

from __future__ import annotations

import argparse

#: old name → what replaced it
_MOVED = {
    "convert": "bepa experts convert SOURCE --out FOLDER key=value ...",
    "selfroll": "bepa experts selfroll SOURCE --out FOLDER key=value ...",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the old names, without a line in the help."""
    for name in _MOVED:
        parser = commands.add_parser(name, add_help=False, prefix_chars="\0")
        parser.add_argument("rest", nargs="*")
        parser.set_defaults(program=moved, needs_extra=False)


def moved(options: argparse.Namespace) -> int:
    """Raises ValueError with the new name."""
    raise ValueError(f"this command is now: {_MOVED[options.command]}")
