"""Turns finished runs of ``make train-local`` into result files, and those into a section of results-details.md.

python -m recipes.study.local runs/a runs/b      # methods and seeds of these runs
python -m recipes.study.local                    # only the section, from the files that are there

:mod:`recipes.study.local_runs` runs the whole comparison.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.section import replaced_section
from bepa_torchrl.experiment.config import read_settings
from bepa_torchrl.failures import guarded
from bepa_torchrl.monitoring.status import utilisation
from bepa_torchrl.storage.json_lines import read_lines
from osworld_gym.atomic import write_text
from recipes.study.bases import base_hash
from recipes.study.local_page import TITLE, local_section
from recipes.study.records import DETAILS, FOLDER, Result, ResultError
from recipes.study.runner import result_of

LOCAL = FOLDER / "local"  #: result files of real desktops, apart from those of the simulated one


def results_of(run: Path) -> list[Result]:
    """The results of a run's methods.

    Raises:
        ResultError: the run is not finished, or is not one on desktops that were measured.
    """
    if not (run / "results.json").exists():
        raise ResultError(f"{run}: expected a finished run with results.json; go on with resume=true")
    return [_result(path.parent) for path in sorted(run.glob("*/config.yaml"))]


def _result(folder: Path) -> Result:
    settings = read_settings(folder / "config.yaml")
    found = result_of(settings.algo.name, folder, settings, base_hash(settings.policy.checkpoint))
    return with_desktops(found, folder)


def with_desktops(result: Result, folder: Path) -> Result:
    """The result with the steps, the seconds of collecting and the utilisation of its desktops among its totals.

    Args:
        result: a run's.
        folder: the run's, with the record of its iterations.

    Raises:
        ResultError: its desktops were not measured.
    """
    lines = [line for line in read_lines(folder / "iterations.jsonl") if line["phase"] == "rl"]
    share = utilisation(lines)
    if share is None:
        raise ResultError(f"{folder}: no iteration has collect/busy_seconds; run it again with collect.mode=sync")
    totals = {"steps": "collect/steps", "seconds_collect": "seconds_collect"}
    more = {name: sum(line[key] for line in lines) for name, key in totals.items()}
    return replace(result, totals={**result.totals, **more, "utilisation": share})


def write_local_section(folder: Path, page: Path) -> None:
    """Replaces the section of the page, or appends it.

    Raises:
        ResultError: there is no result, or they do not belong together.
    """
    lines = local_section(folder)
    if not lines:
        raise ResultError(f"{folder}: no result file; give the folders of finished runs")
    text = page.read_text(encoding="utf-8") if page.exists() else "# Results\n"
    write_text(page, replaced_section(text, TITLE, "\n".join(lines)))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m recipes.study.local", description=__doc__.split("\n")[0])
    found.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a finished run")
    found.add_argument("--out", type=Path, default=LOCAL, help="result files")
    found.add_argument("--page", type=Path, default=DETAILS, help="page with the section")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for bad input, 3 for infrastructure."""
    options = parser().parse_args(arguments)

    def job() -> int:
        results = [result for run in options.runs for result in results_of(run)]
        for result in results:
            result.write(options.out)
            print(options.out / result.path)
        write_local_section(options.out, options.page)
        print(options.page)
        return 0

    return guarded(job, "study.local")


if __name__ == "__main__":
    sys.exit(main())
