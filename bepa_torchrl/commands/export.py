"""``bepa export RUN --format atif|jsonl|datasets --out FOLDER``: a run's episodes for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from bepa_torchrl.commands.arguments import check_new

_HELP = "write a run's episodes with images, token ids and log-probs for other programs"
_ABOUT = "Writes the episodes of a run or an evaluation with images, token ids and log-probs for other programs."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("export", help=_HELP, description=_ABOUT)
    parser.add_argument("run", type=Path, help="the folder of a run, of one of its methods, or of bepa eval")
    parser.add_argument(
        "--format",
        required=True,
        choices=("atif", "jsonl", "datasets"),
        help="atif: a trial folder per episode; jsonl: a line per episode; datasets: a row per step, for Hugging Face",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder that does not exist yet")
    parser.set_defaults(program=export_run)


def export_run(options: argparse.Namespace) -> int:
    """Writes the folder and prints what is in it."""
    check_new(options.out, "--out")
    from bepa_torchrl.analysis.export.atif import write_atif
    from bepa_torchrl.analysis.export.episodes import export
    from bepa_torchrl.analysis.export.lines import write_lines, write_rows
    from bepa_torchrl.analysis.records import find_records

    write = {"atif": write_atif, "jsonl": write_lines, "datasets": write_rows}[options.format]
    done = export(find_records(options.run), options.out, write)
    print(f"{options.out}: {done}")
    return 0
