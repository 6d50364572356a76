"""docs/history/results-terse.md and its figures: the results from the first base policy, from the files alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_text
from recipes.study.base_page import base_section
from recipes.study.claims import claims_table
from recipes.study.estimates import MIN_SEEDS, Study
from recipes.study.figures import CURVES, DYNAMICS, draw, draw_differences
from recipes.study.further_page import further_section
from recipes.study.long_page import long_section
from recipes.study.markdown import relinked, wrapped
from recipes.study.notes import filled
from recipes.study.provenance import commits_text
from recipes.study.reading import read_study
from recipes.study.records import Result, ResultError
from recipes.study.scratch_page import scratch_section
from recipes.study.solvable import solvable_section
from recipes.study.staleness_page import staleness_section
from recipes.study.tables import HOW_TO_READ, difference_table, success_table
from recipes.study.tuning import TERSE
from recipes.study.variants import PARTS, Variant

#: what was found in short, and what the tables show, by hand in Markdown (:mod:`recipes.study.notes`)
FINDINGS, NOTES = "summary.txt", "notes.txt"
SHOWN = ("grpo", "bepa", "level1", "replacement")  #: in the figures over training, where more would be unreadable
#: of parts that are not shown by :func:`part_section`
_SECTIONS: Mapping[str, Callable[[Study, Path, str], list[str]]] = {
    "long": long_section,
    "staleness": staleness_section,
    "further": lambda study, *_: further_section(study),
}
_TUNING = """
`python -m recipes.study --bed terse --tune`: every method got four trials of 12 iterations on the 32 validation tasks
(one seed, 16 episodes per task at the end), of which the best two went on to 40; SFT alone has no iterations. Methods
whose winner was at an edge of the first four got two more (the last two of six), of which those among the best two went
on, too: GRPO, BEPA, replacement and ARPO had fewer trials. `sft_self` got another two, 40 and 80 epochs, **after its
runs**, which have 20: better by 3 and 7 of 512 episodes, and not run again. Success in %.
"""
_WHICH = """
`tiny`, the policy of `make train` ([small policies](small-policies.md)), has nearly no entropy (0.02 nats per token),
so that the rollouts of a group are nearly alike and LEVEL-1's traces are near its own: GRPO learns little, and a
refresh has little to do. Its weights and the sharpening of its logits were chosen by the figures of its gate. The
[results](results.md) are therefore from other policies now. Only this page has the expert's converted traces, the
paper's other methods, the variations of BEPA, the further rules, and the staleness of asynchronous rollouts.
"""


def write_page(folder: Path, page: Path, measured: Mapping[str, Any], docs: Path | None = None) -> None:
    """Writes the page from the result files of ``folder``.

    Args:
        folder: the folder of the result files; the figures are written there as well.
        page: the Markdown file.
        measured: figures of the base policy, see :func:`recipes.study.base_page.base_section`.
        docs: the folder of the pages that it has links to (default: the page's own).

    Raises:
        ResultError: see :func:`recipes.study.reading.read_study`; or no variant has enough seeds.
    """
    study = read_study(folder)
    if not any(len(results) >= MIN_SEEDS for results in study.values()):
        raise ResultError(f"{folder}: no variant has results of {MIN_SEEDS} seeds, fewer give no interval")
    docs = docs or page.parent
    where = Path(os.path.relpath(folder, docs)).as_posix()
    lines = _introduction([result for results in study.values() for result in results])
    lines += [f"![Differences to GRPO in points, with 95 % intervals]({where}/differences.png)", ""]
    lines += _by_hand(folder / FINDINGS, study)
    lines += _base([*base_section(measured), "", *scratch_section(measured, folder / "base")])
    for part, variants in PARTS.items():
        own = _SECTIONS.get(part)
        lines += own(study, folder, where) if own else part_section(study, part, variants)
    lines += [*solvable_section(study), *_by_hand(folder / NOTES, study)]
    lines += [*claims_section(study), *training_section(study, folder, where)]
    write_text(page, relinked("\n".join(lines), docs, page))


def _by_hand(path: Path, study: Study) -> list[str]:
    """What a file says, with its figures, Markdown lines; none without the file."""
    return [filled(path.read_text(encoding="utf-8"), study).strip(), ""] if path.exists() else []


def part_section(study: Study, part: str, variants: Sequence[Variant]) -> list[str]:
    """The tables of a part, Markdown lines; none if no variant has enough seeds."""
    names = [variant.name for variant in variants]
    seeds = sorted({result.seed for name in names for result in study.get(name, ())})
    if not any(len(study.get(name, ())) >= MIN_SEEDS for name in names):
        return []
    listed = " ".join(map(str, seeds))
    command = "make results-terse"
    if part != "methods":
        command = f"python -m recipes.study --bed terse --part {part} --seeds {listed}"
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


def training_section(study: Study, folder: Path, where: str) -> list[str]:
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
        f"![Success over training]({where}/curves.png)",
        "",
        f"![Cache, entropy and log-probs over training]({where}/dynamics.png)",
        "",
    ]


def _introduction(results: Sequence[Result]) -> list[str]:
    """What this page is, how to read it, and how the results were made, Markdown lines."""
    return [
        "# Results from the first base policy",
        "",
        *wrapped(_WHICH),
        "",
        *wrapped(HOW_TO_READ),
        "",
        *wrapped(
            f"""Runs on {results[0].machine}, torch on the CPU; one file per run: `docs/results/terse/`. The command of
            each table stands above it; `python -m recipes.study --bed terse --page` makes this page from the files."""
        ),
        "",
        *commits_text(results, replayed=True),
        "",
    ]


def _base(base: Sequence[str]) -> list[str]:
    """The base policy and the tuning, Markdown lines."""
    lines = ["## The base policy", "", *base]
    if tuning := TERSE.table():
        lines += ["## Hyper-parameters", "", *wrapped(_TUNING), "", *tuning, ""]
    return lines
