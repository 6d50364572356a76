"""``bepa convert``: expert traces as rows in the policy's format (D_conv)."""

from __future__ import annotations

import argparse
from pathlib import Path

from bepa_torchrl.commands.arguments import add_settings, check_new


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("convert", help="expert traces → rows in the policy's format (D_conv)")
    add_traces(parser)
    add_settings(parser)
    parser.set_defaults(program=convert_traces)


def add_traces(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the source of the traces and for the cache folder."""
    parser.add_argument("traces", help="a folder of expert traces or logs, or NAME:FOLDER")
    parser.add_argument("out", type=Path, help="the cache folder to write; it must not exist")


def convert_traces(options: argparse.Namespace) -> int:
    """Writes D_conv as a cache folder."""
    from bepa_torchrl.experiment.config import load_config

    settings = load_config(options.overrides, config_dir=options.config_dir)
    check_new(options.out, "folder")
    from bepa_torchrl.experiment.environment import check_checkpoint
    from bepa_torchrl.experiment.start.tasks import make_tasks
    from bepa_torchrl.experts.sources import read_source

    check_checkpoint(settings.policy.checkpoint)
    traces = [trace for trace in read_source(options.traces, make_tasks(settings).suite.tasks) if trace.success]
    from bepa_torchrl.experiment.factory import make_policy  # torch, after what can be checked without it
    from bepa_torchrl.experiment.preparation import convert_all

    cache = convert_all(make_policy(settings, seed=settings.seed), traces, settings.policy.action_text)
    cache.dumps(options.out)
    print(f"{len(cache)} of {len(traces)} traces converted: {options.out}")
    return 0
