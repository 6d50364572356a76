"""docs/results.md: what was found, in two screens, from the result files; the tables behind it are on another page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from osworld_gym.atomic import write_text
from recipes.study.bases import Base
from recipes.study.estimates import MIN_SEEDS
from recipes.study.free_bed import free_search
from recipes.study.free_page import Part, failing, pairs_lines, read_parts
from recipes.study.markdown import wrapped
from recipes.study.notes import filled
from recipes.study.reading import read_study
from recipes.study.records import TERSE_RESULTS
from recipes.study.tables import success_table

FINDINGS = (
    "summary.txt"  #: what was found, by hand in Markdown (:mod:`recipes.study.notes`), beside the policies' folders
)
MAIN = ("grpo", "bepa", "level1", "level1_as_bepa", "sft_self")  #: in the table; a policy that is shown has one of them
_HOW_TO_READ = """
Success in % of sampled episodes, with 95 % intervals; differences in points, paired by seed and task. *Expert-only*:
training tasks that the base policy solves only with the expert's plan. Every method was tuned by four trials on `{}`,
and more where the best was at an edge; its settings are the same from every base policy. Small policies and one
simulated desktop: [what is not shown](limits.md#what-the-results-do-not-show).
"""


def write_summary(folder: Path, page: Path, details: str) -> bool:
    """Writes the page; its figures are those of :func:`recipes.study.free_page.write_free_page`, which draws them.

    Args:
        folder: of the base policies' folders, below the page's folder or the same.
        page: the Markdown file.
        details: name of the page with all tables.

    Returns:
        False, and nothing is written, before a base policy has results of :data:`MIN_SEEDS` seeds.

    Raises:
        ResultError: see :func:`recipes.study.free_page.read_parts`; or the findings state a figure without results.
    """
    parts = [part for part in read_parts(folder) if any(len(part.study.get(name, ())) >= MIN_SEEDS for name in MAIN)]
    if not parts:
        return False
    first = parts[0]
    where = first.folder.relative_to(page.parent).as_posix()
    more = f"All tables, the paper's claims, and how the methods were tuned: [details]({details})."
    tuned_on = Base(free_search(Base(f"free/{first.name}")).tuned_on()).label
    lines = ["# Results on the simulated desktop", "", *wrapped(_HOW_TO_READ.format(tuned_on)), "", *wrapped(more), ""]
    lines += [f"![Differences to GRPO in points, with 95 % intervals]({where}/differences.png)", ""]
    lines += [*wrapped(f"From `{first.name}`:"), "", *success_table(first.study, MAIN), ""]
    lines += findings(folder, parts)
    lines += pairs_lines(parts)
    lines += [f"![Entropy, terse thoughts and success over training]({where}/mechanism.png)", ""]
    for name in failing(parts):
        text = f"**`{name}` does not pass its gate**; methods are compared on it all the same"
        lines += [*wrapped(f"{text} ([conditions]({details}))."), ""]
    write_text(page, "\n".join(lines))
    return True


def findings(folder: Path, parts: Sequence[Part]) -> list[str]:
    """What was found, with its figures, Markdown lines; none without the file.

    Figures of the first base policy, whose results are in a folder beside ``folder``, are those of ``tiny``.
    """
    path, first = folder / FINDINGS, folder.parent / TERSE_RESULTS.name
    if not path.exists():
        return []
    studies = {part.name: part.study for part in parts} | ({"tiny": read_study(first)} if first.exists() else {})
    return [filled(path.read_text(encoding="utf-8"), parts[0].study, studies).strip(), ""]
