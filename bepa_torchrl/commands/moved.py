"""Commands that have another name now; each says which, and ends with exit code 2."""

from __future__ import annotations

import argparse

#: old name → what replaced it
MOVED = {
    "convert": "bepa experts convert SOURCE --out FOLDER key=value ...",
    "selfroll": "bepa experts selfroll SOURCE --out FOLDER key=value ...",
}


def add_moved(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    """Adds an old name, without a line in the help."""
    parser = commands.add_parser(name, add_help=False, prefix_chars="\0")
    parser.add_argument("rest", nargs="*")
    parser.set_defaults(program=moved, needs_extra=False)


def moved(options: argparse.Namespace) -> int:
    """Raises ValueError with the new name."""
    raise ValueError(f"this command is now: {MOVED[options.command]}")
