"""docs/results-details.md: the methods from base policies that think in free words, from the result files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np

from bepa_torchrl.evaluation.statistics import Rates
from osworld_gym.atomic import write_text
from recipes.study.base_page import divergence_table
from recipes.study.bases import Base
from recipes.study.claims import CLAIMS, Claim, paper_text, verdict
from recipes.study.estimates import Study, common_seeds, gain_text, interval_text, paired, rate_text
from recipes.study.figures import Panel, draw, draw_differences
from recipes.study.free_base import FIGURES, Known, read_known
from recipes.study.free_bed import free_search, untuned
from recipes.study.local_page import TITLE, local_section
from recipes.study.long_page import PANELS, REFRESH, pair_lines
from recipes.study.markdown import row, rule, wrapped
from recipes.study.notes import filled
from recipes.study.provenance import commits_text
from recipes.study.reading import read_study
from recipes.study.records import Result, ResultError
from recipes.study.tables import HOW_TO_READ, SETS, difference_table, success_table
from recipes.study.variants import FREE_PARTS, VARIANTS
from recipes.tiny.checkpoint import MANIFEST

NOTES = "notes.txt"  #: what was found, by hand in Markdown (:mod:`recipes.study.notes`), beside the policies' folders
#: differences that lead
FREE_PAIRS = (
    *(("bepa", "grpo"), ("bepa", "grpo_as_bepa"), ("bepa_as_grpo", "grpo")),
    *(("bepa", "level1_as_bepa"), ("bepa", "level1"), ("bepa", "sft_self")),
    *(("bepa_long", "grpo_long"), ("bepa_as_grpo_long", "grpo_long")),
    *(("bepa_long", "level1_as_bepa_long"), ("bepa_long", "sft_self_rl_long"), ("bepa_anchor_long", "grpo_long")),
)
SHOWN = ("grpo", "level1_as_bepa", "bepa_wording", "bepa_actions", "bepa")  #: in the figure over training
MECHANISM = (
    Panel("collect/entropy", "entropy of the rollouts, nats per token", rate=False),
    Panel("collect/starts_terse", "share of terse thoughts, rollouts"),
    Panel("cache/starts_terse", "share of terse thoughts, injected traces"),
    Panel("eval/starts_terse", "share of terse thoughts, evaluations"),
    Panel("eval/held_out", "success, held-out tasks"),
    Panel("eval/expert_only", "success, expert-only tasks"),
)
#: what is compared beside the paper's claims
_OWN = tuple(
    Claim(one, other, part, None)
    for one, other in (
        ("bepa", "bepa_wording"), ("bepa", "bepa_actions"), ("bepa_wording", "level1_as_bepa"),
        ("bepa_actions", "level1_as_bepa"), ("bepa", "sft_self"), ("bepa_long", "sft_self_rl_long"),
        ("bepa_anchor", "bepa"), ("bepa_anchor", "grpo"), ("bepa_anchor", "sft_self"),
        ("sft_self_rl_long", "grpo_long"), ("bepa_anchor_long", "sft_self_rl_long"),
        ("bepa_anchor_long", "bepa_long"), ("bepa_anchor_long", "bepa_as_grpo_long"),
        ("bepa_as_grpo_long", "bepa_long"), ("sft_self_rl_anchor_long", "sft_self_rl_long"),
        ("bepa_anchor_long", "sft_self_rl_anchor_long"),
    )
    for part in ("train", "expert_only", "held_out")
)  # fmt: skip
_PAIRS = """
Differences at the end, paired by seed and task, after 40 iterations and (`_long`) after 150:
"""
_RAW = """
Raw traces are scored after the policy's own prompts here, in the paper after those of Agent S2's worker.
"""
_INTRODUCTION = """
The simulated desktop, from base policies that think in free words without a plan and tersely with one
([small policies](small-policies.md#tiny_free-thoughts-in-free-words)): LEVEL-1's traces are surer than the policy's
own, and terse thoughts without a plan are a risk. `bepa_wording` and `bepa_actions` refresh one part of a trace only
([definitions](definitions.md#refresh-in-parts)). In short: [results](results.md).
"""


@dataclass(frozen=True)
class Part:
    """One base policy with its results."""

    name: str
    folder: Path
    study: Study
    known: Known


def read_parts(folder: Path) -> list[Part]:
    """The base policies that have results, those that pass their gate first, then by name.

    Raises:
        ResultError: as :func:`recipes.study.reading.read_study`, or results of another base policy than the manifest's.
        OSError: results without the base policy's manifest.
    """
    found = []
    for each in sorted(path.parent for path in folder.glob(f"*/{FIGURES}")):
        if study := read_study(each):
            found.append(Part(each.name, each, study, read_known(each)))
            _check_base(found[-1])
    return sorted(found, key=lambda part: (bool(part.known.failures()), part.name))


def _check_base(part: Part) -> None:
    """Raises ResultError if the results are not of the weights that the gate's figures beside them are of."""
    first, weights = next(iter(part.study.values()))[0], part.known.manifest["weights"]
    if first.base != weights:
        raise ResultError(
            f"{part.name}/{first.path} was made from other weights ({first.base}) than those that {FIGURES}/{MANIFEST} "
            f"beside it describes ({weights}); move the older results away, or run the study again"
        )


def write_free_page(folder: Path, page: Path, local: Path | None = None) -> bool:
    """Writes the page and its figures; False, and nothing, without a result file.

    Args:
        folder: of the base policies' folders; the figures are written into these.
        page: the Markdown file, in a folder that ``folder`` is in, or in ``folder``.
        local: of the results of real desktops, which are a section of the page (default: no section).

    Raises:
        ResultError: see :func:`read_parts`.
    """
    parts = read_parts(folder)
    if not parts:
        return False
    where = {part.name: part.folder.relative_to(page.parent).as_posix() for part in parts}
    how = "Fewer than 3 seeds are shown one by one. One file per run: `docs/results/free/`."
    lines = [
        "# Details of the results",
        "",
        *wrapped(_INTRODUCTION),
        "",
        *wrapped(HOW_TO_READ, how),
        "",
        *warnings(parts),
    ]
    if (notes := folder / NOTES).exists():
        studies = {part.name: part.study for part in parts}
        found = filled(notes.read_text(encoding="utf-8"), parts[0].study, studies)
        lines += ["## What was found", "", found.strip(), "", *pairs_lines(parts)]
    for part in parts:
        lines += first_section(part, where[part.name])
    lines += claims_section(parts)
    for part in parts:
        lines += details(part, where[part.name])
    if tuning := free_search(Base(f"free/{parts[0].name}")).table():
        lines += ["## Hyper-parameters", "", *wrapped(tuning_text()), "", *tuning, ""]
    if local and (desktops := local_section(local)):
        lines += [f"## {TITLE}", "", *desktops, ""]
    write_text(page, "\n".join(lines))
    return True


def warnings(parts: Sequence[Part]) -> list[str]:
    """Why this is no comparison: gates that fail, and settings that no search has chosen; Markdown lines."""
    lines = []
    for part in parts:
        if names := untuned(part.study):
            lines += [
                f"- **`{part.name}`: the settings of {', '.join(f'`{name}`' for name in names)} are not those that the "
                "search has chosen: a look, no comparison of methods.**"
            ]
        if failures := part.known.failures():
            lines += [f"- **`{part.name}` does not pass its gate{_consequence(part.known)}**"]
            lines += [f"    - {failure}" for failure in failures]
    return [*lines, ""] if lines else []


def failing(parts: Sequence[Part]) -> list[str]:
    """The names of those that do not pass their gate."""
    return [part.name for part in parts if part.known.failures()]


def _consequence(known: Known) -> str:
    """What a gate that is failed means for the results."""
    if known.finished and not known.missing:
        return "; methods are compared on it all the same."
    return ": a look, no comparison of methods."


def first_section(part: Part, where: str) -> list[str]:
    """The figure over training, the success of the main methods, and the mechanism, Markdown lines."""
    study, names = part.study, [v.name for key in ("core", "controls", "anchor") for v in FREE_PARTS[key]]
    shown = [name for name in SHOWN if name in study]
    draw(study, shown, MECHANISM, part.folder / "mechanism.png")
    lines = [f"## From {part.name}", ""]
    if shown:
        lines += [f"![Entropy, terse thoughts and success over training]({where}/mechanism.png)", ""]
    lines += [*success_table(study, names, 1), ""]
    for reference in ("grpo", "level1_as_bepa"):
        if len(table := difference_table(study, names, reference, 1)) > 2:
            lines += [*table, ""]
    if len(table := mechanism_table(study, [name for name in names if name in study])) > 2:
        lines += [*wrapped(_MECHANISM), "", *table, ""]
    return lines


_MECHANISM = """
Entropy and terse thoughts without a plan, at the first and the last iteration (means over seeds) and in the evaluation
at the end; *injected*: of the last ten iterations' injected traces; *reworded*: share of the refreshed steps that got a
new thought.
"""


def mechanism_table(study: Study, names: Sequence[str]) -> list[str]:
    """Entropy and style of each variant, Markdown lines."""
    head = (
        "method",
        "entropy, nats",
        "terse, rollouts, %",
        "terse, at the end, %",
        "terse, injected, %",
        "reworded, %",
    )
    lines = [row(*head), rule(len(head))]
    for name in names:
        results = study[name]
        cells = (
            _first_and_last(results, "collect/entropy", "{:.2f}", 1),
            _first_and_last(results, "collect/starts_terse", "{:.1f}", 100),
            rate_text(ends(results, "eval/starts_terse")),
            _late(results, "cache/starts_terse"),
            _late(results, "cache/reworded"),
        )
        if any(cell != "–" for cell in cells):
            lines.append(row(name, *cells))
    return lines


def ends(results: Sequence[Result], key: str) -> Rates | None:
    """The value at the end of each seed's curve, ``[S, 1]``; None if one has none."""
    values = [result.curve[-1].get(key) if result.curve else None for result in results]
    return None if not values or None in values else np.array(values, dtype=float)[:, None]


def _first_and_last(results: Sequence[Result], key: str, form: str, factor: float) -> str:
    curves = [[line[key] for line in result.curve if key in line] for result in results]
    if not all(curves):
        return "–"
    return " → ".join(form.format(factor * mean(curve[at] for curve in curves)) for at in (0, -1))


def _late(results: Sequence[Result], key: str) -> str:
    """Mean of a share over the last ten iterations that have it, in %."""
    values = [value for result in results for value in [line[key] for line in result.curve if key in line][-10:]]
    return f"{100 * mean(values):.1f}" if values else "–"


def pairs_lines(parts: Sequence[Part]) -> list[str]:
    """The differences of methods beside the paper's, Markdown lines.

    A row for each base policy that has results of enough seeds, and one for the paper's figures of such a pair.
    """
    claims = {(claim.one, claim.other, claim.part): paper_text(claim) for claim in CLAIMS}
    lines = [row("difference, points", "from", *SETS), rule(len(SETS) + 2)]
    for one, other in FREE_PAIRS:
        here = {f"`{part.name}`": [paired(part.study, one, other, each) for each in SETS] for part in parts}
        rows = {name: [interval_text(each) for each in found] for name, found in here.items() if any(found)}
        paper = [claims.get((one, other, each), "") for each in SETS]
        if rows and any(paper):
            rows["the paper"] = paper
        lines += [row(f"{one} − {other}", name, *cells) for name, cells in rows.items()]
    return [*wrapped(_PAIRS), "", *lines, ""] if len(lines) > 2 else []


def claims_section(parts: Sequence[Part]) -> list[str]:
    """The paper's comparisons, the controls', and the styles', with a column for each base policy, Markdown lines."""
    lines = claims_lines(parts)
    style = style_lines(parts)
    if len(lines) == 2 and len(style) == 2:
        return []
    text = "Terse thoughts in the evaluation at the end, differences in points:"
    claims = [*lines, ""] if len(lines) > 2 else []
    return ["## Claims", "", *claims, *([text, "", *style, ""] if len(style) > 2 else [])]


def claims_lines(parts: Sequence[Part]) -> list[str]:
    """One row per claim that a base policy has results of :data:`MIN_SEEDS` seeds for."""
    head = ("claim", "on", "paper, points", *(f"{part.name}, points (95 %)" for part in parts))
    lines = [row(*head), rule(len(head))]
    for claim in (*(replace(claim, why="") for claim in CLAIMS), *_OWN):
        found = [paired(part.study, claim.one, claim.other, claim.part) for part in parts]
        if any(each is not None for each in found):
            cells = ("–" if each is None else f"{interval_text(each)} {verdict(each, claim.paper)}" for each in found)
            lines.append(row(f"{claim.one} − {claim.other}", claim.part, paper_text(claim), *cells))
    return lines


def style_lines(parts: Sequence[Part]) -> list[str]:
    """Paired differences of the share of terse thoughts in the evaluation at the end."""
    pairs = (
        *(("level1_as_bepa", "bepa"), ("level1_as_bepa", "bepa_wording"), ("bepa_actions", "bepa"), ("bepa", "grpo")),
        *(("bepa", "bepa_anchor"), ("bepa_anchor", "grpo")),
        *(("level1_as_bepa_long", "bepa_long"), ("bepa_long", "grpo_long"), ("sft_self_rl_long", "grpo_long")),
    )
    head = ("terse thoughts", *(part.name for part in parts))
    lines = [row(*head), rule(len(head))]
    for one, other in pairs:
        cells = [_style_gain(part.study, one, other) for part in parts]
        if any(cell != "–" for cell in cells):
            lines.append(row(f"{one} − {other}", *cells))
    return lines


def _style_gain(study: Study, one: str, other: str) -> str:
    if not (study.get(one) and study.get(other)):
        return "–"
    seeds = common_seeds(study, (one, other))
    both = [ends([r for r in study[name] if r.seed in seeds], "eval/starts_terse") for name in (one, other)]
    return "–" if both[0] is None or both[1] is None else gain_text((both[0], both[1]))


def details(part: Part, where: str) -> list[str]:
    """Long runs, the other methods, the base policy and the runs' commits, Markdown lines."""
    study = part.study
    lines = [f"## Details: {part.name}", "", *base_lines(part.known), *long_lines(part, where)]
    titles = {
        "injected": "Parts of a group with an injected trace",
        "rates": "GRPO and BEPA at equal rates",
        "others": "Other methods",
        "rules": "Further rules",
    }
    for key, title in titles.items():
        if names := [variant.name for variant in FREE_PARTS[key] if variant.name in study]:
            lines += [f"### {title}", "", *success_table(study, ["grpo", "bepa", *names], 1), ""]
            for reference in ("bepa", "grpo"):
                lines += [*table, ""] if len(table := difference_table(study, names, reference, 1)) > 2 else []
    methods = [name for name in VARIANTS if name in study and paired(study, name, "grpo", "train") is not None]
    if methods:
        sets = ("train", "expert_only", "held_out/known", "held_out/unknown")
        draw_differences(study, methods, "grpo", sets, part.folder / "differences.png")
        lines += [f"![Differences to GRPO in points]({where}/differences.png)", ""]
    about = [VARIANTS[name] for name in study if VARIANTS[name].about]
    lines += [*(f"- `{variant.name}`: {variant.about}" for variant in about), ""]
    return [*lines, *commits_text([result for each in study.values() for result in each], replayed=True), ""]


def long_lines(part: Part, where: str) -> list[str]:
    """The runs of 150 iterations, Markdown lines; their figure in the part's folder. None without results."""
    study = part.study
    names = [variant.name for variant in FREE_PARTS["long"] if variant.name in study]
    if not names:
        return []
    draw(study, names, (*PANELS, *MECHANISM[:3]), part.folder / "long.png")
    lines = ["### 150 iterations", "", f"![150 iterations]({where}/long.png)", "", *success_table(study, names, 1), ""]
    for reference in ("grpo_long", "bepa_long", "level1_as_bepa_long"):
        if len(table := difference_table(study, names, reference, 1)) > 2:
            lines += [*table, ""]
    for pair in (REFRESH, ("bepa_long", "sft_self_rl_long")):
        lines += [*table, ""] if (table := pair_lines(study, pair)) else []
    if len(table := mechanism_table(study, names)) > 2:
        lines += [*table, ""]
    return lines


def base_lines(known: Known) -> list[str]:
    """The figures of the gate, Markdown lines."""
    head = (
        "evaluation",
        "split",
        "known",
        "unknown",
        "unknown, plan",
        "known, plan",
        "known, forced terse",
        "terse, %",
    )
    lines = [row(*head), rule(len(head))]
    keys = ("known", "unknown", "unknown_planned", "known_planned", "known_terse")
    for seed, found in known.measured.items():
        for split in ("train", "held_out"):
            terse = f"{100 * found['terse_share']:.1f}" if split == "train" else ""
            lines.append(row(str(seed), split, *(f"{100 * found[split][key]:.1f}" for key in keys), terse))
    first: Mapping[str, Mapping[str, float]] = next((m["divergence"] for m in known.measured.values()), {})
    text = f"`{known.manifest['command']}`, step {known.manifest['step']}. {verdict_text(known)}"
    return [
        *wrapped(text),
        "",
        *([*lines, "", *divergence_table(first), "", *wrapped(_RAW), ""] if known.measured else []),
    ]


def verdict_text(known: Known) -> str:
    """Whether the base policy passes its gate."""
    return "It passes its gate." if not known.failures() else "**It does not pass its gate** (above)."


def tuning_text() -> str:
    """How the hyper-parameters were chosen."""
    search = free_search(Base(""))
    name = Base(search.tuned_on()).label
    return (
        f"`python -m recipes.study --base {name} --tune` (with `--despite-gate`, if that policy fails its gate): its "
        "winners are used for every base policy. Four trials of "
        "12 iterations per method on the 32 validation tasks (one seed, 16 episodes per task at the end), two more "
        "where the winner is at an edge, fixed beforehand for each edge (`recipes/study/free_bed.py`); the best two, "
        "and those that tie with the second, went on to 40 iterations. SFT alone has no iterations. Success in %."
    )
