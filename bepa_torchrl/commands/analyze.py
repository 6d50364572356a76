"""``bepa analyze RUN... --out FOLDER``: the paper's figures and tables from any runs, as PNG, SVG and CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from bepa_torchrl.commands.arguments import check_new
from osworld_gym.commands.arguments import add_import
from osworld_gym.tasks.suites.registry import task_ids

_HELP = "the paper's figures and tables from runs, as PNG, SVG and CSV"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("analyze", help=_HELP, description=f"Writes {_HELP}.")
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run's folder, or that of one of its methods"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder that does not exist yet")
    parser.add_argument(
        "--score",
        action="store_true",
        help="score the traces by the base policy for the histogram, as in the paper (loads the policy)",
    )
    parser.add_argument(
        "--worker",
        action="store_true",
        help="with --score: Agent S2's raw traces as single turns under its worker's prompt, as in the paper (default: "
        "under the policy's own prompts)",
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        metavar="FILE",
        help="tasks that the histogram is of: a list {domain: [task id, ...]} such as updated.json (D_upd) of "
        "bepa experts split --run (default: all)",
    )
    parser.add_argument(
        "--split",
        type=Path,
        metavar="FOLDER",
        help="folder of bepa experts split: the domain breakdown is of training and held-out tasks, since its "
        "manifest.json has what the expert solved of both (default: training tasks), and expert-only tasks are its own",
    )
    parser.add_argument("--cases", type=int, default=3, metavar="N", help="case sheets per run (default: 3)")
    add_import(parser)
    parser.set_defaults(program=analyze_runs)


def analyze_runs(options: argparse.Namespace) -> int:
    """Writes the folder and prints what is in it and what is missing."""
    if options.cases < 0:
        raise ValueError(f"--cases: expected 0 or more, got {options.cases}")
    if options.worker and not options.score:
        raise ValueError("--worker is read with --score only; add it, or leave --worker out")
    check_new(options.out, "--out")
    tasks = None if options.tasks is None else task_ids(options.tasks)
    from bepa_torchrl.analysis.figures.runs import methods_of_runs

    methods = methods_of_runs(options.runs)
    # torch and others, after what can be checked without them
    from bepa_torchrl.analysis.figures.analyze import analyze, report
    from osworld_gym.atomic import new_folder
    from osworld_gym.commands.output import printable

    with new_folder(options.out) as folder:
        done = analyze(
            methods,
            folder,
            score=options.score,
            worker=options.worker,
            cases=options.cases,
            tasks=tasks,
            split=options.split,
        )
    print("\n".join(printable(line) for line in report(options.out, done)))
    return 0
