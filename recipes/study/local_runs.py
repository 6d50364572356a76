"""The comparison of methods on real desktops: runs what is missing, one at a time, then makes result files and page.

python -m recipes.study.local_runs --tune          # the search for hyper-parameters on the validation tasks
python -m recipes.study.local_runs                 # BEPA, GRPO, LEVEL-1 and BEPA with an anchor, five seeds each
python -m recipes.study.local_runs --seeds 0 1 2
python -m recipes.study.local_runs --variants bepa grpo --tune
python -m recipes.study.local_runs --variants bepa_once bepa_slow      # BEPA: half as many updates, a lower rate

A run may be interrupted at any time: the next call goes on with its preparation or iteration. The result files and the
page are replaced when all runs are there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bepa_torchrl.failures import guarded
from recipes.study.local import LOCAL, with_desktops, write_local_section
from recipes.study.local_page import check_table
from recipes.study.local_variants import CHOICES, CONTROLS, METHODS, SEEDS, VARIANTS, search
from recipes.study.records import DETAILS, Result, kept_settings, read_result
from recipes.study.runner import Run, run_missing, summarise, up_to_date
from recipes.study.search import tune


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m recipes.study.local_runs", description=__doc__.split("\n")[0])
    methods, controls = ([variant.name for variant in each] for each in (METHODS, CONTROLS))
    found.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=methods, metavar="VARIANT",
                       help=f"default: all but {', '.join(controls)}")  # fmt: skip
    found.add_argument("--seeds", type=int, nargs="+", help=f"default: {SEEDS}")
    found.add_argument("--tune", action="store_true", help="search for hyper-parameters instead")
    found.add_argument("--work", type=Path, default=Path("runs/study-local"), help="checkpoints and logs of the runs")
    found.add_argument("--out", type=Path, default=LOCAL, help="result files")
    found.add_argument("--page", type=Path, default=DETAILS, help="page with the section")
    found.add_argument("--choices", type=Path, default=CHOICES, help="file of the tuned settings")
    found.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="settings",
                       help="further settings of every run, to try the command; give other folders then")  # fmt: skip
    return found


def study(runs: Sequence[Run], work: Path, out: Path, page: Path) -> int:
    """Makes the results of all runs, and the page from them; returns the number of failed runs.

    Until all are there, new results are in the folder ``results`` of ``work``, since they do not share a table with
    those of other settings that ``out`` may have.

    Raises:
        ResultError: a result that would stay in ``out`` was made with other settings; before any run.
    """
    check_others(runs, out)
    fresh = work / "results"
    missing = [run for run in runs if not up_to_date(run, out)]
    if failed := run_missing(missing, work, fresh, processes=1, log=say, summary=summary):
        return failed
    for run in missing:
        read_result(fresh / f"{run.name}.json").write(out)
    write_local_section(out, page)
    say(str(page))
    return 0


def check_others(runs: Sequence[Run], out: Path) -> None:
    """Checks that the results in ``out`` that the runs do not replace may stand in one table with theirs.

    Raises:
        ResultError: one may not, or is damaged.
    """
    names = {run.name for run in runs}
    for result in (read_result(path) for path in sorted(out.glob("*.json")) if path.stem not in names):
        run = next((run for run in runs if run.variant.name == result.variant), runs[0])
        check_table(result, run.variant.name, kept_settings(run.settings()), f"{run.name} will be")


def summary(run: Run, work: Path) -> Result:
    """A finished run's result, with what its desktops took."""
    return with_desktops(summarise(run, work), work / run.group() / run.variant.name)


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a run failed, 2 for bad input, 3 for infrastructure."""
    options = parser().parse_args(arguments)
    variants = [VARIANTS[name] for name in options.variants]
    wanted = replace(search(*options.settings), choices=options.choices).only(variant.tuned_as for variant in variants)

    def job() -> int:
        if options.tune:
            if options.seeds is not None:
                raise ValueError(f"--seeds: the trials of --tune have the seeds {wanted.seeds}; leave one of them out")
            return int(not tune(wanted, options.work, processes=1, log=say, summary=summary))
        for variant in variants:
            if not wanted.tuned(variant.tuned_as):
                raise ValueError(f"{variant.name} has no tuned settings in {wanted.choices}; run --tune first")
        runs = wanted.runs_of([replace(variant, common=wanted.common) for variant in variants], options.seeds or SEEDS)
        return int(study(runs, options.work, options.out, options.page) > 0)

    return guarded(job, "study.local_runs")


if __name__ == "__main__":
    sys.exit(main())
