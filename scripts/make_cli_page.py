"""Makes docs/cli.md, the page "Command line", from the argparse parsers of both programs.

    python -m scripts.make_cli_page

A test compares the page with the parsers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bepa_torchrl import cli as bepa
from osworld_gym import cli as osworld_gym

PAGE = Path("docs/cli.md")
HEAD = """# Command line

Two programs: `osworld-gym` for desktops and tasks, `bepa` for training. `--help` after any command prints what is
listed here. This page is made from the programs' own arguments (`python -m scripts.make_cli_page`).

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | `osworld-gym`: a check failed |
| 2 | bad input: an argument, a setting or a file; also a run folder in use, and a training that diverged |
| 3 | infrastructure: a desktop, the disk, a GPU's memory |
| 130 | interrupted (Ctrl-C) |

Settings are words `key=value`, after the command and in any order; [configs/train.yaml] lists them. Quote words with
brackets: `'compare=[]'`.
""".replace("[configs/train.yaml]", "`configs/train.yaml`")


def page() -> str:
    """The page's text."""
    parsers = (osworld_gym._parser(), bepa._parser())
    return HEAD + "".join(section for parser in parsers for section in sections(parser, 2))


def sections(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """The sections of a parser and of its commands, without those that only say where a command went."""
    lines = [f"\n{'#' * level} {parser.prog}\n"]
    if parser.description:
        lines += [f"\n{plain(parser.description)}\n"]
    if rows := list(arguments(parser)):
        lines += ["\n| argument | meaning |\n|---|---|\n", *rows]
    yield "".join(lines)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            listed = {choice.dest for choice in action._choices_actions}
            for name, command in action.choices.items():
                if name in listed:
                    yield from sections(command, level + 1)


def arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A line of the table for each argument, without ``--help``."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            commands = [f"`{choice.dest}`: {plain(choice.help or '')}" for choice in action._choices_actions]
            yield f"| `{action.metavar or 'command'}` | {'<br>'.join(commands)} |\n"
            continue
        name = ", ".join(f"`{option}`" for option in action.option_strings) or f"`{value_name(action)}`"
        value = f" `{value_name(action)}`" if action.option_strings and action.nargs != 0 else ""
        text = plain((action.help or "") % {**vars(action), "prog": parser.prog})
        yield f"| {name}{value} | {text}{' (required)' if action.option_strings and action.required else ''} |\n"


def value_name(action: argparse.Action) -> str:
    """What stands for the argument's value."""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    return (metavar if isinstance(metavar, str) else " ".join(metavar)).replace("|", "\\|")


def plain(text: str) -> str:
    """A help text as one line of Markdown; what its author marked as code with two backticks has one."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
