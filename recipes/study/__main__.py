"""The comparison of methods: runs what is missing, two at a time, and rebuilds docs/results.md from the result files.

python -m recipes.study                        # all methods, 5 seeds; then the page
python -m recipes.study --part sensitivity --seeds 0 1 2
python -m recipes.study --part further --seeds 0   # a first look: single runs without an interval
python -m recipes.study --tune                 # the search for hyper-parameters on the validation tasks
python -m recipes.study --page                 # only the page

A run may be interrupted at any time: the next call goes on. A base policy that fails the gate is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.failures import guarded
from recipes.study.estimates import MIN_SEEDS
from recipes.study.local import write_local_section
from recipes.study.page import write_page
from recipes.study.records import FOLDER, ROOT
from recipes.study.replay import keep
from recipes.study.runner import run_missing
from recipes.study.tuning import choose, finals, runs_of, trials
from recipes.study.variants import PARTS, SEEDS, VARIANTS
from recipes.tiny.checkpoint import file_hashes, read_manifest
from recipes.tiny.gate import gate_failures


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m recipes.study", description=__doc__.split("\n")[0])
    found.add_argument("--part", choices=list(PARTS), default="methods")
    found.add_argument("--variants", nargs="+", choices=list(VARIANTS), metavar="VARIANT", help="only these")
    found.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    found.add_argument("--work", type=Path, default=Path("runs/study"), help="checkpoints and logs of the runs")
    found.add_argument("--out", type=Path, default=FOLDER, help="result files")
    found.add_argument("--processes", type=int, default=2)
    found.add_argument("--tune", action="store_true", help="search for hyper-parameters")
    found.add_argument("--page", action="store_true", help="only rebuild the page")
    found.add_argument("--replay", action="store_true", help="keep the metrics of the run that a test repeats")
    return found


def base_figures() -> dict[str, object]:
    """The measured figures of the shipped base policy, and the factor of its logits.

    Raises:
        ValueError: its files are not those that were measured, or it fails the gate.
    """
    folder = tiny_checkpoint()
    manifest = read_manifest(folder)
    if file_hashes(folder) != manifest["sha256"]:
        raise ValueError(f"{folder}: the files are not those of manifest.json; restore them or run `make tiny`")
    failures = gate_failures(manifest["measured"])
    if failures:
        raise ValueError("the base policy fails the gate, so that methods cannot be compared: " + "; ".join(failures))
    return {**manifest["measured"], "sharpness": manifest["recipe"]["sharpness"]}


def rebuild(folder: Path, page: Path, measured: Mapping[str, object]) -> None:
    """Rebuilds the page; only its section on real desktops if there are results of real desktops alone."""
    local = folder / "local"
    if not any(folder.glob("*.json")) and any(local.glob("*.json")):
        write_local_section(local, page)
        return
    write_page(folder, page, measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a run failed, 2 for bad input, 3 for infrastructure."""
    options = parser().parse_args(arguments)

    def job() -> int:
        measured = base_figures()
        look = options.tune or options.replay or options.part == "further"
        if len(set(options.seeds)) < MIN_SEEDS and not look:
            raise ValueError(f"--seeds: an interval requires at least {MIN_SEEDS} different seeds, got {options.seeds}")
        if options.replay:
            keep(options.work / "replay")
            return 0
        if options.tune:
            out = options.work / "tuning"
            for step in (trials, partial(finals, out)):
                if run_missing(step(), options.work, out, processes=options.processes, log=say):
                    return 1
            choose(out)
            return 0
        failed = 0
        if not options.page:
            names = options.variants or [variant.name for variant in PARTS[options.part]]
            runs = runs_of([VARIANTS[name] for name in names], options.seeds)
            failed = run_missing(runs, options.work, options.out, processes=options.processes, log=say)
        rebuild(options.out, ROOT / "docs" / "results.md", measured)
        return int(failed > 0)

    return guarded(job, "study")


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
