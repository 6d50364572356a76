"""The paper's comparisons, one by one: its difference, ours with an interval, and whether it holds here."""

from __future__ import annotations

from dataclasses import dataclass

from bepa_torchrl.evaluation.statistics import Estimate
from recipes.study.estimates import Study, interval_text, paired
from recipes.study.markdown import row, rule
from recipes.study.notes import filled


@dataclass(frozen=True)
class Claim:
    """One difference of two rows of the paper's tables.

    Args:
        one, other: variants of the study; ``base`` is the policy before training.
        part: the set of tasks.
        paper: the paper's difference ``one - other`` in points; None: the paper has none.
        paper_part: the paper's set of tasks, where it is another one.
        why: what is known about the difference: an experiment, or what has not been tried. It fits any verdict.
    """

    one: str
    other: str
    part: str
    paper: float | None
    paper_part: str = ""
    why: str = ""


_KINDS = "unknown kinds: {bepa - grpo, held_out/unknown}; known ones: {bepa - grpo, held_out/known}"
_RATES = "each with its own tuned rate; at equal ones: `level1_as_bepa`"
_NEAR = (
    "equal rates, as in the paper; likely: LEVEL-1's traces are near this policy already (The base policy), untested"
)
_DIALECT = "converted traces teach their dialect more than the task (What the tables show; one run of each)"
_SEED = "`replacement` differs much between seeds"
_SPREAD = "three seeds, which show large effects only"
_RULES = "the paper calls its difference not significant"

#: differences of the paper's main table (its D_train, D_expert_only and D_held_out), then of others
CLAIMS = (
    Claim("bepa", "grpo", "train", 15.21),
    Claim("bepa", "grpo", "expert_only", 24.08),
    Claim("bepa", "grpo", "held_out", 4.98, why=_KINDS),
    Claim("bepa", "level1", "train", 4.03, why=_RATES),
    Claim("bepa", "level1", "expert_only", 9.26, why=_RATES),
    Claim("bepa", "level1", "held_out", 5.25, why=_RATES),
    Claim("bepa", "level1_as_bepa", "train", 4.03, why=_NEAR),
    Claim("bepa", "level1_as_bepa", "expert_only", 9.26, why=_NEAR),
    Claim("bepa", "level1_as_bepa", "held_out", 5.25, why=_NEAR),
    Claim("bepa", "level2", "train", 1.58, why=_DIALECT),
    Claim("bepa", "level2", "expert_only", 6.01, why=_DIALECT),
    Claim("bepa", "replacement", "train", 6.73, why=_DIALECT),
    Claim("bepa", "luffy", "train", 7.79),
    Claim("level1", "replacement", "train", 2.70, why=_DIALECT),
    Claim("level2", "level1", "train", 2.45, why=_DIALECT),
    Claim("replacement", "grpo", "train", 8.48, why=_SEED + "; " + _DIALECT),
    Claim("luffy", "replacement", "train", -1.06, why=_SEED),
    Claim("grpo", "base", "train", 2.90),
    Claim(
        "sft",
        "base",
        "train",
        -7.35,
        why="tuned: the lowest rate was chosen, which hardly moves the policy",
    ),
    Claim(
        "rl_sft",
        "grpo",
        "train",
        -4.47,
        why="tuned: the lowest rate and weight were chosen; with weight 1.0 it was 15 points lower in the search",
    ),
    Claim("sft_rl", "grpo", "train", -18.65, why="tuned: the gentlest SFT of the grid was chosen"),
    # its sensitivity analysis, on all of OSWorld-Verified (tab:sensitivity_combined)
    Claim("bepa", "bepa_n4", "train", 2.28, "all tasks", _SPREAD),
    Claim("bepa_n16", "bepa", "train", 1.27, "all tasks", _SPREAD),
    Claim("bepa_likeliest", "bepa", "train", 0.99, "all tasks", _RULES),
    Claim("bepa_shortest", "bepa", "train", 1.42, "all tasks", _RULES),
)


def verdict(found: Estimate, paper: float | None) -> str:
    """``holds``: the interval is on the paper's side of 0; ``does not hold``: on the other; else ``undecided``.

    Without a difference of the paper, ``above`` or ``below`` 0.
    """
    if found.sign == 0:
        return "undecided"
    if paper is None:
        return "above" if found.sign > 0 else "below"
    return "holds" if found.sign * paper > 0 else "does not hold"


def paper_text(claim: Claim) -> str:
    """The paper's difference in points; a dash without one."""
    return "–" if claim.paper is None else f"{claim.paper:+.1f}"


def claims_table(study: Study) -> list[str]:
    """Markdown lines; claims about variants without results of enough seeds are left out."""
    head = ("claim", "on", "paper, points", "here, points (95 %)", "", "explanation or experiment")
    lines = [row(*head), rule(len(head))]
    for claim in CLAIMS:
        found = paired(study, claim.one, claim.other, claim.part)
        if found is not None:
            part = f"{claim.part} (paper: {claim.paper_part})" if claim.paper_part else claim.part
            names = f"{claim.one} − {claim.other}"
            cells = (names, part, paper_text(claim), interval_text(found), verdict(found, claim.paper))
            lines.append(row(*cells, filled(claim.why, study)))
    return lines
