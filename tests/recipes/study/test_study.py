"""The study: settings of every run load, result files are checked, the page is made from files alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.evaluation.statistics import Estimate
from bepa_torchrl.experiment.config import load_config, with_changes
from recipes.study import runner
from recipes.study.claims import verdict
from recipes.study.estimates import interval_text, paired
from recipes.study.figures import CURVES, DYNAMICS, Panel, curve
from recipes.study.further_page import further_section
from recipes.study.long_page import long_section
from recipes.study.notes import filled
from recipes.study.provenance import commits_text
from recipes.study.reading import read_study
from recipes.study.records import (
    DETAILS,
    HISTORY,
    ROOT,
    Result,
    ResultError,
    commit,
    kept_settings,
    other_settings,
    read_result,
    settings_hash,
)
from recipes.study.runner import Run, run_missing, up_to_date
from recipes.study.search import score
from recipes.study.solvable import answer
from recipes.study.staleness_page import staleness_section
from recipes.study.terse_page import write_page
from recipes.study.tuning import GRIDS, TERSE, simulated_search
from recipes.study.variants import PARTS, VARIANTS, Variant

TASKS = [f"t{i}" for i in range(6)]
SETS = {"train": TASKS[:4], "held_out/known": TASKS[4:5], "held_out/unknown": TASKS[5:], "expert_only": TASKS[:2]}
RATES = dict.fromkeys(("known", "unknown", "unknown_planned", "known_planned"), 0.5)
MEASURED = {
    "train": RATES,
    "held_out": RATES,
    "dialect": {"prompted_known": 0.6, "unprompted_share": 0.02},
    "divergence": {"raw": {"tail": 0.9, "js": 0.5, "nats": -9.0}},
    "sharpness": 1.5,
}


def result(variant: str, seed: int, wins: int, **changes: Any) -> Result:
    counts = dict.fromkeys(TASKS, (wins, 8))
    fields: dict[str, Any] = {
        "variant": variant, "seed": seed, "settings": {}, "code": 1, "base": "b", "commit": "0123456789",
        "machine": "m", "sets": SETS, "counts": {"sampled": counts},
        "base_counts": {"sampled": dict.fromkeys(TASKS, (1, 8))},
        "totals": {"episodes": 100.0, "optimizer_steps": 7.0, "seconds": 3.0},
        "preparation": {"self_roll_episodes": 64.0}, "curve": [{"iteration": 1.0, "collect/success": 0.25}],
    }  # fmt: skip
    return Result(**(fields | changes))


@pytest.mark.slow
def test_the_settings_of_every_run_load_and_differ(tmp_path: Path) -> None:
    variants = list(dict.fromkeys(variant for part in PARTS.values() for variant in part))
    runs = TERSE.runs_of(variants, (0, 1))
    trials = simulated_search(GRIDS, tmp_path / "none.json").trials(tmp_path)  # all of them are to be run
    runs += trials
    assert len({json.dumps(kept_settings(run.settings())) for run in runs}) == len(runs)
    assert {len(grid) for grid in GRIDS.values()} == {4, 6, 8}
    assert len(GRIDS["bepa"]) == 4  # where methods have unequal numbers of trials, BEPA has the fewest
    long = Run(VARIANTS["bepa_long"], 3).settings()
    assert (long.train.iterations, long.seed, long.algo.name) == (150, 3, "bepa")
    trial = trials[0].settings()
    assert (trial.env.train_split, trial.env.held_out_split, trial.train.iterations) == ("validation", None, 12)


def test_a_result_belongs_to_settings_that_differ_in_names_or_in_new_defaults_only() -> None:
    settings = load_config(["compare=[]"])
    made = kept_settings(settings)
    assert other_settings(made, with_changes(settings, {"name": "x", "processes": 7})) == []
    assert other_settings(made, with_changes(settings, {"optimizer.lr": 0.5})) == ["optimizer.lr"]
    older = {key: value for key, value in made.items() if key != "optimizer.lr"}
    assert other_settings(older, settings) == []  # made before the setting existed
    assert other_settings(older, with_changes(settings, {"optimizer.lr": 0.5})) == ["optimizer.lr"]
    assert other_settings(made | {"optimizer.gone": 1}, settings) == ["optimizer.gone"]


def test_the_page_has_means_and_paired_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipes.study.terse_page.TERSE", simulated_search(GRIDS, tmp_path / "none.json"))
    for seed in range(3):
        result("grpo", seed, 2).write(tmp_path / "results")
        result("bepa", seed, 6).write(tmp_path / "results")
    (tmp_path / "results" / "notes.txt").write_text("## By hand\n\nIt differs by {bepa - grpo, train}.\n")
    write_page(tmp_path / "results", tmp_path / "results.md", MEASURED)
    text = (tmp_path / "results.md").read_text()
    assert "\n## By hand\n\nIt differs by 50.0 (50 to 50).\n" in text
    assert "| base | 1 evaluation | 12.5 (12 to 12) |" in text
    assert "| grpo | 3 | 25.0 (25 to 25) |" in text
    assert "| 100 | 7 |" in text  # GRPO's rollouts
    assert "| 164 | 7 |" in text  # BEPA's include LEVEL-1's 64
    assert "| bepa | 50.0 (50 to 50)* |" in text
    assert "| bepa − grpo | train | +15.2 | 50.0 (50 to 50) | holds |" in text
    assert "The logits are multiplied by 1.5:" in " ".join(text.split())
    assert "The files of 6 runs name commit 012345678, which is no longer in this" in " ".join(text.split())
    assert "\n## Methods\n\n`make results-terse`\n" in text
    # 1 of 8 before, 2 of 8 after on every training task
    assert "solved 4 of the 4 training tasks" in text
    assert "12.5 (12 to 12) points, 3 seeds. A gain of 10 points was asked for: reached." in text
    assert "| level1 |" not in text  # there are no results of it
    assert "Long runs" not in text
    assert "| raw | 90.0 | 58.3 | 0.5000 | 0.2040 | -9.00 |" in text  # beside the paper's
    for name in ("curves.png", "differences.png"):
        assert (tmp_path / "results" / name).stat().st_size > 5000


@pytest.mark.slow
def test_the_page_may_be_in_another_folder_than_the_pages_it_has_links_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.study.terse_page.TERSE", simulated_search(GRIDS, tmp_path / "none.json"))
    docs = tmp_path / "docs"
    for seed in range(3):
        result("grpo", seed, 2).write(docs / "results" / "first")
        result("bepa", seed, 6).write(docs / "results" / "first")
    (docs / "results" / "first" / "summary.txt").write_text(
        "In short [{bepa - grpo, train}](limits.md#a), [b](#methods).\n"
    )
    (docs / "history").mkdir()
    write_page(docs / "results" / "first", docs / "history" / "first.md", MEASURED, docs)
    text = (docs / "history" / "first.md").read_text()
    assert "In short [50.0 (50 to 50)](../limits.md#a), [b](#methods)." in text
    assert "](../results/first/curves.png)" in text
    assert "[log](log.md)" in text
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if link.endswith(".png")}
    assert len(links) == 3
    assert all((docs / "history" / link).exists() for link in links)


def test_a_curve_is_the_mean_over_seeds_at_each_iteration() -> None:
    lines = [
        [{"iteration": 1.0, "a": 0.2, "total/seconds": 10.0, "total/episodes": 8.0}],
        [
            {"iteration": 1.0, "a": 0.6, "total/seconds": 30.0, "total/episodes": 8.0},
            {"iteration": 2.0, "total/seconds": 60.0, "total/episodes": 16.0},
        ],
    ]
    study = {"grpo": [result("grpo", seed, 1, curve=points) for seed, points in enumerate(lines)]}
    assert curve(study, "grpo", Panel("a", "", against="total/seconds")) == [(20.0, pytest.approx(0.4), 0.2, 0.6)]
    assert curve(study, "bepa", Panel("a", "")) == []
    assert curve(study, "grpo", Panel("eval/train", "")) == [  # the evaluation at the end, 1 of 8 episodes
        (1.0, 0.125, 0.125, 0.125), (2.0, 0.125, 0.125, 0.125),
    ]  # fmt: skip
    # LEVEL-1's 64 rollouts count where their traces are used
    own = {"bepa": [result("bepa", 0, 1, curve=lines[0])], "grpo": [result("grpo", 0, 1, curve=lines[0])]}
    assert [curve(own, name, Panel("a", "", against="total/rollouts"))[0][0] for name in own] == [72.0, 8.0]


def test_an_evaluation_that_one_seed_lacks_is_not_drawn() -> None:
    """Seed 0 continues a shorter run, which was evaluated at iteration 10, too; other metrics are drawn everywhere."""
    lines = [
        [{"iteration": 10.0, "eval/train": 0.9, "a": 0.5}, {"iteration": 25.0, "eval/train": 0.4}, {"iteration": 50.0}],
        [{"iteration": 10.0}, {"iteration": 25.0, "eval/train": 0.2}, {"iteration": 50.0}],
    ]
    study = {"grpo": [result("grpo", seed, 1, curve=points) for seed, points in enumerate(lines)]}
    assert curve(study, "grpo", Panel("eval/train", "")) == [
        (25.0, pytest.approx(0.3), 0.2, 0.4), (50.0, 0.125, 0.125, 0.125),
    ]  # fmt: skip
    assert curve(study, "grpo", Panel("a", "")) == [(10.0, 0.5, 0.5, 0.5)]


@pytest.mark.slow
def test_long_runs_show_seeds_below_three_and_intervals_from_there(tmp_path: Path) -> None:
    """BEPA is 25, 50 and 75 points above LEVEL-1 at iteration 50: with three seeds 50 ± 4.303 * 25 / √3."""

    def long(name: str, seed: int, middle: float, wins: int) -> Result:
        points = ((0.0, 0.1), (50.0, middle), (100.0, 0.5), (150.0, 0.0))
        curve = [{"iteration": at, "eval/train": rate, "total/episodes": 8 * at} for at, rate in points]
        rollouts = [{"iteration": at, "collect/success": wins / 8} for at in (*range(26, 51), *range(77, 101))]
        return result(name, seed, wins, curve=[*rollouts, *curve])

    study: dict[str, list[Result]] = {
        "bepa_long": [long("bepa_long", seed, 0.25 * (seed + 1), 6) for seed in range(2)],
        "level1_as_bepa_long": [long("level1_as_bepa_long", seed, 0.0, 2) for seed in range(2)],
    }
    assert long_section({name: results[:1] for name, results in study.items()}, tmp_path, "") == []
    assert long_section({"bepa_long": study["bepa_long"]}, tmp_path, "") == []  # nothing to compare it with
    text = "\n".join(long_section(study, tmp_path, "results"))
    assert "`python -m recipes.study --bed terse --part long --seeds 0 1`: 150 iterations" in text
    assert "| 50 | +25.0 / +50.0 | – | – | +50.0 / +50.0 |" in text
    assert "| 100 | +0.0 / +0.0 | – | – | – |" in text  # one rollout of the 25 iterations is missing
    assert "| 125 |" not in text  # no evaluation, no rollouts
    assert "| 150 | +50.0 / +50.0 | +50.0 / +50.0 | – | – |" in text  # the evaluation at the end, 6 and 2 of 8
    assert "| bepa_long | 2 | 75.0 / 75.0 |" in text
    assert "| level1_as_bepa_long | -50.0 / -50.0 |" in text
    assert (tmp_path / "long.png").stat().st_size > 5000
    study["bepa_long"].append(long("bepa_long", 2, 0.75, 6))
    study["level1_as_bepa_long"].append(long("level1_as_bepa_long", 2, 0.0, 2))
    text = "\n".join(long_section(study, tmp_path, "results"))
    assert "| 50 | 50.0 (-12 to 112) | – | – |" in text
    assert "| bepa_long | 3 | 75.0 (75 to 75) |" in text


def test_staleness_is_compared_with_lock_step_under_the_same_seeds(tmp_path: Path) -> None:
    curve = [
        {"iteration": 1.0, "total/episodes": 50.0, "collect/staleness_mean": 1.0, "train/rollout_kl_on_policy": 0.001},
        {"iteration": 2.0, "total/episodes": 100.0, "collect/staleness_mean": 2.0, "train/rollout_kl_on_policy": 0.003},
    ]
    stale = [result("bepa_stale2", seed, 4, curve=curve) for seed in (0, 1, 2)]
    study = {"bepa": [result("bepa", seed, 6) for seed in (0, 1, 2, 3)], "bepa_stale2": stale}
    assert staleness_section({**study, "bepa_stale2": stale[:2]}, tmp_path, "") == []  # no interval of two seeds
    text = "\n".join(staleness_section(study, tmp_path, "results"))
    assert "`python -m recipes.study --bed terse --part staleness --seeds 0 1 2`" in text
    assert re.search(r"\| bepa \| 3 \| 75\.0 ", text)  # its fourth seed is left out
    assert re.search(r"\| bepa_stale2 \| -25\.0 ", text)
    assert "| bepa_stale2 | 1.5 |  | 0.002 | 3 |" in text  # mean of 1 and 2, of 0.001 and 0.003
    assert (tmp_path / "staleness.png").stat().st_size > 0


def test_a_rule_with_one_seed_is_shown_beside_the_same_seed_without_an_interval() -> None:
    curve = [{"iteration": 1.0, "collect/steps": 30.0}, {"iteration": 2.0, "collect/steps": 12.0}]
    study = {
        "grpo": [result("grpo", seed, 2) for seed in (0, 1, 2)],
        "bepa": [result("bepa", seed, 6) for seed in (1, 2)],
        "prefix": [result("prefix", 0, 4, curve=curve)],
    }
    assert further_section({"grpo": study["grpo"]}) == []
    text = "\n".join(further_section(study))
    assert "`python -m recipes.study --bed terse --part further --seeds 0`" in text
    assert "| grpo | 25.0 | 25.0 | – | 25.0 | 25.0 | 100 |  | 7 |" in text  # its seed 0 alone
    assert "| bepa |" not in text  # it has no seed 0
    assert "| prefix | 50.0 | 50.0 | – | 50.0 | 50.0 | 164 | 42 | 7 |" in text
    assert "minus" not in text
    three = study | {"prefix": [result("prefix", seed, 4) for seed in (0, 1, 2)]}
    assert "| prefix | 25.0 (25 to 25)* |" in "\n".join(further_section(three))


def test_a_result_states_the_code_that_ran_and_its_settings(tmp_path: Path) -> None:
    result("grpo", 0, 2).write(tmp_path)
    whole = json.loads((tmp_path / "grpo-0.json").read_text())
    older = {key: value for key, value in whole.items() if key not in ("source", "config")}
    (tmp_path / "grpo-0.json").write_text(json.dumps(older))
    found = read_result(tmp_path / "grpo-0.json")  # made before the keys existed
    assert (found.variant, found.source, found.config) == ("grpo", "", "")
    settings = {"optimizer.betas": (0.9, 0.95), "seed": 0}
    result("grpo", 0, 2, settings=settings, config=settings_hash(settings)).write(tmp_path)
    text = (tmp_path / "grpo-0.json").read_text()
    assert read_result(tmp_path / "grpo-0.json").config == settings_hash(settings)
    (tmp_path / "grpo-0.json").write_text(text.replace('"seed": 0}', '"seed": 1}'))
    with pytest.raises(ResultError, match=r"grpo-0\.json: its settings were changed after it was made"):
        read_result(tmp_path / "grpo-0.json")


def test_each_start_with_other_code_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(runner.source_hash()) == 12
    for found in ("a", "a", "b"):
        monkeypatch.setattr(runner, "source_hash", lambda found=found: found)
        runner.note_source(tmp_path)
    assert runner.noted_sources(tmp_path) == ["a", "b"]
    assert runner.noted_sources(tmp_path / "none") == []


def test_commits_are_named_with_whether_the_history_has_them() -> None:
    here = commit().removesuffix("+")
    lines = " ".join(commits_text([result("grpo", 0, 1, commit=here, source="0a1b")], replayed=True))
    assert (
        lines == f"Commit of the runs: {here[:9]} (`+`: with uncommitted changes). "
        "Hash of the source trees that ran (`source`): 0a1b."
    )
    lines = " ".join(commits_text([result("grpo", 0, 1), result("grpo", 1, 1, commit="fedcba9876+")], replayed=False))
    assert "The files of 2 runs name commits 012345678, fedcba987+, which are no longer in this" in lines
    assert "a test that repeats" not in lines
    assert "2 files were made before the key `source`" in lines


def test_notes_name_a_figure_that_has_no_interval() -> None:
    study = {"grpo": [result("grpo", seed, 2) for seed in range(3)]}
    assert filled("{grpo, train} and {grpo - base, train}", study) == "25.0 (25 to 25) and 12.5 (12 to 12)"
    assert filled("{base, train}", study) == "12.5 (12 to 12)"
    for text in ("{bepa - grpo, train}", "{bepa, train}", "{grpo, nothing}"):
        with pytest.raises(ResultError, match=re.escape(text)):
            filled(text, study)


def test_the_summary_is_two_screens() -> None:
    assert len((ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Estimate(0.09, 0.03, 0.16), "**narrowly missed**, with 10 in the interval"),
        (Estimate(0.05, 0.03, 0.07), "**missed**"),
        (Estimate(0.2, 0.03, 0.3), "narrowly reached, with 10"),
        (Estimate(0.2, 0.11, 0.3), ": reached."),
    ],
)
def test_the_answer_about_grpo_says_what_the_interval_allows(gain: Estimate, words: str) -> None:
    assert words in answer(gain)


@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 12), ("docs/methods.md", 29), ("docs/limits.md", 1), ("docs/results.md", 100)]
)
def test_other_pages_state_the_figures_of_the_results(name: str, least: int) -> None:
    """Every figure with an interval in them stands on one of the pages with all tables as well."""
    interval = re.compile(r"-?\d+\.\d \(-?[\d.]+ to -?[\d.]+\)")
    stated = interval.findall((ROOT / name).read_text(encoding="utf-8"))
    assert len(stated) >= least
    page = "".join(path.read_text(encoding="utf-8") for path in (DETAILS, HISTORY))
    assert [figure for figure in stated if figure not in page] == []


def test_no_interval_of_staleness_excludes_the_loss_that_the_pages_name() -> None:
    """The least loss at the lower bounds is 5.8 points, with a staleness of 4 and corrected."""
    names = ("bepa_stale1", "bepa_stale2", "bepa_stale4", "bepa_stale4_corrected")
    study = read_study(ROOT / "docs" / "results" / "terse")
    found = [paired(study, name, "bepa", "train") for name in names]
    bounds = [round(100 * each.low, 1) for each in found if each is not None]
    assert bounds == [-8.7, -13.4, -17.4, -5.8]
    for page in (HISTORY, ROOT / "docs" / "cluster.md"):
        assert "none excludes a loss of five points" in page.read_text(encoding="utf-8")


def test_a_mean_that_rounds_to_zero_has_no_sign() -> None:
    assert interval_text(Estimate(-0.0004, -0.09, 0.0004)) == "0.0 (-9 to 0)"


def test_a_verdict_needs_an_interval_on_one_side_of_zero() -> None:
    assert verdict(Estimate(0.1, 0.02, 0.2), 5.0) == "holds"
    assert verdict(Estimate(-0.1, -0.2, -0.02), -5.0) == "holds"
    assert verdict(Estimate(-0.1, -0.2, -0.02), 5.0) == "does not hold"
    assert verdict(Estimate(0.1, -0.02, 0.2), 5.0) == "undecided"


def test_results_that_do_not_belong_together_are_refused_by_name(tmp_path: Path) -> None:
    result("grpo", 0, 2).write(tmp_path)
    with pytest.raises(ResultError, match="no variant has results of 3 seeds"):
        write_page(tmp_path, tmp_path / "page.md", MEASURED)
    result("grpo", 1, 2, code=2, commit="fedcba9876").write(tmp_path)
    with pytest.raises(ResultError, match=r"grpo-1\.json was made with another code than grpo-0\.json"):
        read_study(tmp_path)
    (tmp_path / "grpo-1.json").write_text('{"variant": "gr')
    with pytest.raises(ResultError, match=r"grpo-1\.json: not a result file of this version"):
        read_study(tmp_path)
    (tmp_path / "grpo-1.json").unlink()
    (tmp_path / "unknown-1.json").write_text((tmp_path / "grpo-0.json").read_text())
    with pytest.raises(ResultError, match=r"unknown-1\.json"):
        read_study(tmp_path)


def test_variants_with_more_self_rollouts_are_compared_on_the_usual_expert_only_tasks(tmp_path: Path) -> None:
    result("grpo", 0, 2).write(tmp_path)
    for seed in (0, 1):
        result("bound", seed, 2, sets={**SETS, "expert_only": TASKS[:3]}).write(tmp_path)
    found = read_study(tmp_path)["bound"]
    assert [each.sets["expert_only"] for each in found] == [TASKS[:2], TASKS[:3]]  # no usual run has seed 1
    assert found[0].sets["train"] == SETS["train"]


def test_a_score_is_the_mean_over_tasks() -> None:
    one = result("grpo", 0, 2, counts={"sampled": {"t0": (8, 8), "t1": (0, 8), "t2": (4, 8), "t3": (2, 4)}})
    assert score(one) == pytest.approx(0.5)
    lost = result("grpo", 0, 2, counts={"sampled": dict.fromkeys(("t0", "t1", "t2"), (4, 8)) | {"t3": (0, 0)}})
    with pytest.raises(ResultError, match=r"grpo-0\.json: no episode of t3 was played"):
        score(lost)


def write_trials(folder: Path, wins: dict[str, int], algo: str = "grpo") -> None:
    """Results of trials: the end of the name → successes of 8 on each task."""
    for name, successes in wins.items():
        counts = {"sampled": dict.fromkeys(("t0", "t1", "t2", "t3"), (successes, 8))}
        result(f"tune_{algo}_{name}", 100, 0, counts=counts).write(folder)


def test_the_best_trials_go_on_and_the_last_score_chooses(tmp_path: Path) -> None:
    """Trials 0, 2 and 3 have 4, 6 and 5 of 8; trial 3 is the best after 40 iterations."""
    one = (("optimizer.lr=1",), ("optimizer.lr=2",), ("optimizer.lr=3",), ("optimizer.lr=4",))
    search = simulated_search({"grpo": one, "sft": one}, tmp_path / "tuned.json")
    for algo in ("grpo", "sft"):
        write_trials(tmp_path, {"0": 4, "1": 3, "2": 6, "3": 5}, algo)
    going_on = search.finals(tmp_path)
    assert [(run.variant.name, run.variant.continues, run.tuned) for run in going_on] == [
        ("tune_grpo_2_long", "tune_grpo_2", one[2]), ("tune_grpo_3_long", "tune_grpo_3", one[3]),
    ]  # fmt: skip
    with pytest.raises(ResultError, match=r"no tune_grpo_2_long-100\.json"):
        search.choose(tmp_path)
    write_trials(tmp_path, {"2_long": 1, "3_long": 7})
    search.choose(tmp_path)
    assert search.tuned("grpo") == one[3]
    assert search.tuned("sft") == one[2]  # it has no iterations that could go on
    assert "| grpo | `optimizer.lr=4` **(chosen)** | 62.5 | 87.5 |" in search.table()
    assert "| sft | `optimizer.lr=1` | 50.0 |  |" in search.table()


def test_a_trial_that_ties_with_the_last_that_goes_on_goes_on_too(tmp_path: Path) -> None:
    grid = tuple((f"optimizer.lr={number}",) for number in range(4))
    search = simulated_search({"grpo": grid}, tmp_path / "tuned.json")
    write_trials(tmp_path, {"0": 5, "1": 4, "2": 6, "3": 5})
    assert [run.variant.name for run in search.finals(tmp_path)] == [f"tune_grpo_{n}_long" for n in (0, 2, 3)]
    write_trials(tmp_path, {"0_long": 5, "2_long": 6, "3_long": 7})
    search.choose(tmp_path)
    assert search.tuned("grpo") == grid[3]


def test_a_wider_grid_runs_its_new_trials_only(tmp_path: Path) -> None:
    """Trials 0 and 1 are kept; of the new ones, 2 is better than both after 12 iterations, and worse after 40."""
    grid = tuple((f"optimizer.lr={number}",) for number in range(4))
    search = simulated_search({"grpo": grid}, tmp_path / "tuned.json")
    kept = {"optimizer.lr=0": 0.25, "optimizer.lr=1": 0.5}
    (tmp_path / "tuned.json").write_text(json.dumps({"grpo": {"settings": [*grid[1]], "scores": kept, "longer": kept}}))
    assert [run.variant.name for run in search.trials(tmp_path)] == ["tune_grpo_2", "tune_grpo_3"]
    write_trials(tmp_path, {"2": 6, "3": 1, "2_long": 3})
    assert [run.variant.name for run in search.finals(tmp_path)] == ["tune_grpo_2_long"]
    search.choose(tmp_path)
    assert search.tuned("grpo") == grid[1]
    assert search.trials(tmp_path) == search.finals(tmp_path) == []
    assert "| grpo | `optimizer.lr=2` | 75.0 | 37.5 |" in search.table()


@pytest.mark.parametrize(("best", "names"), [("3", ["tune_grpo_4", "tune_grpo_5"]), ("1", [])])
def test_a_winner_at_an_edge_gets_the_two_further_trials_of_that_edge(
    tmp_path: Path, best: str, names: list[str]
) -> None:
    grid = tuple((f"optimizer.lr={number}",) for number in range(4))
    beyond = {"grpo": {grid[0]: (("optimizer.lr=-1",),), grid[3]: (("optimizer.lr=8",), ("optimizer.lr=9",))}}
    search = simulated_search({"grpo": grid}, tmp_path / "tuned.json", beyond)
    assert len(search.trials(tmp_path)) == 4  # nothing is known yet
    write_trials(tmp_path, {str(number): 6 if str(number) == best else 3 for number in range(4)})
    assert [run.variant.name for run in search.trials(tmp_path)][4:] == names
    write_trials(tmp_path, {"4": 1, "5": 7, "0_long": 3, "2_long": 1, "3_long": 1, f"{best}_long": 2, "5_long": 8})
    search.choose(tmp_path)
    assert search.tuned("grpo") == (("optimizer.lr=9",) if names else grid[0])
    assert search.trials(tmp_path) == []  # all scores are in the file


@pytest.mark.slow
def test_runs_that_are_missing_are_made_and_an_interrupted_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two small runs that share a preparation; then nothing is left to do; a changed setting is run again."""
    small = ("experiment=smoke", "env.max_steps=3", "eval.every=1", "record.every=0", "record.starts.any=''")
    monkeypatch.setattr(Variant, "overrides", property(lambda self: (f"algo={self.algo}", *small, *self.settings)))
    runs = [Run(Variant("grpo", "grpo"), 0), Run(Variant("bepa", "bepa"), 0)]
    lines: list[str] = []
    work, out = tmp_path / "work", tmp_path / "out"
    assert run_missing(runs, work, out, processes=2, log=lines.append) == 0
    assert sum(line.endswith("prepares") for line in lines) == 1
    found = {path.name: read_result(path) for path in out.iterdir()}
    assert set(found) == {"grpo-0.json", "bepa-0.json"}
    last = found["bepa-0.json"].curve[-1]
    assert last["iteration"] == 2
    assert last.keys() >= {"cache/injected", "cache/refreshed", "collect/entropy", "total/episodes", "total/seconds"}
    points = [point for run in found.values() for point in run.curve]
    # every response begins with nothing: in rollouts, in the evaluation during training, in the one at the end
    assert [point.get("collect/starts_any") for point in found["grpo-0.json"].curve[1:]] == [1.0, 1.0]
    assert [point.get("eval/starts_any") for point in found["grpo-0.json"].curve[1:]] == [1.0, 1.0]
    drawn = {panel.key for panel in (*CURVES, *DYNAMICS)} - {"eval/held_out", "eval/expert_only"}
    assert drawn <= {key for point in points for key in point}, "a panel without values"
    assert all(up_to_date(run, out) for run in runs)
    monkeypatch.setattr(runner, "MethodChild", None)  # nothing may start
    assert run_missing(runs, work, out, processes=2, log=lines.append) == 0
    assert lines[-1] == "2 of 2 results exist; 0 to run"
    monkeypatch.undo()
    monkeypatch.setattr(Variant, "overrides", property(lambda self: (f"algo={self.algo}", *small, *self.settings)))
    (out / "grpo-0.json").unlink()  # as if killed before the result was written: the finished training is not repeated
    assert run_missing(runs, work, out, processes=1, log=lines.append) == 0
    assert "grpo-0: continues" in lines
    again = json.loads((out / "grpo-0.json").read_text())
    assert again["counts"] == json.loads(json.dumps(found["grpo-0.json"].counts))
    assert not up_to_date(Run(runs[0].variant, 0, ("optimizer.lr=0.1",)), out)
    longer = Run(Variant("grpo_longer", "grpo", settings=("train.iterations=3",), continues="grpo"), 0)
    assert run_missing([longer], work, out, processes=1, log=lines.append) == 0
    points = read_result(out / "grpo_longer-0.json").curve
    before = found["grpo-0.json"].curve
    end = {key: value for key, value in before[-1].items() if key != "eval/starts_any"}  # of the shorter run's end
    assert points[:-1] == [*before[:-1], end]
    assert points[-1]["iteration"] == 3
    for shorter, rate in (("absent", "0.001"), ("grpo", "0.002")):  # no such run, and one with another rate
        settings = ("train.iterations=1", f"optimizer.lr={rate}")
        fresh = Run(Variant(f"grpo_after_{shorter}", "grpo", settings=settings, continues=shorter), 0)
        assert run_missing([fresh], work, out, processes=1, log=lines.append) == 0
        assert f"{fresh.name}: starts" in lines
        assert [point["iteration"] for point in read_result(out / f"{fresh.name}.json").curve] == [0, 1]


def test_a_task_without_an_episode_is_left_out_on_both_sides() -> None:
    """The desktop of one task failed in every episode of one method, and that of another task in those of the other."""
    tasks = {"t0": 0, "t1": 8, "t2": 4}
    sets = {"train": list(tasks), "expert_only": list(tasks)}
    study = {
        name: [
            result(
                name, seed, 0, sets=sets, counts={"sampled": {t: (won, 8 * (t != lost)) for t, won in tasks.items()}}
            )
            for seed in range(3)
        ]
        for name, lost in (("bepa", "t0"), ("grpo", "t1"))
    }
    for part in ("train", "expert_only"):
        found = paired(study, "bepa", "grpo", part)
        assert found is not None
        assert found.mean == 0.0, part  # of t2, which both have played
