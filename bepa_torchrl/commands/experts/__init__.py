"""``bepa experts``: what is made of an expert's logs. Each action is a module with an ``add(actions)``."""

from __future__ import annotations

import argparse

from bepa_torchrl.commands.experts import check, convert, plan, selfroll, split


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its actions."""
    text = "an expert's logs: what is in them, and what can be made of them"
    parser = commands.add_parser("experts", help=text, description=text)
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for action in (check, plan, convert, selfroll, split):
        action.add(actions)
