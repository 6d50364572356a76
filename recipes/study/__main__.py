"""The comparison of methods: runs what is missing, two at a time, and rebuilds the pages of docs from the results.

python -m recipes.study --part core            # GRPO, BEPA, LEVEL-1 and fine-tuning, 5 seeds; then the pages
python -m recipes.study --base tiny_free --despite-gate --tune   # the search for hyper-parameters of all parts, on the
                                                                 # policy on which it was begun: days
python -m recipes.study                        # all parts, with these: days
python -m recipes.study --page                 # only the pages
python -m recipes.study --base build/free/checkpoint   # another base policy: gate, search, runs, pages
python -m recipes.study --bed terse --part sensitivity --seeds 0 1 2   # the first base policy

A run may be interrupted at any time: the next call goes on. A base policy that fails the gate is refused, but for
--despite-gate: the whole study, whose page begins with the conditions that fail.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.failures import guarded
from recipes.study.estimates import MIN_SEEDS
from recipes.study.free_base import free_base, measure_missing, note_base
from recipes.study.free_bed import RESULTS, WORK, free_search
from recipes.study.free_bed import SEEDS as FREE_SEEDS
from recipes.study.free_page import write_free_page
from recipes.study.local import LOCAL
from recipes.study.records import DETAILS, HISTORY, TERSE_RESULTS
from recipes.study.replay import keep
from recipes.study.runner import Run, run_missing
from recipes.study.search import Search, tune
from recipes.study.summary_page import write_summary
from recipes.study.terse_page import write_page
from recipes.study.tuning import TERSE
from recipes.study.variants import FREE_PARTS, PARTS, SEEDS, VARIANTS, Variant
from recipes.tiny.checkpoint import file_hashes, read_manifest
from recipes.tiny.gate import gate_failures

BASE = "tiny_plans"  #: the base policy that the study starts from, unless it is given another one
NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)  #: of a base policy, which becomes a folder


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m recipes.study", description=__doc__.split("\n")[0])
    found.add_argument("--bed", choices=["terse", "free"], default="free", help="thoughts of the base policy")
    found.add_argument(
        "--base", type=Path, metavar="CHECKPOINT", help=f"folder or shipped name of the base policy (default: {BASE})"
    )
    found.add_argument(
        "--name", help="of that policy's results (default: the shipped name, or by the seed of its weights)"
    )
    found.add_argument("--look", action="store_true", help="even if it is unfinished, not measured or fails its gate")
    found.add_argument("--despite-gate", action="store_true", help="the whole study even if it fails its gate")
    found.add_argument("--part", choices=sorted({*PARTS, *FREE_PARTS}), help="default: all parts; bed terse: methods")
    found.add_argument("--variants", nargs="+", choices=list(VARIANTS), metavar="VARIANT", help="only these")
    found.add_argument("--seeds", type=int, nargs="+", help=f"default: {SEEDS}; long: {FREE_SEEDS['long']}")
    found.add_argument("--work", type=Path, help="checkpoints and logs of the runs (default: runs/study...)")
    found.add_argument(
        "--out", type=Path, help="result files and pages (default: docs/results/free or terse, pages in docs)"
    )
    found.add_argument("--processes", type=int, default=2)
    found.add_argument("--tune", action="store_true", help="search for hyper-parameters")
    found.add_argument("--page", action="store_true", help="only rebuild the pages")
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


def check_options(options: argparse.Namespace) -> None:
    """Checks what belongs together, and that there are enough seeds for an interval.

    Raises:
        ValueError: the message names the option.
    """
    free = options.bed == "free"
    if options.part is not None and options.part not in (FREE_PARTS if free else PARTS):
        known = ", ".join(FREE_PARTS if free else PARTS)
        raise ValueError(f"--part {options.part}: the bed {options.bed} has the parts {known}")
    if not free and (options.base or options.name or options.look or options.despite_gate):
        raise ValueError(
            "--base, --name, --look and --despite-gate are for --bed free; --bed terse starts from the policy tiny"
        )
    if options.name is not None and not NAME.fullmatch(options.name):
        raise ValueError(f"--name: expected letters, digits, '-' and '_', got {options.name!r}")
    if options.look and options.despite_gate:
        raise ValueError(
            "--look measures no gate and searches nothing, --despite-gate does both; leave one of them out"
        )
    if free and options.replay:
        raise ValueError("--replay is of the first base policy; add --bed terse")
    if options.tune and options.seeds is not None:
        raise ValueError("--seeds: the trials of --tune have seeds of their own; leave one of them out")
    look = options.tune or options.replay or options.look or options.part == "further"
    if options.seeds is not None and len(set(options.seeds)) < MIN_SEEDS and not look:
        raise ValueError(f"--seeds: an interval requires at least {MIN_SEEDS} different seeds, got {options.seeds}")


def terse_study(options: argparse.Namespace) -> int:
    """The study from the first base policy; the exit code."""
    measured = base_figures()
    work, out = options.work or Path("runs/study"), options.out or TERSE_RESULTS
    if options.replay:
        keep(work / "replay")
        return 0
    names = options.variants or [variant.name for variant in PARTS[options.part or "methods"]]
    variants = [VARIANTS[name] for name in names]
    if options.tune:
        named = options.variants or options.part
        search = TERSE.only(variant.tuned_as or variant.algo for variant in variants) if named else TERSE
        return int(not tune(search, work, processes=options.processes, log=say))
    failed = 0
    if not options.page:
        runs = TERSE.runs_of(variants, options.seeds or SEEDS)
        failed = run_missing(runs, work, out, processes=options.processes, log=say)
    if options.out is None:
        write_page(out, HISTORY, measured, docs=HISTORY.parents[1])
    else:
        write_page(out, out.parent / HISTORY.name, measured)
    return int(failed > 0)


def free_study(options: argparse.Namespace) -> int:
    """The study from a base policy that thinks in free words: gate, search, runs, page; the exit code.

    Raises:
        ValueError: the base policy is refused; see :func:`recipes.study.free_base.free_base`.
    """
    failed = 0
    if not options.page:
        base = free_base(options.base or Path(BASE), look=options.look, name=options.name)
        name = base.name.removeprefix("free/")
        work, out = options.work or WORK / name, (options.out or RESULTS) / name
        if options.look:
            note_base(base, out)
        elif failures := measure_missing(base, out, processes=options.processes, log=say).failures():
            problem = f"{base.name} fails its gate: {'; '.join(failures)}"
            if not options.despite_gate:
                raise ValueError(f"{problem}; with --despite-gate it is studied all the same, and the page says so")
            say(problem)
        search = free_search(base)
        search.check_weights()
        variants = [variant for part in free_parts(options).values() for variant in part]
        search = search.only(variant.tuned_as or variant.algo for variant in variants)
        if options.tune or not (search.grids.keys() <= search.read().keys() or options.look):
            if not tune(search, work, processes=options.processes, log=say):
                return 1
            if options.tune:
                return 0
        failed = run_missing(free_runs(search, options), work, out, processes=options.processes, log=say)
    write_pages(options.out)
    return int(failed > 0)


def write_pages(out: Path | None) -> None:
    """Writes the pages of the results, and the section of real desktops.

    Args:
        out: of the result files and pages; None: those of the repository.
    """
    folder, pages, local = (out, out, None) if out else (RESULTS, DETAILS.parent, LOCAL)
    page, summary = pages / DETAILS.name, pages / "results.md"
    say(f"written: {page}" if write_free_page(folder, page, local) else "no result file: no page")
    if write_summary(folder, summary, page.name):
        say(f"written: {summary}")


def free_parts(options: argparse.Namespace) -> dict[str, Sequence[Variant]]:
    """Part → its variants, of those that the command line asks for."""
    if options.variants:
        return {"": [VARIANTS[name] for name in options.variants]}
    return {part: FREE_PARTS[part] for part in ([options.part] if options.part else FREE_PARTS)}


def free_runs(search: Search, options: argparse.Namespace) -> list[Run]:
    """The runs of the command line, in the order in which they start."""
    return [
        run
        for part, variants in free_parts(options).items()
        for run in search.runs_of(variants, options.seeds or FREE_SEEDS.get(part, SEEDS))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a run failed, 2 for bad input, 3 for infrastructure."""
    options = parser().parse_args(arguments)

    def job() -> int:
        check_options(options)
        return free_study(options) if options.bed == "free" else terse_study(options)

    return guarded(job, "study")


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
