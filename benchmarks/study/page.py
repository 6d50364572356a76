"""docs/results.md and its figures, from the result files alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.study.claims import claims_table
from benchmarks.study.estimates import MIN_SEEDS, Study, interval_text, paired, rates
from benchmarks.study.figures import CURVES, DYNAMICS, draw, draw_differences
from benchmarks.study.local_page import TITLE, local_section
from benchmarks.study.records import Result, ResultError, check_same, read_result
from benchmarks.study.statistics import estimate
from benchmarks.study.tuning import tuning_table
from benchmarks.study.variants import PARTS, VARIANTS
from osworld_gym.atomic import write_text

SETS = ("train", "expert_only", "held_out/known", "held_out/unknown")
NOTES = "notes.txt"  #: what the tables show, written by hand in Markdown; no page of its own
_TUNING = (
    "Every method got four trials of 12 iterations on the 32 validation tasks (one seed, 16 episodes per task at the",
    "end), of which the best two went on to 40; SFT alone has no iterations. Success in %.",
)


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


def table(study: Study, names: Sequence[str]) -> list[str]:
    """Success by task set of the base policy and each variant, Markdown lines."""
    lines = ["| method | seeds | " + " | ".join(SETS) + " | rollouts | updates |", "|" + "---|" * (len(SETS) + 4)]
    present = [name for name in names if len(study.get(name, ())) >= MIN_SEEDS]
    for name in [*(["base"] if present else []), *present]:
        results = study[present[0] if name == "base" else name]
        seeds = [result.seed for result in results]
        cells = []
        for part in SETS:
            found = rates(results, part, seeds, base=name == "base")
            cells.append(interval_text(None if found is None else estimate(found)))
        cost = ["", ""] if name == "base" else _costs(results, name)
        lines.append("| " + " | ".join([name, str(len(seeds)), *cells, *cost]) + " |")
    return lines


def _costs(results: Sequence[Result], name: str) -> list[str]:
    """Rollouts (LEVEL-1's counted where the method uses them) and optimiser steps, means over seeds."""
    uses = VARIANTS[name].algo in ("bepa", "level1", "sft_self")
    rollouts = mean(r.totals["episodes"] + uses * r.preparation["self_roll_episodes"] for r in results)
    return [f"{rollouts:.0f}", f"{mean(r.totals['optimizer_steps'] for r in results):.0f}"]


def differences(study: Study, names: Sequence[str], reference: str) -> list[str]:
    """Paired differences to one method in points, Markdown lines; ``*``: the interval excludes 0."""
    lines = [f"| minus {reference} | " + " | ".join(SETS) + " |", "|" + "---|" * (len(SETS) + 1)]
    for name in names:
        found = [paired(study, name, reference, part) for part in SETS]
        if name != reference and any(found):
            cells = (interval_text(each) + ("*" if each and each.sign else "") for each in found)
            lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def write_page(folder: Path, page: Path, measured: Mapping[str, Any], command: str) -> None:
    """Writes the page from the result files of ``folder``.

    Args:
        folder: of the result files; the figure is written there as well.
        page: the Markdown file.
        measured: figures of the base policy (:func:`bepa_torchrl.tiny.evaluate.measure`).
        command: what made the results.

    Raises:
        ResultError: see :func:`read_study`; or no variant has enough seeds.
    """
    study = read_study(folder)
    if not any(len(results) >= MIN_SEEDS for results in study.values()):
        raise ResultError(f"{folder}: no variant has results of {MIN_SEEDS} seeds, fewer give no interval")
    lines = _introduction([result for results in study.values() for result in results], measured, command)
    lines += ["![Differences to GRPO in points, with 95 % intervals](results/differences.png)", ""]
    for part, variants in PARTS.items():
        names = [variant.name for variant in variants]
        reference = ["bepa", "grpo"] if part != "methods" else []
        if any(len(study.get(name, ())) >= MIN_SEEDS for name in names):
            lines += [f"## {part.capitalize()}", "", *table(study, [*reference, *names]), ""]
            lines += [f"- `{v.name}`: {v.about}" for v in variants if v.about and v.name in study]
            for other in ("grpo", "bepa"):
                if other in study:
                    lines += ["", *differences(study, names, other)]
            lines.append("")
    if (notes := folder / NOTES).exists():
        lines += [notes.read_text(encoding="utf-8").strip(), ""]
    if len(claims := claims_table(study)) > 2:
        lines += ["## The paper's claims", "", *claims, ""]
    methods = [variant.name for variant in PARTS["methods"]]
    draw_differences(study, methods, "grpo", ("train", "expert_only", "held_out/unknown"), folder / "differences.png")
    shown = ("grpo", "bepa", "level1", "replacement")
    draw(study, shown, CURVES, folder / "curves.png")
    draw(study, shown, DYNAMICS, folder / "dynamics.png")
    lines += [
        "## Over training",
        "",
        "Means over seeds; the band is their range.",
        "",
        "![Success over training](results/curves.png)",
        "",
        "![Cache, entropy and log-probs over training](results/dynamics.png)",
        "",
    ]
    local = local_section(folder / "local")
    if local:
        lines += [f"## {TITLE}", "", *local, ""]
    write_text(page, "\n".join(lines))


def _introduction(results: Sequence[Result], measured: Mapping[str, Any], command: str) -> list[str]:
    """How the results were made, the base policy, and the tuning, Markdown lines."""
    names = sorted({result.commit[:9] for result in results})
    commits = f"commit{'s' * (len(names) > 1)} {', '.join(names)}"
    lines = [
        "# Results on the simulated desktop",
        "",
        "Real desktops (resets, steps, memory, faults, OSWorld's client): [desktops-results.md](desktops-results.md).",
        "",
        f"`{command}`, {commits}, {results[0].machine}, torch on the CPU. One file per run:",
        "`docs/results/`. Sampled success at temperature 1 in %, 8 episodes per task; in brackets the 95 %",
        "interval by a paired bootstrap over seeds and tasks. `expert_only`: training tasks that the base policy",
        "solves with the expert's plan and not in 8 tries without; they differ by seed. `rollouts` includes LEVEL-1's.",
        "",
        "## The base policy",
        "",
        *base_table(measured),
        "",
    ]
    if tuning := tuning_table():
        lines += ["## Hyper-parameters", "", *_TUNING, "", *tuning, ""]
    return lines


def base_table(measured: Mapping[str, Any]) -> list[str]:
    """The base policy's success rates and the distance of each set of traces, Markdown lines."""
    lines = ["| split | known | unknown | unknown with the plan | known with the plan |", "|---|---|---|---|---|"]
    for split in ("train", "held_out"):
        values = (measured[split][key] for key in ("known", "unknown", "unknown_planned", "known_planned"))
        lines.append(f"| {split} | " + " | ".join(f"{100 * value:.1f}" for value in values) + " |")
    dialect = measured["dialect"]
    lines += [
        "",
        f"Prompted into the expert's dialect it solves {100 * dialect['prompted_known']:.0f} % of the known tasks;",
        f"unprompted, {100 * dialect['unprompted_share']:.1f} % of its responses are in it.",
        "",
        "| traces | tokens with p < 0.2, % | JS to the policy's rollouts | mean log-prob, nats |",
        "|---|---|---|---|",
    ]
    for name, found in measured["divergence"].items():
        lines.append(f"| {name} | {100 * found['tail']:.1f} | {found['js']:.3f} | {found['nats']:.2f} |")
    return lines
