"""``bepa record``: the oracles of a suite's tasks on many desktops, recorded into a folder of traces."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from bepa_torchrl.commands.arguments import check_new
from osworld_gym.commands.arguments import add_import, screen_size


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "record the oracles of a suite's tasks on many desktops; continues where an earlier run stopped"
    parser = commands.add_parser("record", help=text, description=text)
    parser.add_argument("folder", type=Path, help="the folder of traces; made if missing, extended if not")
    parser.add_argument("--suite", default="varied", help="a suite whose tasks have oracles (default: varied)")
    parser.add_argument("--split", default="all", help="split or tag of the suite (default: all)")
    parser.add_argument("--style", action="append", choices=("native", "expert"), help="default: native")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of seeds per task (default: 1)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="the first seed (default: 0)")
    add_import(parser)
    parser.add_argument("--provider", help="default: sim for the tasks of the simulated desktop, otherwise local")
    parser.add_argument(
        "--screen", type=screen_size, default=(640, 360), metavar="WxH", help="not for sim (default: 640x360)"
    )
    parser.add_argument("--desktops", type=int, default=8, help="number of desktops in parallel (default: 8)")
    parser.set_defaults(program=record)


def record(options: argparse.Namespace) -> int:
    """Records what the folder lacks. Exit code 3 if desktops failed so often that an episode is missing."""
    from bepa_torchrl.experts.recording import Episode, record_all
    from bepa_torchrl.failures import INFRASTRUCTURE
    from osworld_gym.desktops.registry import make_desktop
    from osworld_gym.tasks.providers import SIM, check_tasks_of_provider, default_provider
    from osworld_gym.tasks.suites.registry import load_suite
    from osworld_gym.tasks.usable import not_supported, usable

    if options.seeds < 1 or options.first_seed < 0:
        raise ValueError(f"expected --seeds >= 1, --first-seed >= 0; got {options.seeds}, {options.first_seed}")
    if options.desktops < 1:
        raise ValueError(f"--desktops: expected 1 or more, got {options.desktops}")
    if not options.folder.is_dir():
        check_new(options.folder, "folder")
    suite = load_suite(options.suite)
    listed = suite.split(options.split)
    tasks, left_out = usable(suite, listed, not_supported(listed), options.split)
    if left_out:
        print(f"bepa record: {left_out}", file=sys.stderr)
    provider = options.provider or default_provider(tasks)
    check_tasks_of_provider(options.suite, tasks, provider)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    episodes = [Episode(task, style, s) for s in seeds for style in options.style or ["native"] for task in tasks]
    size = {} if provider == SIM else dict(zip(("width", "height"), options.screen, strict=True))
    make = partial(make_desktop, provider, **size)
    done = record_all(options.folder, episodes, make, desktops=options.desktops, note=_say)
    for name in done.unsolved:
        print(f"bepa record: the oracle did not solve {name}; it is not stored", file=sys.stderr)
    for problem in done.lost:
        print(f"bepa record: not recorded: {problem}", file=sys.stderr)
    print(f"{options.folder}: {done}")
    return INFRASTRUCTURE if done.lost or done.unsolved else 0


def _say(line: str) -> None:
    """Prints a line in one write: several threads print, and ``print`` writes the end of a line by itself."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
