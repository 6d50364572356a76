"""The paper's comparisons, one by one: its difference, ours with an interval, and whether it holds here."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.study.estimates import MIN_SEEDS, Study, interval_text, paired, rates
from benchmarks.study.statistics import Estimate, difference


@dataclass(frozen=True)
class Claim:
    """One difference of two rows of the paper's tables.

    Args:
        one, other: variants of the study; ``base`` is the policy before training.
        part: the set of tasks.
        paper: the paper's difference ``one - other`` in points.
        paper_part: the paper's set of tasks, where it is another one.
    """

    one: str
    other: str
    part: str
    paper: float
    paper_part: str = ""


#: differences of the paper's main table (its D_train, D_expert_only and D_held_out), then of others
CLAIMS = (
    Claim("bepa", "grpo", "train", 15.21),
    Claim("bepa", "grpo", "expert_only", 24.08),
    Claim("bepa", "grpo", "held_out", 4.98),
    Claim("bepa", "level1", "train", 4.03),
    Claim("bepa", "level1", "expert_only", 9.26),
    Claim("bepa", "level1", "held_out", 5.25),
    Claim("bepa", "level2", "train", 1.58),
    Claim("bepa", "level2", "expert_only", 6.01),
    Claim("bepa", "replacement", "train", 6.73),
    Claim("bepa", "luffy", "train", 7.79),
    Claim("level1", "replacement", "train", 2.70),
    Claim("level2", "level1", "train", 2.45),
    Claim("replacement", "grpo", "train", 8.48),
    Claim("luffy", "replacement", "train", -1.06),
    Claim("grpo", "base", "train", 2.90),
    Claim("sft", "base", "train", -7.35),
    Claim("rl_sft", "grpo", "train", -4.47),
    Claim("sft_rl", "grpo", "train", -18.65),
    # its sensitivity analysis, on all of OSWorld-Verified (tab:sensitivity_combined)
    Claim("bepa", "bepa_n4", "train", 2.28, "all tasks"),
    Claim("bepa_n16", "bepa", "train", 1.27, "all tasks"),
    Claim("bepa_likeliest", "bepa", "train", 0.99, "all tasks"),
    Claim("bepa_shortest", "bepa", "train", 1.42, "all tasks"),
)


def verdict(found: Estimate, paper: float) -> str:
    """``holds``: the interval is on the paper's side of 0; ``does not hold``: on the other; else ``undecided``."""
    if found.sign == 0:
        return "undecided"
    return "holds" if found.sign * paper > 0 else "does not hold"


def claims_table(study: Study) -> list[str]:
    """Markdown lines; claims about variants without results of enough seeds are left out."""
    lines = ["| claim | on | paper, points | here, points (95 %) | |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        found = _difference(study, claim)
        if found is not None:
            part = f"{claim.part} (paper: {claim.paper_part})" if claim.paper_part else claim.part
            cells = (f"{claim.one} − {claim.other}", part, f"{claim.paper:+.1f}", interval_text(found))
            lines.append("| " + " | ".join((*cells, verdict(found, claim.paper))) + " |")
    return lines


def _difference(study: Study, claim: Claim) -> Estimate | None:
    if claim.other != "base":
        return paired(study, claim.one, claim.other, claim.part)
    results = study.get(claim.one, ())
    seeds = [result.seed for result in results]
    after, before = (rates(results, claim.part, seeds, base=base) for base in (False, True))
    return None if len(seeds) < MIN_SEEDS or after is None or before is None else difference(after, before)
