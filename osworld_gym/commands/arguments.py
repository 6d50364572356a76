"""Arguments that several commands have; a wrong value is reported in one line with the expected form, exit status 2."""

from __future__ import annotations

import argparse
import errno
import re
import socket
from collections.abc import Iterator, Sequence

from osworld_gym.errors import did_you_mean

LARGEST_PORT = 65_535


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests the nearest name for an unknown command or choice; so do those of its commands."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), known)
        raise argparse.ArgumentError(action, f"expected one of {', '.join(known)}, got {str(value)!r}{hint}")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The parsed command line. An unknown option ends the program with status 2, and the nearest known one."""
    options, rest = parser.parse_known_args(words)
    if rest:
        parser.error(unrecognized(parser, words, rest))
    return options


def unrecognized(parser: argparse.ArgumentParser, words: Sequence[str], unknown: Sequence[str]) -> str:
    """The error about unknown arguments.

    Args:
        parser: the program's parser.
        words: the whole command line; the options of the commands that it names are suggested.
        unknown: those of ``words`` that the parser does not know.
    """
    known = list(_options(parser, words))
    hints = (did_you_mean(word.partition("=")[0], known) if word.startswith("--") else "" for word in unknown)
    return "unrecognized arguments: " + " ".join(f"{word}{hint}" for word, hint in zip(unknown, hints, strict=True))


def _options(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """The long options of a parser, and of those of its commands that are among the words."""
    for action in parser._actions:
        yield from (name for name in action.option_strings if name.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for name in {*words} & {*action.choices}:
                yield from _options(action.choices[name], words)


def add_import(parser: argparse.ArgumentParser) -> None:
    """Adds ``--import MODULE``; the program imports the modules before it runs the command."""
    text = "a module of your own that adds providers, suites or metrics (docs/howto); may be given again"
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help=text)


def screen_size(text: str) -> tuple[int, int]:
    """Parses ``1920x1080`` into (width, height) in pixels."""
    size = re.fullmatch(r"(\d+)[x×](\d+)", text.strip())
    if size is None:
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT in pixels, as 1920x1080, got {text!r}")
    return int(size[1]), int(size[2])


def port_number(text: str) -> int:
    """Parses a TCP port; 0 means a free port."""
    if not (text.isascii() and text.isdigit()) or int(text) > LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to {LARGEST_PORT}, or 0 for a free one, got {text!r}")
    return int(text)


def require_free(port: int) -> None:
    """Raises ValueError if this user cannot listen on that port of 127.0.0.1."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise ValueError(f"port {port} of 127.0.0.1 {problem}; fix: another --port, or --port 0") from error
