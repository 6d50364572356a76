"""docs/results-details.md and the figures, from the result files alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_text
from recipes.study.base_page import base_section
from recipes.study.claims import claims_table
from recipes.study.estimates import MIN_SEEDS, Study
from recipes.study.figures import CURVES, DYNAMICS, draw, draw_differences
from recipes.study.further_page import further_section
from recipes.study.local_page import TITLE, local_section
from recipes.study.long_page import long_section
from recipes.study.markdown import wrapped
from recipes.study.notes import filled
from recipes.study.provenance import commits_text
from recipes.study.records import Result, ResultError, check_same, read_result
from recipes.study.scratch_page import scratch_section
from recipes.study.solvable import solvable_section
from recipes.study.staleness_page import staleness_section
from recipes.study.tables import difference_table, success_table
from recipes.study.tuning import TERSE
from recipes.study.variants import PARTS, VARIANTS, Variant

NOTES = "notes.txt"  #: what the tables show, by hand in Markdown (:mod:`recipes.study.notes`); no page of its own
SHOWN = ("grpo", "bepa", "level1", "replacement")  #: in the figures over training, where more would be unreadable
#: of parts that are not shown by :func:`part_section`
_SECTIONS: Mapping[str, Callable[[Study, Path], list[str]]] = {
    "long": long_section,
    "staleness": staleness_section,
    "further": lambda study, _: further_section(study),
}
_TUNING = """
`python -m recipes.study --tune`: every method got four trials of 12 iterations on the 32 validation tasks (one seed,
16 episodes per task at the end), of which the best two went on to 40; SFT alone has no iterations. Methods whose winner
was at an edge of the first four got two more (the last two of six), of which those among the best two went on, too:
GRPO, BEPA, replacement and ARPO had fewer trials. `sft_self` got another two, 40 and 80 epochs, **after its runs**,
which have 20: better by 3 and 7 of 512 episodes, and not run again. Success in %.
"""
_HOW_TO_READ = """
Sampled success at temperature 1 in %, 8 episodes per task, differences in points. In brackets the 95 % interval: a
paired bootstrap over seeds and tasks, made as wide as Student's t over the seeds' means where that is wider, since a
bootstrap of 3 or 5 seeds is too narrow for what differs between seeds. `*`: the interval excludes 0. Intervals are not
corrected for their number: of twenty differences that are 0, about one gets a star. `base` is one evaluation of the
policy before training, the same for all seeds. `expert_only`: training tasks that the base policy solves with the
expert's plan and not in 8 tries without; they differ by seed, so that their intervals are Student's t over the seeds.
`rollouts` includes LEVEL-1's where a method uses them.
"""


def read_study(folder: Path) -> dict[str, list[Result]]:
    """All result files by variant, sorted by seed, with one set of expert-only tasks per seed.

    Raises:
        ResultError: a file is damaged, unknown, or made with another code or base policy than the others.
    """
    found: dict[str, list[Result]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        result = read_result(path)
        if path.name != result.path or result.variant not in VARIANTS:
            raise ResultError(f"{path.name}: no variant of this study has this name; remove the file")
        found[result.variant].append(result)
    results = [result for each in found.values() for result in each]
    check_same(results)
    usual = {result.seed: result for result in results if not VARIANTS[result.variant].preparation}
    return {
        name: [_with_usual_tasks(result, usual) for result in sorted(each, key=lambda result: result.seed)]
        for name, each in found.items()
    }


def _with_usual_tasks(result: Result, usual: Mapping[int, Result]) -> Result:
    """The result with the expert-only tasks of its seed's usual preparation.

    More self-rollouts make harder tasks expert-only: a mean over those would not be that of the other variants' tasks.
    """
    if result.seed not in usual or "expert_only" not in result.sets:
        return result
    return replace(result, sets={**result.sets, "expert_only": usual[result.seed].sets["expert_only"]})


def write_page(folder: Path, page: Path, measured: Mapping[str, Any]) -> None:
    """Writes the page from the result files of ``folder``.

    Args:
        folder: the folder of the result files; the figures are written there as well.
        page: the Markdown file.
        measured: figures of the base policy, see :func:`recipes.study.base_page.base_section`.

    Raises:
        ResultError: see :func:`read_study`; or no variant has enough seeds.
    """
    study = read_study(folder)
    if not any(len(results) >= MIN_SEEDS for results in study.values()):
        raise ResultError(f"{folder}: no variant has results of {MIN_SEEDS} seeds, fewer give no interval")
    lines = _introduction(
        [result for results in study.values() for result in results],
        [*base_section(measured), "", *scratch_section(measured, folder / "base")],
    )
    lines += ["![Differences to GRPO in points, with 95 % intervals](results/differences.png)", ""]
    for part, variants in PARTS.items():
        own = _SECTIONS.get(part)
        lines += own(study, folder) if own else part_section(study, part, variants)
    lines += solvable_section(study)
    if (notes := folder / NOTES).exists():
        lines += [filled(notes.read_text(encoding="utf-8"), study).strip(), ""]
    lines += [*claims_section(study), *training_section(study, folder)]
    if local := local_section(folder / "local"):
        lines += [f"## {TITLE}", "", *local, ""]
    write_text(page, "\n".join(lines))


def part_section(study: Study, part: str, variants: Sequence[Variant]) -> list[str]:
    """The tables of a part, Markdown lines; none if no variant has enough seeds."""
    names = [variant.name for variant in variants]
    seeds = sorted({result.seed for name in names for result in study.get(name, ())})
    if not any(len(study.get(name, ())) >= MIN_SEEDS for name in names):
        return []
    listed = " ".join(map(str, seeds))
    command = "make results" if part == "methods" else f"python -m recipes.study --part {part} --seeds {listed}"
    reference = ["bepa", "grpo"] if part != "methods" else []
    lines = [f"## {part.capitalize()}", "", f"`{command}`", "", *success_table(study, [*reference, *names]), ""]
    lines += [f"- `{v.name}`: {v.about}" for v in variants if v.about and v.name in study]
    for other in ("grpo", "bepa"):
        if len(table := difference_table(study, names, other)) > 2:
            lines += ["", *table]
    return [*lines, ""]


def claims_section(study: Study) -> list[str]:
    """The paper's claims, Markdown lines; none without results."""
    claims = claims_table(study)
    return ["## The paper's claims", "", *claims, ""] if len(claims) > 2 else []


def training_section(study: Study, folder: Path) -> list[str]:
    """Draws the figures; the lines that show them."""
    methods = [variant.name for variant in PARTS["methods"]]
    parts = ("train", "expert_only", "held_out/known", "held_out/unknown")
    draw_differences(study, methods, "grpo", parts, folder / "differences.png")
    draw(study, SHOWN, CURVES, folder / "curves.png")
    draw(study, SHOWN, DYNAMICS, folder / "dynamics.png")
    return [
        "## Over training",
        "",
        "Means over seeds; the band is their range. Four methods, since more would be unreadable.",
        "",
        "![Success over training](results/curves.png)",
        "",
        "![Cache, entropy and log-probs over training](results/dynamics.png)",
        "",
    ]


def _introduction(results: Sequence[Result], base: Sequence[str]) -> list[str]:
    """How the results were made, the base policy, and the tuning, Markdown lines."""
    lines = [
        "# Details of the results",
        "",
        "What was found, in short: [results](results.md).",
        "",
        *wrapped(_HOW_TO_READ),
        "",
        *wrapped(
            f"""Runs on {results[0].machine}, torch on the CPU; one file per run: `docs/results/`. The command of each
            table stands above it; `python -m recipes.study --page` makes this page from the files."""
        ),
        "",
        *commits_text(results, replayed=True),
        "",
        "## The base policy",
        "",
        *base,
    ]
    if tuning := TERSE.table():
        lines += ["## Hyper-parameters", "", *wrapped(_TUNING), "", *tuning, ""]
    return lines
