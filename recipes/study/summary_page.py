"""docs/results.md: what was found, in two screens, from the result files; the tables behind it are on another page."""

from __future__ import annotations

from pathlib import Path

from osworld_gym.atomic import write_text
from recipes.study.claims import CLAIMS, Claim, paper_text, verdict
from recipes.study.estimates import MIN_SEEDS, Study, interval_text, paired
from recipes.study.free_bed import PAGE
from recipes.study.free_page import TITLE, failing, pairs_lines, read_parts
from recipes.study.markdown import row, rule, wrapped
from recipes.study.notes import filled
from recipes.study.page import read_study
from recipes.study.tables import success_table

FINDINGS = "summary.txt"  #: what was found, by hand in Markdown (:mod:`recipes.study.notes`); no page of its own
FREE_MAIN = ("grpo", "bepa", "level1", "level1_as_bepa", "sft_self")  #: one of them has run from a policy that is shown
MAIN = ("grpo", "bepa", "level1", "sft_self", "replacement", "luffy")  #: in the table
SETS = ("train", "expert_only", "held_out")  #: of the claims
_HOW_TO_READ = """
Success in % of sampled episodes, with 95 % intervals; differences in points, paired by seed and task. *Expert-only*:
training tasks that the base policy solves only with the expert's plan. Every method was tuned by four trials, and more
where the best was at an edge. One small policy and one simulated desktop:
[what is not shown](limits.md#what-the-results-do-not-show).
"""
_CLAIMS = """
Points in the paper (of the last four rows: on all tasks), points here with the interval, and whether the claim holds;
"""


def write_summary(folder: Path, page: Path, details: str) -> None:
    """Writes the page; its figures are those of :func:`recipes.study.page.write_page` and ``write_free_page``.

    Args:
        folder: of the result files, beside the page.
        page: the Markdown file.
        details: name of the page with all tables.

    Raises:
        ResultError: see :func:`recipes.study.page.read_study`; or the findings state a figure without results.
    """
    study = read_study(folder)
    more = f"All methods, how they were tuned, and each table's command: [details]({details})."
    lines = ["# Results on the simulated desktop", "", *wrapped(_HOW_TO_READ), "", *wrapped(more), ""]
    lines += [f"![Differences to GRPO in points, with 95 % intervals]({folder.name}/differences.png)", ""]
    lines += [*success_table(study, MAIN), ""]
    if (findings := folder / FINDINGS).exists():
        lines += [filled(findings.read_text(encoding="utf-8"), study).strip(), ""]
    if len(table := claims_by_pair(study)) > 2:
        why = f"reasons: [details]({details}#the-papers-claims)."
        lines += ["## The paper's claims", "", *wrapped(_CLAIMS, why), "", *table, ""]
    write_text(page, "\n".join([*lines, *free_section(folder)]))


def free_section(folder: Path) -> list[str]:
    """What was found on base policies that think in free words, Markdown lines; none before three seeds have run.

    Args:
        folder: of the result files, those of base policies with free words in ``free``.

    Raises:
        ResultError: see :func:`recipes.study.free_page.read_parts`; or the findings state a figure without results.
    """
    free = folder / "free"
    parts = [part for part in read_parts(free) if any(len(part.study.get(name, ())) >= MIN_SEEDS for name in FREE_MAIN)]
    if not parts:
        return []
    lines = [f"## {TITLE}", ""]
    if (findings := free / FINDINGS).exists():
        studies = {part.name: part.study for part in parts}
        lines += [filled(findings.read_text(encoding="utf-8"), parts[0].study, studies).strip(), ""]
    lines += pairs_lines(parts)
    where = f"{folder.name}/free/{parts[0].name}"
    lines += [f"![Entropy, terse thoughts and success over training]({where}/mechanism.png)", ""]
    for name in failing(parts):
        text = f"**`{name}` does not pass its gate**; methods are compared on it all the same"
        lines += [*wrapped(f"{text} ([conditions]({PAGE.name}))."), ""]
    return lines


def claims_by_pair(study: Study) -> list[str]:
    """The paper's claims, a row for each pair of methods that has results of enough seeds, Markdown lines."""
    claims = {(claim.one, claim.other, claim.part): claim for claim in CLAIMS}
    lines = [row("", *SETS), rule(len(SETS) + 1)]
    for one, other in dict.fromkeys((claim.one, claim.other) for claim in CLAIMS):
        cells = [_cell(study, claims.get((one, other, part))) for part in SETS]
        if any(cells):
            lines.append(row(f"{one} − {other}", *cells))
    return lines


def _cell(study: Study, claim: Claim | None) -> str:
    found = None if claim is None else paired(study, claim.one, claim.other, claim.part)
    if claim is None or found is None:
        return ""
    return f"{paper_text(claim)}, {interval_text(found)}: {verdict(found, claim.paper)}"
