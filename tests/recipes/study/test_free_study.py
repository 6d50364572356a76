"""The study on base policies with free words: which checkpoint it takes, what it runs, its page from files alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.checkpoints import checkpoint_folder
from recipes.study import __main__ as study
from recipes.study import free_base as bases
from recipes.study.bases import SHIPPED, Base
from recipes.study.free_base import EVALUATIONS, free_base, note_base, read_known
from recipes.study.free_bed import BEYOND, GRIDS, SEEDS, SETTINGS, free_search, untuned
from recipes.study.free_page import tuning_text, write_free_page
from recipes.study.records import Result, ResultError, kept_settings
from recipes.study.runner import Run, up_to_date
from recipes.study.summary_page import write_summary
from recipes.study.tuning import RULES, TERSE, simulated_search
from recipes.study.variants import FREE_PARTS, VARIANTS
from recipes.tiny.checkpoint import read_manifest, write_notes
from recipes.tiny.free_gate import free_gate_failures

TASKS = [f"t{i}" for i in range(6)]
SETS = {"train": TASKS[:4], "held_out": TASKS[4:], "held_out/known": TASKS[4:5], "held_out/unknown": TASKS[5:],
        "expert_only": TASKS[:2]}  # fmt: skip


def result(variant: str, seed: int, wins: int, *, terse: tuple[float, float] = (0.02, 0.02), **changes: Any) -> Result:
    curve = [
        {"iteration": 1.0, "collect/entropy": 0.8, "collect/starts_terse": terse[0], "cache/starts_terse": 0.9},
        {"iteration": 2.0, "collect/entropy": 0.2, "collect/starts_terse": terse[1], "eval/starts_terse": terse[1]},
    ]
    fields: dict[str, Any] = {
        "variant": variant, "seed": seed, "settings": {}, "code": 1, "base": "b", "commit": "0123456789",
        "machine": "m", "sets": SETS, "counts": {"sampled": dict.fromkeys(TASKS, (wins, 8))},
        "base_counts": {"sampled": dict.fromkeys(TASKS, (1, 8))},
        "totals": {"episodes": 100.0, "optimizer_steps": 7.0, "seconds": 3.0},
        "preparation": {"self_roll_episodes": 64.0}, "curve": curve,
    }  # fmt: skip
    return Result(**(fields | changes))


def passing() -> dict[str, Any]:
    """Figures that pass the gate."""
    rates = {"known": 0.9, "unknown": 0.1, "unknown_planned": 0.8, "known_planned": 0.9, "known_terse": 0.7}
    sets = {"raw": (0.9, 0.6), "converted": (0.3, 0.1), "level1": (0.1, 0.05), "level2": (0.2, 0.004),
            "on_policy": (0.25, 0.0)}  # fmt: skip
    found = {
        "train": rates,
        "held_out": rates,
        "terse_share": 0.02,
        "divergence": {name: {"tail": tail, "js": js, "nats": -1.0} for name, (tail, js) in sets.items()},
        "expert_only": 25,
        "dialect": {"prompted_known": 0.5, "unprompted_share": 0.01},
    }
    assert free_gate_failures(found) == []
    return found


def checkpoint(folder: Path, *, step: int = 30, **recipe: Any) -> Path:
    """A folder as the recipe writes it, with weights that nobody loads."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    notes = {
        "command": "python -m recipes.tiny --wording free --share 1.0 --seed 4",
        "recipe": {"steps": [10, 20], "seed": 4, "styles": {"alone": 0.02}} | recipe,
        "step": step,
        "measured": {"not": "used"},
    }
    write_notes(folder, notes)
    return folder


def test_a_base_policy_is_a_finished_training_in_free_words(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "whole")
    found = free_base(folder, look=False)
    assert (found.name, found.folder) == ("free/seed-4", folder)
    assert found.overrides == (f"policy.checkpoint={folder}", *SETTINGS)
    assert SHIPPED.overrides == ()
    early = checkpoint(tmp_path / "early", step=29)
    with pytest.raises(ValueError, match="is at step 29 of 30; wait for its end, or take a --look"):
        free_base(early, look=False)
    assert free_base(early, look=True).name == "free/seed-4-step-29"
    assert free_base(early, look=True, name="another").name == "free/another-step-29"
    assert free_base(folder, look=False, name="another").name == "free/another"
    for given in (Path("tiny_plans"), Path(checkpoint_folder("tiny_plans"))):
        shipped = free_base(given, look=False)
        assert (shipped.name, shipped.folder) == ("free/tiny_plans", Path(checkpoint_folder("tiny_plans")))
    with pytest.raises(ValueError, match=r"has no manifest\.json; give the folder that"):
        free_base(tmp_path, look=True)
    with pytest.raises(ValueError, match="is no policy that thinks in free words"):
        free_base(checkpoint(tmp_path / "terse", styles=None), look=True)
    (folder / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ValueError, match=r"are not those of its manifest\.json"):
        free_base(folder, look=True)


def test_the_gate_is_measured_once_for_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = free_base(checkpoint(tmp_path / "policy"), look=False)
    known = note_base(base, tmp_path / "out")
    assert known.failures() == ["evaluations that are not measured: 17, 18"]
    assert "measured" not in known.manifest
    asked = []

    class Pool:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, _: Any, folder: Path, seed: int) -> Any:
            asked.append((folder, seed))
            figures = passing() | ({"expert_only": 3} if seed == EVALUATIONS[1] else {})
            return type("Done", (), {"result": staticmethod(lambda: figures)})

    monkeypatch.setattr(bases, "ProcessPoolExecutor", Pool)
    lines: list[str] = []
    for _ in range(2):
        known = bases.measure_missing(base, tmp_path / "out", processes=2, log=lines.append)
    assert asked == [(base.folder, seed) for seed in EVALUATIONS]
    assert lines == ["free/seed-4: measures the gate's figures with evaluation seeds 17, 18"]
    assert known.failures() == ["evaluation 18: expert_only: expected at least 20, measured 3"]
    (tmp_path / "out" / "base" / "seed-17.json").rename(tmp_path / "out" / "base" / "seed-5.json")
    known = bases.measure_missing(base, tmp_path / "out", processes=2, log=lines.append)  # two, of whatever seeds
    assert (list(known.measured), len(asked)) == ([5, 18], 2)
    (base.checkpoint / "model.safetensors").write_bytes(b"others")
    assert note_base(base, tmp_path / "out").measured == {}  # of other weights


def test_results_name_the_base_policy_and_not_its_folder(tmp_path: Path) -> None:
    base = free_base(checkpoint(tmp_path / "policy"), look=False)
    run = Run(VARIANTS["bepa"], 0, (), base)
    settings = run.settings()
    assert settings.policy.checkpoint == str(base.checkpoint.resolve())
    assert settings.record.starts == {"terse": "Thought: just"}
    kept = {**kept_settings(settings), "policy.checkpoint": base.name}
    result("bepa", 0, 1, settings=kept, base=base.hash()).write(tmp_path / "out")
    assert up_to_date(run, tmp_path / "out")
    moved = Base(base.name, checkpoint(tmp_path / "elsewhere"), SETTINGS)
    assert up_to_date(Run(VARIANTS["bepa"], 0, (), moved), tmp_path / "out")
    assert not up_to_date(Run(VARIANTS["bepa"], 0, ("optimizer.lr=0.1",), base), tmp_path / "out")
    assert not up_to_date(Run(VARIANTS["bepa"], 0), tmp_path / "out")  # from the shipped policy


def test_every_method_of_the_bed_is_searched_with_four_trials_and_two_at_an_edge() -> None:
    algos = {variant.algo for part in FREE_PARTS.values() for variant in part}
    assert algos | set(RULES) == set(GRIDS) == set(BEYOND)
    for algo, grid in GRIDS.items():
        assert len(grid) == len(set(grid)) == 4
        assert set(BEYOND[algo]) <= set(grid), algo
        for further in BEYOND[algo].values():
            assert len(further) == 2
            assert not set(further) & set(grid), algo
    named = [variant.name for part in FREE_PARTS.values() for variant in part]
    assert len(named) == len(set(named))
    assert {"bepa_wording", "bepa_actions", "sft_self_rl_long", "level1_as_bepa"} <= set(named)
    parts = {variant.tuned_as or variant.algo for part in FREE_PARTS.values() for variant in part}
    assert parts <= set(GRIDS)


def test_fine_tuning_on_the_self_rolled_traces_is_searched_around_what_won_on_the_other_bed() -> None:
    """Its first four trials there ended at 5 epochs, and 20 and more won: it must not lose here for want of those."""
    assert TERSE.tuned("sft_self") in GRIDS["sft_self"]
    further = {each for grid in BEYOND["sft_self"].values() for each in grid}
    assert ("sft.lr=3e-4", "sft.epochs=40") in further


@pytest.mark.slow
def test_the_settings_of_every_trial_and_run_of_the_bed_load(tmp_path: Path) -> None:
    search = simulated_search(GRIDS, tmp_path / "none.json", BEYOND, SHIPPED)
    runs = search.trials(tmp_path)
    chosen = free_search(SHIPPED)
    tuned_as = {variant: variant.tuned_as or variant.algo for part in FREE_PARTS.values() for variant in part}
    studied = [Run(variant, 0, chosen.tuned(key) or GRIDS[key][-1], SHIPPED) for variant, key in tuned_as.items()]
    assert len({json.dumps(kept_settings(run.settings())) for run in studied}) == len(studied)
    runs += studied
    further = {(algo, each) for algo, edges in BEYOND.items() for grid in edges.values() for each in grid}
    runs += [Run(search.trial_variant(algo, 4), 0, settings) for algo, settings in sorted(further)]
    for run in runs:
        run.settings()
    by_name = {run.variant.name: run.settings() for run in runs}
    assert by_name["bepa_wording"].cache.refresh == "wording"
    assert by_name["bepa_actions"].cache.refresh == "actions"
    assert by_name["sft_self_rl_long"].train.iterations == 150


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--part", "staleness"], "the bed free has the parts core, controls, anchor, long"),
        (["--bed", "terse", "--part", "core"], "the bed terse has the parts methods, refresh"),
        (["--bed", "terse", "--base", "x"], "--base, --name, --look and --despite-gate are for --bed free"),
        (["--bed", "terse", "--name", "x"], "--base, --name, --look and --despite-gate are for --bed free"),
        (["--bed", "terse", "--despite-gate"], "--base, --name, --look and --despite-gate are for --bed free"),
        (["--base", "x", "--name", "../x"], "--name: expected letters, digits, '-' and '_', got '../x'"),
        (["--base", "x", "--look", "--despite-gate"], "leave one of them out"),
        (["--replay"], "--replay is of the first base policy; add --bed terse"),
        (["--tune", "--seeds", "0", "1", "2"], "--seeds: the trials of --tune have seeds of their own"),
        (["--seeds", "0"], "an interval requires at least 3 different seeds"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(given: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        study.check_options(study.parser().parse_args(given))


def test_the_search_from_the_first_policy_is_of_the_methods_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(study, "tune", lambda wanted, *_, **__: asked.append(list(wanted.grids)) or True)
    command = ["--bed", "terse", "--tune"]
    for more in (["--variants", "grpo", "bepa_anchor"], []):
        assert study.main([*command, *more]) == 0
    assert asked == [[name for name in TERSE.grids if name in {"grpo", "bepa_anchor"}], list(TERSE.grids)]
    assert len(asked[0]) == 2


def run_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, list[list[Run]]]:
    """The command with everything that takes long replaced; the runs that it asked for."""
    asked: list[list[Run]] = []

    def pretend(runs: list[Run], work: Path, out: Path, *, processes: int, log: Any, **_: Any) -> int:
        assert (work, processes) == (tmp_path / "work", 2)
        asked.append(list(runs))
        for run in runs:
            result(run.variant.name, run.seed, 3, base=run.base.hash()).write(out)
            log(run.name)
        return 0

    monkeypatch.setattr(study, "run_missing", pretend)
    monkeypatch.setattr("recipes.study.search.run_missing", pretend)
    monkeypatch.setattr("recipes.study.free_bed.CHOICES", tmp_path / "tuned_free.json")
    folders = ["--base", str(tmp_path / "policy"), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    return study.main(["--bed", "free", *folders, *more]), asked


def known_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, Any]) -> None:
    """As if the figures had been measured."""

    def measured(base: Base, out: Path, **_: Any) -> bases.Known:
        return bases.Known(note_base(base, out).manifest, dict.fromkeys(EVALUATIONS, figures))

    checkpoint(tmp_path / "policy")
    monkeypatch.setattr(study, "measure_missing", measured)


def test_one_command_searches_runs_all_parts_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known_gate(tmp_path, monkeypatch, passing())
    pages: list[tuple[Path, Path]] = []
    monkeypatch.setattr(study, "write_free_page", lambda folder, page, _: pages.append((folder, page)) or True)
    monkeypatch.setattr(study, "write_summary", lambda folder, page, _: pages.append((folder, page)) or True)
    code, asked = run_study(tmp_path, monkeypatch)
    assert code == 0
    first, further, finals, runs = asked
    assert len(first) == 4 * len(GRIDS)
    assert {run.base.name for run in (*first, *runs)} == {"free/seed-4"}
    assert len(further) > len(first)  # all trials score alike, so that the first of each method wins: some are edges
    assert all(run.variant.continues for run in finals)
    assert len(runs) == 5 * sum(len(part) for name, part in FREE_PARTS.items() if name != "long") + 3 * 8
    assert SEEDS["long"] == (0, 1, 2)
    assert [run.variant.name for run in runs[:5]] == [variant.name for variant in FREE_PARTS["core"]]
    choices = json.loads((tmp_path / "tuned_free.json").read_text())
    assert {found["base"] for found in choices.values()} == {"free/seed-4"}
    out = tmp_path / "out"
    assert pages == [(out, out / "results-details.md"), (out, out / "results.md")]
    assert "recipes.study --base seed-4 --tune`" in tuning_text()
    code, asked = run_study(tmp_path, monkeypatch, "--part", "core")  # the choices are there: no search
    assert (code, len(asked)) == (0, 1)
    other = free_search(Base("free/seed-9", tmp_path / "policy"))
    with pytest.raises(ValueError, match="has the choices made on free/seed-4, which are used for free/seed-9 as well"):
        study.tune(other, tmp_path, processes=1, log=print)
    assert other.command == f"python -m recipes.study --base {tmp_path / 'policy'} --tune"  # it has no shipped name
    assert free_search(Base("free/tiny_free", tmp_path)).command == "python -m recipes.study --base tiny_free --tune"
    choices.pop("arpo"), choices.pop("prefix")
    (tmp_path / "tuned_free.json").write_text(json.dumps(choices))
    with pytest.raises(ValueError, match=r"as well; search those of arpo, prefix on it, too \(--base, --tune\)"):
        study.tune(other, tmp_path, processes=1, log=print)
    other.check_weights()
    shutil.rmtree(tmp_path / "policy")  # and trained again
    (checkpoint(tmp_path / "policy") / "model.safetensors").write_bytes(b"others")
    write_notes(tmp_path / "policy", read_manifest(tmp_path / "policy"))
    capsys.readouterr()
    assert run_study(tmp_path, monkeypatch, "--part", "core") == (2, [])
    assert "has the choices made on other weights" in capsys.readouterr().err


def test_a_part_searches_the_settings_of_its_own_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known_gate(tmp_path, monkeypatch, passing())
    monkeypatch.setattr(study, "write_pages", lambda _: None)
    choices = tmp_path / "tuned_free.json"

    def searched(*options: str) -> set[str]:
        """The methods and rules whose trials the command ran."""
        code, asked = run_study(tmp_path, monkeypatch, *options)
        assert code == 0
        names = (re.match(r"tune_(\w+?)_\d", run.variant.name) for runs in asked for run in runs)
        return {name[1] for name in names if name}

    assert searched("--part", "core", "--tune") == {"grpo", "bepa", "level1", "sft_self"}
    before = json.loads(choices.read_text())
    assert searched("--part", "controls") == set()  # of BEPA, whose settings are chosen
    assert searched("--part", "anchor") == {"bepa_anchor"}
    assert searched("--variants", "sft_self_rl_long", "bepa_long") == {"sft_self_rl"}
    after = json.loads(choices.read_text())
    assert after.keys() == {*before, "bepa_anchor", "sft_self_rl"}
    assert before == {key: after[key] for key in before}
    assert searched() == GRIDS.keys() - after.keys()


def test_a_policy_that_fails_its_gate_is_refused_but_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known_gate(tmp_path, monkeypatch, passing() | {"expert_only": 3})
    code, asked = run_study(tmp_path, monkeypatch)
    assert (code, asked) == (2, [])
    said = capsys.readouterr().err
    assert (
        "free/seed-4 fails its gate: evaluation 17: expert_only: expected at least 20, measured 3; evaluation" in said
    )
    assert "with --despite-gate it is studied all the same" in said
    code, asked = run_study(tmp_path, monkeypatch, "--look", "--variants", "bepa", "--seeds", "0")
    assert (code, [[run.name for run in runs] for runs in asked]) == (0, [["bepa-0"]])
    page = " ".join((tmp_path / "out" / "results-details.md").read_text().split())
    assert "**`seed-4` does not pass its gate: a look, no comparison of methods.**" in page
    assert "comparison of methods.** - evaluations that are not measured: 17, 18" in page
    assert not (tmp_path / "tuned_free.json").exists()


@pytest.mark.slow
def test_despite_its_gate_a_policy_is_studied_in_full_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = passing() | {"expert_only": 3}
    known_gate(tmp_path, monkeypatch, failing)
    code, asked = run_study(tmp_path, monkeypatch, "--despite-gate", "--part", "core")
    assert code == 0
    assert len(asked[-1]) == 5 * len(FREE_PARTS["core"])
    assert json.loads((tmp_path / "tuned_free.json").read_text()).keys() == {"grpo", "bepa", "level1", "sft_self"}
    out = tmp_path / "out" / "seed-4"
    weights = json.loads((out / "base" / "manifest.json").read_text())["weights"]
    for seed in EVALUATIONS:
        figures = json.dumps({"weights": weights, "measured": failing})
        (out / "base" / f"seed-{seed}.json").write_text(figures)
    assert write_free_page(tmp_path / "out", tmp_path / "out" / "results-details.md")
    page = " ".join((tmp_path / "out" / "results-details.md").read_text().split())
    assert (
        "**`seed-4` does not pass its gate; methods are compared on it all the same.** - evaluation 17: expert" in page
    )
    assert "does not pass its gate: a look" not in page


def write_results(folder: Path, name: str, *, seeds: int = 3) -> None:
    out = folder / name
    figures = {"weights": "b", "measured": passing()}
    (out / "base").mkdir(parents=True)
    for seed in EVALUATIONS:
        (out / "base" / f"seed-{seed}.json").write_text(json.dumps(figures))
    manifest = {"weights": "b", "command": "python -m recipes.tiny --wording free", "step": 2, "recipe": {"steps": [2]}}
    (out / "base" / "manifest.json").write_text(json.dumps(manifest))
    for seed in range(seeds):
        result("grpo", seed, 2).write(out)
        result("bepa", seed, 6, terse=(0.02, 0.1)).write(out)
        result("level1_as_bepa", seed, 4, terse=(0.02, 0.5)).write(out)
        result("bepa_long", seed, 6, terse=(0.02, 0.1)).write(out)
        result("level1_as_bepa_long", seed, 4, terse=(0.02, 0.5)).write(out)


def test_the_page_has_both_base_policies_claims_and_the_mechanism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.study.free_bed.CHOICES", tmp_path / "none.json")
    page, folder = tmp_path / "results-details.md", tmp_path / "results" / "free"
    assert not write_free_page(folder, page)
    (folder / "seed-0" / "base").mkdir(parents=True)  # noted, and not run yet
    assert not write_free_page(folder, page)
    assert not page.exists()
    (folder / "seed-0" / "base").rmdir()
    write_results(folder, "seed-0")
    write_results(folder, "seed-1", seeds=1)
    for seed in range(3):
        result("bepa_trace", seed, 5).write(folder / "seed-0")
    assert read_known(folder / "seed-0").failures() == []
    assert write_free_page(folder, page)
    text = page.read_text()
    assert text.startswith("# Details of the results\n")
    assert "does not pass its gate" not in text
    assert "![Entropy, terse thoughts and success over training](results/free/seed-0/mechanism.png)" in text
    assert "| bepa | 3 | 75.0 (75 to 75) |" in text
    assert "| bepa | 1 | 75.0 |" in text  # seed-1 has one seed: no interval
    assert "| bepa | 0.80 → 0.20 | 2.0 → 10.0 | 10.0 (10 to 10) | 90.0 | – |" in text
    assert "| bepa − grpo | train | +15.2 | 50.0 (50 to 50) holds | – |" in text
    assert "| bepa − level1_as_bepa | held_out | +5.2 | 25.0 (25 to 25) holds | – |" in text
    assert "| level1_as_bepa − bepa | 40.0 (40 to 40)* | +40.0 |" in text
    assert "| 17 | train | 90.0 | 10.0 | 80.0 | 90.0 | 70.0 | 2.0 |" in text
    long = text.split("### 150 iterations")[1]
    assert "| minus level1_as_bepa_long |" in long
    assert "| bepa_long | 25.0 (25 to 25)* |" in long
    assert "| bepa_long | 0.80 → 0.20 | 2.0 → 10.0 | 10.0 (10 to 10) | 90.0 | – |" in long
    assert "| level1_as_bepa_long − bepa_long | 40.0 (40 to 40)* | +40.0 |" in text
    parts = text.split("### Parts of a group with an injected trace")[1].split("###")[0]
    assert "| bepa_trace | -12.5 (-12 to -12)* |" in parts.split("| minus bepa |")[1].split("| minus grpo |")[0]
    assert "| bepa_trace | 37.5 (38 to 38)* |" in parts.split("| minus grpo |")[1]
    assert "Hyper-parameters" not in text
    for name in ("mechanism.png", "long.png", "differences.png"):
        assert (folder / "seed-0" / name).stat().st_size > 5000
    for path in sorted(set(text.split("](results")[1:])):
        assert (tmp_path / ("results" + path.split(")")[0])).exists() or ".md" in path.split(")")[0]


def test_results_of_real_desktops_are_a_section_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipes.study.free_bed.CHOICES", tmp_path / "none.json")
    page, folder = tmp_path / "results-details.md", tmp_path / "results"
    write_results(folder / "free", "seed-0")
    totals = {"episodes": 64.0, "optimizer_steps": 7.0, "seconds": 600.0, "steps": 80.0, "seconds_collect": 40.0}
    real = result(
        "bepa", 0, 4, totals=totals | {"utilisation": 0.5}, preparation={"seconds": 60.0, "self_roll_episodes": 8.0}
    )
    real.write(folder / "local")
    assert write_free_page(folder / "free", page, folder / "local")
    (section,) = page.read_text().split("## Real desktops\n")[1:]
    assert "| bepa | 1 | 50.0 | 50.0 | 50.0 |" in section
    assert "](results/local/curves.png)" in section


def summary(folder: Path) -> str:
    """The page of a folder of results; empty if there is none."""
    page = folder.parent / "results.md"
    return page.read_text() if write_summary(folder / "free", page, "more.md") else ""


def test_the_summary_has_base_policies_with_enough_seeds_and_says_that_their_gate_fails(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert summary(folder) == ""
    write_results(folder / "free", "seed-1", seeds=2)
    assert summary(folder) == ""  # two seeds give no interval
    write_results(folder / "free", "seed-0")
    (folder / "free" / "summary.txt").write_text("## Found\n\nIt gains {bepa - grpo, train} points.\n")
    path = folder / "free" / "seed-0" / "base" / f"seed-{EVALUATIONS[0]}.json"
    path.write_text(json.dumps({"weights": "b", "measured": passing() | {"expert_only": 3}}))
    text = summary(folder)
    assert "\n## Found\n\nIt gains 50.0 (50 to 50) points.\n" in text
    assert "**`seed-0` does not pass its gate**; methods are compared on it all the same ([conditions](more.md)" in text
    assert "](results/free/seed-0/mechanism.png)" in text
    assert "Every method was tuned by four trials on `tiny_free`, and" in " ".join(text.split())
    assert "| bepa | 3 | 75.0 (75 to 75) |" in text
    assert "| bepa − grpo | `seed-0` | 50.0 (50 to 50) |" in text
    # the paper's differences are 15.21, 24.08 and 4.98
    assert "| bepa − grpo | the paper | +15.2 | +24.1 | +5.0 |  |  |" in text
    assert "| bepa − level1 |" not in text  # there are no results of it
    assert "seed-1" not in text


def test_the_summary_compares_base_policies_and_leads_with_one_that_passes_its_gate(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write_results(folder / "free", "seed-0")
    write_results(folder / "free", "seed_1")
    path = folder / "free" / "seed-0" / "base" / f"seed-{EVALUATIONS[0]}.json"
    path.write_text(json.dumps({"weights": "b", "measured": passing() | {"expert_only": 3}}))
    for seed in range(3):
        result("grpo", seed, 4).write(folder / "free" / "seed_1")
    found = folder / "free" / "summary.txt"
    found.write_text("From the first {bepa - grpo, train}, {seed_1: grpo, train}.\n")
    text = summary(folder)
    assert "From the first 25.0 (25 to 25), 50.0 (50 to 50)." in text
    assert text.count("does not pass its gate") == 1
    rows = [line.split(" | ")[:3] for line in text.splitlines() if line.startswith("| bepa − grpo |")]
    assert rows == [
        ["| bepa − grpo", "`seed_1`", "25.0 (25 to 25)"],
        ["| bepa − grpo", "`seed-0`", "50.0 (50 to 50)"],
        ["| bepa − grpo", "the paper", "+15.2"],
    ]
    assert "](results/free/seed_1/mechanism.png)" in text
    assert "](results/free/seed-0/mechanism.png)" not in text
    found.write_text("{seed_2: grpo, train}\n")
    with pytest.raises(ResultError, match=r"no results from seed_2 for \{seed_2: grpo, train\}; there are"):
        summary(folder)


def test_the_summary_may_state_figures_of_the_first_base_policy(tmp_path: Path) -> None:
    write_results(tmp_path / "results" / "free", "seed-0")
    for seed in range(3):
        result("grpo", seed, 1).write(tmp_path / "results" / "terse")
    (tmp_path / "results" / "free" / "summary.txt").write_text("There {tiny: grpo, train}, here {grpo, train}.\n")
    assert "There 12.5 (12 to 12), here 25.0 (25 to 25)." in summary(tmp_path / "results")


def test_results_of_other_weights_than_the_gate_was_measured_on_are_refused(tmp_path: Path) -> None:
    """A base policy that was trained again passes its gate before the first run from it: the older ones are not its."""
    folder = tmp_path / "results" / "free"
    write_results(folder, "seed-0")
    manifest = folder / "seed-0" / "base" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"weights": "b"', '"weights": "c"'))
    with pytest.raises(ResultError, match=r"seed-0/bepa-0\.json was made from other weights \(b\) than those .* \(c\)"):
        write_free_page(folder, tmp_path / "results-details.md")


def test_settings_that_the_search_has_not_chosen_are_named_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a look at a policy that passes its gate, or a search that was made again."""
    path = tmp_path / "tuned.json"
    monkeypatch.setattr("recipes.study.free_bed.CHOICES", path)
    settings = {"optimizer.lr": 3e-4, "train.minibatch_groups": 16}
    study = {name: [result(name, 0, 1, settings=settings)] for name in ("bepa", "level1_as_bepa", "grpo")}
    assert untuned(study) == list(study)
    chosen = {"settings": ["optimizer.lr=3e-4", "train.minibatch_groups=16"], "scores": {}, "longer": {}}
    path.write_text(json.dumps({"bepa": chosen, "grpo": chosen}))
    assert untuned(study) == []
    path.write_text(json.dumps({"bepa": chosen, "grpo": chosen | {"settings": ["optimizer.lr=3e-4"]}}))
    assert untuned(study) == ["grpo"]  # whose updates are then the default's
    path.write_text(json.dumps({"bepa": chosen | {"settings": ["optimizer.lr=1e-4"]}, "grpo": chosen}))
    assert untuned(study) == ["bepa", "level1_as_bepa"]
    path.write_text(json.dumps({"sft_self_rl": {"settings": ["optimizer.lr=3e-4"], "scores": {}, "longer": {}}}))
    own = {"optimizer.lr": 3e-4, "loss.anchor": 0.1}  # the anchor is the variant's own setting
    study = {"sft_self_rl_anchor_long": [result("sft_self_rl_anchor_long", 0, 1, settings=own)]}
    assert untuned(study) == []
    study = {"sft_self_rl_long": [result("sft_self_rl_long", 0, 1, settings=own)]}
    assert untuned(study) == ["sft_self_rl_long"]


def test_a_trial_that_went_on_and_solved_nothing_is_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    found = {"settings": ["a=1"], "scores": {"a=1": 0.5, "b=2": 0.25}, "longer": {"a=1": 0.0}}
    path.write_text(json.dumps({"grpo": found}))
    *_, first, second = simulated_search({}, path).table()
    assert (first, second) == ("| grpo | `a=1` **(chosen)** | 50.0 | 0.0 |", "| grpo | `b=2` | 25.0 |  |")
