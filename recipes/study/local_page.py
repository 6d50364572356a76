"""Section of results-details.md about runs on real desktops (``make train-local``), from their files alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bepa_torchrl.evaluation.statistics import Rates, t_interval
from recipes.study.estimates import (
    BASE,
    MIN_SEEDS,
    all_rates,
    gain_text,
    interval_text,
    one_evaluation,
    pair,
    rate_text,
    seeds_text,
)
from recipes.study.figures import CURVES, draw
from recipes.study.local_variants import EPISODES, HELD_OUT, ITERATIONS, TRIAL_ITERATIONS, TUNED, VARIANTS, search
from recipes.study.markdown import row, rule, wrapped
from recipes.study.provenance import commits_text
from recipes.study.records import Result, ResultError, check_same, differing_settings, read_result

TITLE = "Real desktops"
SETS = {"train": "train", "held_out": "held-out", "expert_only": "expert-only"}  #: set → its name in the table
#: further ones, where results have them: kinds of tasks that the base policy was shown, and others
KINDS = {"train/known": "train, known", "held_out/known": "held-out, known", "held_out/unknown": "held-out, unknown"}
#: order of the methods; others follow by name
METHODS = ("bepa", "bepa_slow", "bepa_once", "bepa_anchor", "level1", "grpo")
FAILED = "failed_"  #: prefix of the counts of desktop failures, by reason


def read_local_study(folder: Path) -> dict[str, list[Result]]:
    """All result files by method, sorted by seed; empty without a folder.

    Raises:
        ResultError: a file is damaged, or its code, base policy or settings differ from the others'.
    """
    found: dict[str, list[Result]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        result = read_result(path)
        found[result.variant].append(result)
    every = [result for results in found.values() for result in results]
    check_same(every)
    for results in found.values():
        for result in results:
            _check_settings(result, results[0])
            _check_settings(result, every[0])
    names = [*(name for name in METHODS if name in found), *sorted(found.keys() - set(METHODS))]
    return {name: sorted(found[name], key=lambda result: result.seed) for name in names}


def check_table(result: Result, variant: str, settings: Mapping[str, Any], what: str) -> None:
    """Checks that a result may stand in one table with another.

    Args:
        result: a result.
        variant, settings: the other's.
        what: its name in the error.

    Raises:
        ResultError: they differ in a setting in which methods, or the seeds of one method, may not.
    """
    free = {"seed"} if result.variant == variant else {"seed", "algo.name", *TUNED}
    differ = [name for name in differing_settings(result.settings, settings) if name not in free]
    if differ:
        raise ResultError(
            f"{result.path} was made with other settings than {what}: {', '.join(differ)}; "
            "give the runs one by one to --out folders of their own, or run one of them again"
        )


def _check_settings(result: Result, first: Result) -> None:
    check_table(result, first.variant, first.settings, str(first.path))


def local_section(folder: Path) -> list[str]:
    """The section's Markdown lines below its title, and its figure in ``folder``; no line without results.

    Raises:
        ResultError: see :func:`read_local_study`.
    """
    study = read_local_study(folder)
    if not study:
        return []
    draw(study, list(study), CURVES[:4], folder / "curves.png")
    return [
        *introduction(study),
        "",
        *success_table(study),
        "",
        *gain_table(study, gain_text),
        "",
        *same_tasks(study),
        *cost_table(study),
        "",
        f"![Success over training on real desktops](results/{folder.name}/curves.png)",
        *(tuning_lines() if _of_study(study) else ()),
    ]


def introduction(study: Mapping[str, Sequence[Result]]) -> list[str]:
    """What was run, and what the cells of the tables are."""
    every = [result for results in study.values() for result in results]
    first = every[0]
    episodes = max(played for _, played in first.counts["sampled"].values())
    command = "python -m recipes.study.local_runs" if _of_study(study) else "make train-local"
    tasks = ", ".join(f"{len(first.sets[name])} {label}" for name, label in SETS.items() if name in first.sets)
    return [
        *wrapped(
            f"""`{command}`, {first.machine}: real applications, {tasks} tasks (seed {first.seed}). Sampled
            success at temperature 1 in %, {episodes} episodes per task. {_cells(study)} `expert-only`: training tasks
            that the base policy solves with the expert's plan and not without; they differ by seed. A failure of a
            desktop is no reward: the attempt is masked, and repeated. One file per run: `docs/results/local/`."""
        ),
        *_variations(study),
        "",
        *commits_text(every, replayed=False),
    ]


def _variations(study: Mapping[str, Sequence[Result]]) -> list[str]:
    """What differs in those that are no method alone; no line without one."""
    found = [f"`{name}`: {VARIANTS[name].about}." for name in study if name in VARIANTS and VARIANTS[name].about]
    return ["", *wrapped(" ".join(found))] if found else []


def _of_study(study: Mapping[str, Sequence[Result]]) -> bool:
    """Whether the results are those of :mod:`recipes.study.local_runs`, not of single runs."""
    every = [result for results in study.values() for result in results]
    return all(result.settings.get("env.held_out_split") == HELD_OUT for result in every)


def tuning_lines() -> list[str]:
    """How the methods were tuned, and every trial; no line before the search."""
    table = search().table(TRIAL_ITERATIONS, ITERATIONS)
    if not table:
        return []
    text = f"""`python -m recipes.study.local_runs --tune`: four trials per method of {TRIAL_ITERATIONS} iterations on
        the 12 validation tasks, which are in no result, with a seed of their own; the best two go on to {ITERATIONS}.
        Sampled success in %, {EPISODES} episodes per task."""
    return ["", *wrapped(text), "", *table]


def _cells(study: Mapping[str, Sequence[Result]]) -> str:
    seeds = sorted({result.seed for results in study.values() for result in results})
    every = [result for results in study.values() for result in results]
    base = "`base`, before training, is a single evaluation." if one_evaluation(every) else "`base`: before training."
    if len(seeds) >= MIN_SEEDS:
        return f"{base} In brackets the 95 % interval, as above."
    listed = " / ".join(map(str, seeds))
    return f"{base} Fewer than {MIN_SEEDS} seeds give no interval: cells are the values of seeds {listed}."


def columns(study: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """The sets of tasks that have a column, and its name: :data:`SETS`, and of :data:`KINDS` those of every result."""
    every = [result for results in study.values() for result in results]
    return SETS | {part: name for part, name in KINDS.items() if all(result.sets.get(part) for result in every)}


def success_table(study: Mapping[str, Sequence[Result]]) -> list[str]:
    """Success of the base policy and after each method."""
    parts = columns(study)
    lines = [row("", "seeds", *parts.values()), rule(len(parts) + 2)]
    base = max(study.values(), key=len)
    for name, results in {BASE: base, **study}.items():
        cells = [rate_text(all_rates(results, part, base=name == BASE)) for part in parts]
        lines.append(row(name, seeds_text(results, base=name == BASE), *cells))
    return lines


def gain_table(
    study: Mapping[str, Sequence[Result]], text: Callable[[tuple[Rates, Rates] | None], str], head: str = "points"
) -> list[str]:
    """Paired differences in points: each method to the base policy and to GRPO, and its variations to BEPA.

    Args:
        study: all results.
        text: the cell of two methods' rates.
        head: what the cells are.
    """
    parts = columns(study)
    lines = [row(f"difference, {head}", *parts.values()), rule(len(parts) + 1)]
    pairs = [(name, BASE) for name in study]
    pairs += [(name, reference) for reference in ("grpo", "bepa") if reference in study for name in study]
    for name, reference in pairs:
        if name != reference and (name, reference) != ("grpo", "bepa"):  # the row bepa − grpo says the same
            cells = (text(pair(study, name, reference, part)) for part in parts)
            lines.append(row(f"{name} − {reference}", *cells))
    return lines


def same_tasks(study: Mapping[str, Sequence[Result]]) -> list[str]:
    """The differences with intervals for these tasks alone; no line with too few seeds for an interval."""
    if max(map(len, study.values())) < MIN_SEEDS:
        return []
    text = """The intervals above hold for other tasks of these kinds, too: so few tasks leave them wide, whatever the
        number of episodes. For these very tasks, where only trainings and episodes are random (Student's t over the
        seeds):"""
    return [*wrapped(text), "", *gain_table(study, same_tasks_text, "these tasks, points"), ""]


def same_tasks_text(found: tuple[Rates, Rates] | None) -> str:
    """A paired difference with Student's interval over the seeds; ``*``: it excludes 0; a dash for too few seeds."""
    if found is None or len(found[0]) < MIN_SEEDS:
        return interval_text(None)
    whole = t_interval(found[0] - found[1])
    return interval_text(whole) + "*" * bool(whole.sign)


def cost_table(study: Mapping[str, Sequence[Result]]) -> list[str]:
    """Means over seeds of time, rollouts and speed; sums of desktop failures."""
    head = ("", "minutes", "preparation, min", "rollouts", "updates", "steps/s", "desktops busy", "desktop failures")
    lines = [row(*head), rule(len(head))]
    for name, results in study.items():
        totals = {key: mean(r.totals[key] for r in results) for key in results[0].totals}
        prepared = mean(r.preparation["seconds"] for r in results)
        cells = (
            f"{totals['seconds'] / 60:.1f}",
            f"{prepared / 60:.1f}",
            f"{totals['episodes']:.0f}",
            f"{totals['optimizer_steps']:.0f}",
            f"{mean(r.totals['steps'] / r.totals['seconds_collect'] for r in results):.1f}",
            f"{100 * mean(r.totals['utilisation'] for r in results):.0f} %",
            failure_text(results),
        )
        lines.append(row(name, *cells))
    return lines


def failure_text(results: Sequence[Result]) -> str:
    """Failed attempts of all runs by reason, their preparations included: ``died 2, hung 1``, or ``0``."""
    counts: Counter[str] = Counter()
    for result in results:
        for found in (result.totals, result.preparation):
            counts.update({k.removeprefix(FAILED): int(v) for k, v in found.items() if k.startswith(FAILED) and v})
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())) or "0"
