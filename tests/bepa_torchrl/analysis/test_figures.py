"""The figures' tables by hand, and the files that `bepa analyze` writes from records made by hand."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hand_record import hand_record, line, step, write
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from bepa_torchrl.analysis.figures.analyze import Analysis, analyze
from bepa_torchrl.analysis.figures.cases import Case, ShownStep, case_rows, case_size, draw_case, shown
from bepa_torchrl.analysis.figures.domains import domain_rows, solved_tasks
from bepa_torchrl.analysis.figures.dynamics import assimilation_rows, draw_dynamics, dynamics_rows
from bepa_torchrl.analysis.figures.histogram import TraceSets, histogram_rows, recorded_sets, summary_rows
from bepa_torchrl.analysis.figures.runs import methods_of_runs
from bepa_torchrl.analysis.figures.scored import first_rollouts, version_0
from bepa_torchrl.analysis.figures.sensitivity import sensitivity_rows
from bepa_torchrl.analysis.records import find_records
from bepa_torchrl.cli import main
from bepa_torchrl.experts.manifest import Manifest
from bepa_torchrl.storage.json_lines import RecordError
from osworld_gym.tasks import SUITES

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")


def test_trace_sets_of_a_record_and_their_measures_by_hand(tmp_path: Path) -> None:
    """Rollouts have p = 1 twice; the self-rolled trace e^-3 and 1: half of it is below 0.2."""
    method = hand_record(tmp_path / "run") / "bepa"
    rolled = line(0, 0, [step(method, "x", 1, (-3.0, 0.0))], off_policy=True, source="self_rolled")
    again = line(1, 0, [step(method, "x", 1, (0.0,))], off_policy=True)
    write(method, "episodes.jsonl", [rolled, again, line(0, 1, [step(method, "x", 1, (0.0, 0.0))])])
    sets = recorded_sets(find_records(method)[0])
    assert {name: values.tolist() for name, values in sets.items()} == {
        "self_rolled": [-3.0, 0.0],
        "refreshed": [0.0],
        "on_policy": [0.0, 0.0],
    }
    rows = {row["set"]: (row["tokens"], row["tail_mass"], row["js"]) for row in summary_rows(sets)}
    # p = (1/2, 1/2), q = (0, 1): the mean of KL(p, m) and KL(q, m) with m = (1/4, 3/4)
    js = (0.5 * math.log(2) + 0.5 * math.log(2 / 3) + math.log(4 / 3)) / 2
    assert rows["self_rolled"] == (2, 0.5, pytest.approx(js, abs=1e-9))
    assert rows["refreshed"] == (1, 0.0, 0.0)
    shares = [row["share"] for row in histogram_rows(sets) if row["set"] == "self_rolled"]
    assert (shares[0], shares[-1], sum(shares)) == (0.5, 0.5, 1.0)


def test_steps_that_no_figure_has_are_counted_in_the_files_and_in_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--score`` leaves out what is beyond the policy's context; without such the table has no further column."""
    sets = {"raw_expert": torch.tensor([-3.0, 0.0]), "on_policy": torch.tensor([0.0])}
    assert all("steps_left_out" not in row for row in summary_rows(sets))
    left_out = {"raw_expert": {"beyond the policy's context": 2, "of a trace without all screenshots": 1}}
    scored = iter((TraceSets(sets, left_out), TraceSets({"on_policy": sets["on_policy"]}, left_out)))
    monkeypatch.setattr("bepa_torchrl.analysis.figures.analyze._scored", lambda *_, **__: next(scored))
    methods = methods_of_runs([hand_record(tmp_path / "run")])
    for expected in (
        [("raw_expert", "2", "3"), ("on_policy", "1", "0")],
        [("on_policy", "1", "0"), ("raw_expert", "0", "3")],
    ):
        out = tmp_path / expected[0][0]
        out.mkdir()
        done = analyze(methods, out, cases=0, score=True)
        name = f"token_probabilities-{methods[0].label}"
        rows = table(out / f"{name}-summary.csv")
        assert [(row["set"], row["tokens"], row["steps_left_out"]) for row in rows] == expected
        why = "2 beyond the policy's context and 1 of a trace without all screenshots"
        assert f"{name}: 3 steps of raw_expert: {why}" in done.missing
    assert "raw_expert, 3 steps left out" in (tmp_path / "raw_expert" / f"{name}.svg").read_text()


def test_rollouts_of_iterations_that_are_not_kept_whole_are_left_out(tmp_path: Path) -> None:
    """Of such an iteration the record has mostly replaced rollouts, which all failed: they are no sample."""
    method = hand_record(tmp_path / "run") / "bepa"
    replaced = line(1, 0, [step(method, "x", 1, (-5.0,))], replaced=True)
    dropped = line(1, 1, [], whole=False, n_steps=1)
    injected = line(1, 0, [step(method, "x", 1, (-1.0,))], off_policy=True)
    lost = line(0, 1, [], whole=False, n_steps=0, failure="died", reward=None)
    whole = line(0, 0, [step(method, "x", 1, (-2.0,))])
    write(method, "episodes.jsonl", [whole, lost, replaced, injected, dropped])
    sets = recorded_sets(find_records(method)[0])
    assert {name: values.tolist() for name, values in sets.items()} == {"on_policy": [-2.0], "refreshed": [-1.0]}
    write(method, "episodes.jsonl", [replaced, injected, dropped])
    assert recorded_sets(find_records(method)[0])["on_policy"].tolist() == [-5.0]  # better than none


def test_a_line_of_one_point_has_a_dot() -> None:
    """The only iteration with an injected trace was an empty panel."""
    figure = Figure()
    draw_dynamics(figure, dynamics_rows({"bepa": LINES}))
    markers = {axis.get_title().partition(",")[0]: axis.lines[0].get_marker() for axis in figure.axes if axis.lines}
    assert markers == {"entropy of the rollouts": "o", "JS of injected traces": "o"}


def test_without_rollouts_there_is_no_divergence() -> None:
    assert summary_rows({"converted": torch.tensor([-0.1])})[0]["js"] is None


LINES: list[dict[str, Any]] = [
    {"iteration": 0, "phase": "base", "eval/expert_only": 0.1},
    {"iteration": 1, "phase": "rl", "collect/entropy": 0.5, "groups": 4.0, "cache/refreshed": 1.0},
    {"iteration": 2, "phase": "rl", "groups": 4.0, "cache/refreshed": 3.0, "eval/expert_only": 0.3, "injected/js": 0.2},
]


def test_dynamics_and_assimilation_by_hand() -> None:
    rows = dynamics_rows({"bepa": LINES})
    assert [(row["iteration"], row["entropy"], row["injected_js"]) for row in rows] == [(1, 0.5, None), (2, None, 0.2)]
    found = [tuple(row.values()) for row in assimilation_rows({"bepa": LINES})]
    assert found == [("bepa", 0, 0.1, None), ("bepa", 1, None, 0.25), ("bepa", 2, 0.3, 0.75)]


def test_the_domain_breakdown_by_hand() -> None:
    domains = {"a": "os", "b": "os", "c": "os", "d": "os", "e": "web"}
    (os_, web) = domain_rows("bepa", domains, base={"a", "d"}, expert={"a", "b"}, final={"a", "b", "c", "x"})
    assert os_ == {
        "method": "bepa", "domain": "os", "tasks": 4, "base": 2, "expert": 2, "solved": 3,
        "retained": 1, "assimilated": 1, "self_evolved": 1,
    }  # fmt: skip
    assert (web["tasks"], web["solved"]) == (1, 0)


def test_a_task_is_solved_if_more_than_half_of_its_episodes_succeeded() -> None:
    """The base policy has five attempts (Pass@5) and the trained one a single episode: any success would favour it."""
    assert solved_tasks({"a": [2, 5], "b": [3, 5], "c": [1, 2], "d": [1, 1], "e": [0, 0]}) == {"b", "d"}


def test_the_sensitivity_table_groups_seeds_and_separates_suites() -> None:
    def run(suite: str, n: int, seed: int, rate: float) -> Any:
        return suite, {"seed": seed, "collect": {"group_size": n, "groups": 16}}, {"train": rate, "expert_only": None}

    rows = sensitivity_rows(
        [run("sim 1", 4, 0, 0.2), run("sim 1", 4, 1, 0.4), run("sim 1", 8, 0, 0.5), run("x 2", 4, 0, 1.0)]
    )
    shown_rows = [(row["suite"], row["collect.group_size"], row["runs"], row["train_mean"]) for row in rows]
    assert shown_rows == [("sim 1", "4", 2, pytest.approx(0.3)), ("sim 1", "8", 1, 0.5), ("x 2", "4", 1, 1.0)]
    assert rows[0]["train_std"] == pytest.approx(math.sqrt(0.02))
    assert (rows[1]["train_std"], rows[0]["expert_only_mean"]) == (None, None)
    assert "seed" not in rows[0]


def test_a_case_sheet_shows_text_as_text() -> None:
    """Model text may contain TeX, HTML and control characters; a long trace shows its first steps and its last."""
    steps = tuple(ShownStep(i, b"", "a $x_{ <b>\x1b[31m $ \n\x00") for i in range(200))
    case = Case("t", "Pay $5 or $\\frac{", {"expert": steps, "converted": steps[:1]})
    figure = Figure()
    draw_case(figure, case)
    figure.savefig(Path("/dev/null"), format="png")
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert "\x1b" not in "".join(texts)
    assert len(texts) == 8 + 1
    assert [each.number for each in shown(steps)] == [0, 1, 2, 3, 4, 5, 6, 199]
    assert len(case_rows(case)) == 201


def test_no_text_of_a_case_sheet_is_over_another_or_cut() -> None:
    """Square screenshots need higher rows than those of 16:9; texts were over the titles of the next row."""
    steps = tuple(ShownStep(i, png(i), "word " * 56) for i in range(2))
    figure = Figure(figsize=case_size(case := Case("t", "Do it.", {"expert": steps, "converted": steps})))
    figure.set_layout_engine("constrained")
    draw_case(figure, case)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for axis in figure.axes for text in (axis.title, *axis.texts)]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    assert all(box.y0 >= -0.5 for box in boxes)
    over = [(a, b) for number, a in enumerate(boxes) for b in boxes[number + 1 :] if a.x0 < b.x1 and b.x0 < a.x1]
    assert not [pair for pair in over if min(each.y1 for each in pair) - max(each.y0 for each in pair) > 1]


def png(color: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (128, 128), (color, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def made(folder: Path) -> Path:
    """A run's folder with iterations, of a run that is still running."""
    run = hand_record(folder)
    write(run / "bepa", "iterations.jsonl", LINES)
    (run / "bepa" / "config.yaml").write_text(yaml.safe_dump({"env": {"suite": "sim"}, "seed": 0}))
    (run / "prepared" / "manifest.json").unlink()
    return run


def test_a_running_run_has_what_it_has_so_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = made(tmp_path / "run"), tmp_path / "out"
    assert main(["analyze", str(run), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for sentence in (
        "domains of bepa: no evaluation at the end of the kind that the base policy has",
        "sensitivity: bepa has no",
        "cases of bepa: the run has no",
    ):
        assert sentence in printed
    for name in ("token_probabilities-bepa", "training_dynamics", "assimilation"):
        assert {path.suffix for path in out.glob(f"{name}.*")} == {".csv", ".png", ".svg"}
    with (out / "training_dynamics.csv").open(newline="") as file:
        assert [row["entropy"] for row in csv.DictReader(file)] == ["0.5", ""]
    assert main(["analyze", str(run), "--out", str(out)]) != 0
    assert "exists and is not overwritten" in capsys.readouterr().err


def test_a_run_without_injections_and_one_without_iterations(tmp_path: Path) -> None:
    run, out = made(tmp_path / "run"), tmp_path / "out"
    write(run / "bepa", "episodes.jsonl", [line(0, 0, [step(run / "bepa", "x", 1)])])
    write(run / "bepa", "iterations.jsonl", [])
    out.mkdir()
    done: Analysis = analyze(methods_of_runs([run]), out)
    assert "token_probabilities-bepa: one set only (on_policy), since no trace was injected" in done.missing
    assert "training_dynamics: no trained iteration in the records" in done.missing


def ended(run: Path) -> None:
    """Adds the evaluations of a run whose task was not solved before and is after it."""
    task = "sim-toggle-on-00"
    results = {
        "success": {"sampled": {"train": 0.5}},
        "counts": {"greedy": {task: [1, 1]}},
        "tasks": {"suite": "sim", "digest": run.name},
    }
    (run / "bepa" / "results.json").write_text(json.dumps(results))
    (run / "prepared" / "manifest.json").write_text(json.dumps({"train": [task], "held_out": [], "expert": [task]}))
    (run / "prepared" / "base.json").write_text(json.dumps({"base": {"greedy": {task: [0, 1]}}}))


@pytest.mark.slow
def test_the_domains_of_a_suite_of_ones_own_are_read_from_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run")
    ended(run)
    (run / "bepa" / "config.yaml").write_text(yaml.safe_dump({"env": {"suite": "own_figures"}, "seed": 0}))
    (tmp_path / "own_figures.py").write_text(
        "from osworld_gym.tasks import SUITES\nSUITES['own_figures'] = SUITES['sim']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = ["analyze", str(run), "--cases", "0"]
    try:
        assert main([*command, "--out", str(tmp_path / "without")]) == 0
        assert "domains of bepa: unknown suite 'own_figures'" in capsys.readouterr().out
        out = tmp_path / "with"
        assert main([*command, "--import", "own_figures", "--out", str(out)]) == 0
    finally:
        SUITES.pop("own_figures", None)
    with (out / "domains.csv").open(newline="") as file:
        assert [(row["domain"], row["assimilated"]) for row in csv.DictReader(file)] == [("sound", "1")]


TRAINED, OTHER = "sim-toggle-on-00", "sim-toggle-off-02"


def sampled_only(run: Path) -> None:
    """The evaluations of a run of experiment=osworld, which has no greedy ones: those before are the split's Pass@5."""
    results = {
        "success": {"sampled": {"train": 1.0, "held_out": 0.0}},
        "counts": {"sampled": {TRAINED: [1, 1], OTHER: [1, 4]}},
    }
    (run / "bepa" / "results.json").write_text(json.dumps(results))
    manifest = {"train": [TRAINED], "held_out": [OTHER], "expert": [TRAINED]}
    (run / "prepared" / "manifest.json").write_text(json.dumps(manifest))
    base = {"base": {"sampled": {TRAINED: [2, 5], OTHER: [3, 5]}}}
    (run / "prepared" / "base.json").write_text(json.dumps(base))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_paper_s_run_without_greedy_evaluations_has_domains_and_an_overall_rate(tmp_path: Path) -> None:
    run, out = made(tmp_path / "run"), tmp_path / "out"
    sampled_only(run)
    out.mkdir()
    analyze(methods_of_runs([run]), out, cases=0)
    (row,) = table(out / "domains.csv")
    assert [row[name] for name in ("tasks", "base", "expert", "solved", "assimilated")] == ["1", "0", "1", "1", "1"]
    (row,) = table(out / "sensitivity.csv")
    assert (row["train_mean"], row["overall_mean"]) == ("1.0", "0.625")  # the mean over tasks of 1 and 1/4


def test_with_a_split_the_domains_are_of_the_held_out_tasks_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = made(tmp_path / "run"), tmp_path / "out"
    sampled_only(run)
    hashes = dict.fromkeys((TRAINED, OTHER), "0")
    for name, known in (("split", hashes), ("other", {TRAINED: "0"})):
        held_out = tuple(task for task in known if task != TRAINED)
        sets = {"expert": tuple(known), "self_rolled": held_out}
        Manifest(known, (TRAINED,), held_out, **sets).save(tmp_path / name / "manifest.json")
    command = ["analyze", str(run), "--cases", "0"]
    assert main([*command, "--split", str(tmp_path / "split"), "--out", str(out)]) == 0
    (row,) = table(out / "domains.csv")  # both tasks are of one domain
    names = ("tasks", "base", "expert", "solved", "retained", "assimilated", "self_evolved")
    assert [row[name] for name in names] == ["2", "1", "2", "1", "0", "1", "0"]
    (row,) = table(out / "sensitivity.csv")  # a run without self-rollouts has no expert-only tasks of its own
    assert row["expert_only_mean"] == "0.25"
    capsys.readouterr()
    assert main([*command, "--split", str(tmp_path / "other"), "--out", str(tmp_path / "none")]) == 0
    assert f"1 of its tasks are not in the split, first '{OTHER}'" in capsys.readouterr().out
    assert main([*command, "--split", str(tmp_path), "--out", str(tmp_path / "bad")]) == 2


def test_the_histogram_of_some_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D_upd: the rollouts are those of a task's first iteration, since version 0 has played few of these tasks."""
    run, out = made(tmp_path / "run"), tmp_path / "out"
    method = run / "bepa"
    lines = [
        line(0, 0, [step(method, "x", 1, (-1.0,))], task_id="other"),
        line(1, 0, [step(method, "x", 1, (-2.0,))]),
        line(1, 1, [step(method, "x", 1, (-3.0,))], off_policy=True, source="self_rolled"),
        line(2, 0, [step(method, "x", 1, (-4.0,))]),
    ]
    write(method, "episodes.jsonl", lines)
    (record,) = find_records(run)
    assert version_0(record) == [-1.0]
    assert first_rollouts(record, ["lamp"]) == [-2.0]
    sets = {name: values.tolist() for name, values in recorded_sets(record, ["lamp"]).items()}
    assert sets == {"self_rolled": [-3.0], "on_policy": [-2.0, -4.0]}
    (tmp_path / "updated.json").write_text('{"house": ["lamp"]}')
    command = ["analyze", str(run), "--cases", "0", "--tasks"]
    assert main([*command, str(tmp_path / "updated.json"), "--out", str(out)]) == 0
    rows = table(out / "token_probabilities-bepa-summary.csv")
    assert [(row["set"], row["tokens"]) for row in rows] == [("self_rolled", "1"), ("on_policy", "2")]
    (tmp_path / "list.json").write_text('["lamp"]')
    assert main([*command, str(tmp_path / "list.json"), "--out", str(tmp_path / "bad")]) == 2
    assert "expected {domain: [task id, ...]}" in capsys.readouterr().err
    assert main(["analyze", str(run), "--worker", "--out", str(tmp_path / "bad")]) == 2
    assert "--worker is read with --score only" in capsys.readouterr().err


@pytest.mark.slow
def test_two_runs_of_different_suites_are_told_apart(tmp_path: Path) -> None:
    runs = [made(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        ended(run)
    out = tmp_path / "out"
    out.mkdir()
    methods = methods_of_runs(runs)
    assert [method.label for method in methods] == ["one/bepa", "two/bepa"]
    done = analyze(methods, out, cases=0)
    with (out / "sensitivity.csv").open(newline="") as file:
        assert [(row["suite"], row["runs"]) for row in csv.DictReader(file)] == [("sim one", "1"), ("sim two", "1")]
    assert "compare rows of the same suite only" in done.missing[-1]
    with (out / "domains.csv").open(newline="") as file:
        assert [row["assimilated"] for row in csv.DictReader(file)] == ["1", "1"]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Labels that were equal made one run's lines and figures take the place of another's."""
    runs = [made(tmp_path / seed / "run") for seed in ("0", "1")]
    for number, run in enumerate(runs):
        write(run / "bepa", "iterations.jsonl", [{"iteration": 1, "phase": "rl", "collect/entropy": float(number)}])
    for given in (runs, [run / "bepa" for run in runs]):
        methods = methods_of_runs(given)
        assert [(method.label, method.run) for method in methods] == [("0/run/bepa", "0/run"), ("1/run/bepa", "1/run")]
    out = tmp_path / "out"
    out.mkdir()
    done = analyze(methods, out, cases=0)
    assert len(set(done.files)) == len(done.files) == len(list(out.iterdir()))
    with (out / "training_dynamics.csv").open(newline="") as file:
        assert [(row["method"], row["entropy"]) for row in csv.DictReader(file)] == [
            ("0/run/bepa", "0.0"),
            ("1/run/bepa", "1.0"),
        ]


def test_runs_whose_names_are_alike_in_the_names_of_files_keep_their_figures(tmp_path: Path) -> None:
    """The histogram of one took the place of the other's; and ``$`` in a name ended the command."""
    runs = [made(tmp_path / name) for name in ("a$b_$", "a-b_-")]
    for run, log_prob in zip(runs, (-1.0, -3.0), strict=True):
        write(run / "bepa", "episodes.jsonl", [line(0, 0, [step(run / "bepa", "x", 1, (log_prob,))])])
        write(run / "bepa", "iterations.jsonl", [{"iteration": 1, "phase": "rl", "collect/entropy": 1.0}])
    out = tmp_path / "out"
    out.mkdir()
    done = analyze(methods_of_runs(runs), out, cases=0)
    assert len(set(done.files)) == len(done.files) == len(list(out.iterdir()))
    first, second = (table(out / f"token_probabilities-a-b_--bepa{end}-summary.csv") for end in ("", "-2"))
    assert [(row["tokens"], row["tail_mass"]) for row in (*first, *second)] == [("1", "0.0"), ("1", "1.0")]


def test_a_method_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """It would count as two seeds, with a deviation of 0."""
    run = made(tmp_path / "run")
    with pytest.raises(RecordError, match="bepa twice; name each once"):
        methods_of_runs([run, run / "bepa"])


def test_results_of_fewer_iterations_than_the_settings_have_are_not_final(tmp_path: Path) -> None:
    """A run that was resumed with more iterations keeps the results of before until its end."""
    run = made(tmp_path / "run")
    ended(run)
    results = json.loads((run / "bepa" / "results.json").read_text())
    (run / "bepa" / "results.json").write_text(json.dumps(results | {"settings": {"iterations": 2}}))
    for iterations, known in ((2, True), (5, False)):
        (run / "bepa" / "config.yaml").write_text(f"algo:\n  name: bepa\ntrain:\n  iterations: {iterations}\n")
        (method,) = methods_of_runs([run])
        assert bool(method.results) == known
