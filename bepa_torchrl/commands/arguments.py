"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from osworld_gym.commands.arguments import unrecognized

_NO_DASHES = "settings have no dashes: KEY=VALUE"


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds ``key=value ...`` and ``--config-dir``."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, see configs/train.yaml")
    parser.add_argument("--config-dir", type=Path, help="a folder with further env/, policy/, algo/, experiment/ files")


def parse_settings(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; options such as ``--config-dir`` may be anywhere among the settings.

    argparse ends a list of settings at the first option; what comes after that is unknown to it, and is added here.
    """
    options, rest = parser.parse_known_args(arguments)
    unknown = [each for each in rest if each.startswith("-")] if hasattr(options, "overrides") else rest
    if unknown:
        words = sys.argv[1:] if arguments is None else arguments
        said = unrecognized(parser, words, unknown)
        parser.error(said if said.endswith(")") or not hasattr(options, "overrides") else f"{said}; {_NO_DASHES}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def check_new(path: Path, option: str) -> None:
    """Checks that a path does not exist and can be made; nothing is left behind.

    Args:
        path: the path of a file or folder that a command writes at its end.
        option: the argument that names another.

    Raises:
        ValueError: it exists, or cannot be made.
    """
    from osworld_gym.atomic import check_writable

    try:
        if path.exists():
            raise ValueError(f"{path} exists and is not overwritten; give another {option}")
        check_writable(path.absolute().parent)
    except OSError as error:
        raise ValueError(f"{path} cannot be made ({error.strerror or error}); give another {option}") from error
