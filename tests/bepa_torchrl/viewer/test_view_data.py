"""``bepa view``: what the pages' data have of runs, whole and damaged, of expert logs and of self-rollouts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_traces import make_trace
from expert_fixtures import s2_lines, sound_trace, write_log
from made_record import (
    CLICK,
    HOSTILE,
    made_line,
    made_metrics,
    made_picture,
    made_run,
    made_step,
    page_data,
    save_picture,
    write_lines,
)

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.cli import main
from bepa_torchrl.experts.plan import plan_from_trace, plan_hash
from bepa_torchrl.experts.trace import save_trace
from bepa_torchrl.viewer.pictures import Pictures
from bepa_torchrl.viewer.site import CHUNK_EPISODES, Site

View = Callable[..., Path]


@pytest.fixture
def view(tmp_path: Path) -> View:
    def pages(*runs: object) -> Path:
        out = tmp_path / "pages"
        assert main(["view", *map(str, runs), "--out", str(out)]) == 0
        return out

    return pages


def stream_of(out: Path, name: str) -> dict[str, Any]:
    return next(stream for stream in page_data(out, "index")["streams"] if stream["name"] == name)


def column(out: Path, stream: str, name: str) -> list[Any]:
    index = page_data(out, "index")
    values = stream_of(out, stream)["columns"][name]
    texts = name in ("task", "instruction", "source", "outcome", "stop", "mode", "expert")
    return [index["texts"][value] for value in values] if texts else values


def one_episode(folder: Path, steps: list[dict[str, Any]], **fields: Any) -> Path:
    run = made_run(folder, 0)
    write_lines(run / "bepa" / "episodes.jsonl", [made_line(0, steps, **fields)])
    return run


# --- a run ----------------------------------------------------------------------------------------------------------


def test_a_folder_opens_from_disk(tmp_path: Path, view: View) -> None:
    out = view(made_run(tmp_path / "long", 100))
    page = (out / "index.html").read_text()
    assert {name for name in ("view.css", "main.js", "plotly.min.js") if (out / name).is_file()} == {
        "view.css",
        "main.js",
        "plotly.min.js",
    }
    assert "//" not in page.replace("<!doctype", "")  # no other host
    assert column(out, "long/bepa/episodes", "iteration") == [1] * 100
    assert stream_of(out, "long/bepa/episodes")["chunks"] == [0, CHUNK_EPISODES]
    assert page_data(out, "metrics")["long"]["bepa"]["collect/success"] == [0.01]
    assert page_data(out, "index")["runs"][0]["state"] == "stopped"


def test_a_step_has_its_click_in_screen_pixels_and_its_tokens(tmp_path: Path, view: View) -> None:
    out = view(made_run(tmp_path / "run", 1))
    step = page_data(out, "0-0")[0]["steps"][0]
    assert step["thought"] == "I press button-0."
    assert step["action"] == "click(start_box='(40,24)')"
    assert step["executed"] == "pyautogui.click(40, 24, button='left')"  # the tiny model sees 128 x 128 as it is
    assert step["actions"] == [{"kind": "click", "start": [40.0, 24.0]}]
    assert step["tokens"][:2] == ["Thought:", " tab"]
    assert (out / step["screenshot"]).read_bytes() == made_picture(0)
    # mean of -0.01, -0.7 and -2 over both steps
    assert column(out, "run/bepa/episodes", "sampled") == [pytest.approx(-2.71 / 3, abs=1e-5)]


def test_points_are_scaled_from_the_models_image_to_the_screen(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 0)
    screenshot = save_picture(run / "bepa", made_picture(1, (384, 384)))  # the tiny model sees 192 x 192
    write_lines(run / "bepa" / "episodes.jsonl", [made_line(0, [made_step(screenshot, CLICK)])])
    assert page_data(view(run), "0-0")[0]["steps"][0]["actions"][0]["start"] == [80.0, 48.0]


def test_ratios_clipped_tokens_and_updates(tmp_path: Path, view: View) -> None:
    step = made_step(
        "", CLICK, old_log_probs=[-1.0, -1.0, None, -1.0], new_log_probs=[-1.0, -0.3, -1.0, -2.0], clipped=[1]
    )
    out = view(one_episode(tmp_path / "run", [step], updates=[3, 4], policy_version=1, n_steps=1))
    episode = page_data(out, "0-0")[0]
    assert episode["steps"][0]["ratios"] == [1.0, pytest.approx(2.013753), None, pytest.approx(0.367879)]
    assert episode["steps"][0]["clipped"] == [1]
    assert episode["updates"] == [3, 4]


def test_an_injected_trace_of_the_policys_own_is_a_refreshed_one(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 0)
    lines = [
        made_line(0, []),
        made_line(1, [], off_policy=True),
        made_line(2, [], off_policy=True, source="self_rolled"),
        made_line(3, [], reward=None, failure="died"),
    ]
    write_lines(run / "bepa" / "episodes.jsonl", lines)
    out = view(run)
    assert column(out, "run/bepa/episodes", "source") == ["on_policy", "refreshed", "self_rolled", "on_policy"]
    assert column(out, "run/bepa/episodes", "outcome")[3] == "no reward"
    assert column(out, "run/bepa/episodes", "stop")[3] == "died"


def test_refreshes_of_the_cache(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 1)
    groups = [{"iteration": 1, "group_id": g, "task_id": "lamp", "refreshed": g == 1} for g in range(2)]
    write_lines(run / "bepa" / "groups.jsonl", groups)
    assert page_data(view(run), "refreshes") == {"run": {"bepa": [["lamp", 1, 1]]}}


def test_several_runs_have_different_names(tmp_path: Path, view: View) -> None:
    out = view(made_run(tmp_path / "a" / "same", 1), made_run(tmp_path / "b" / "same", 2))
    assert [run["name"] for run in page_data(out, "index")["runs"]] == ["a/same", "b/same"]
    assert len(column(out, "b/same/bepa/episodes", "task")) == 2


def test_evaluations_before_and_after_training(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 1)
    (run / "base").mkdir()
    for folder in (run / "base", run / "bepa"):
        write_lines(folder / "outcomes.jsonl", [made_line(0, [], mode="greedy")])
    ends = ((True, "finished", None), (False, "crashed_desktop", "died"), (False, "env_error", "died"))
    evaluated = [
        {"task_id": "x", "episode": number, "success": success, "stop": stop, "failure": failure}
        for number, (success, stop, failure) in enumerate(ends)
    ]
    write_lines(run / "bepa" / "evaluations.jsonl", evaluated)
    results = {"base": {"success": {"greedy": {"train": 0.5}}}, "methods": {}}
    (run / "results.json").write_text(json.dumps(results))
    out = view(run)
    parts = {stream["name"]: stream["part"] for stream in page_data(out, "index")["streams"]}
    assert parts["run/base/outcomes"] == "before training"
    assert parts["run/bepa/outcomes"] == "after training"
    assert column(out, "run/bepa/evaluations", "outcome") == ["success", "failure", "no reward"]
    assert page_data(out, "index")["runs"][0]["base"] == {"greedy": {"train": 0.5}}


def test_results_of_before_a_resume_with_more_iterations_are_not_shown(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 1)
    results = {"settings": {"iterations": 9}, "success": {"sampled": {"train": 0.5}}}
    (run / "bepa" / "results.json").write_text(json.dumps(results))
    site = Site([str(run)], tmp_path)
    site.write()
    (shown,) = page_data(tmp_path, "index")["runs"]
    assert (shown["state"], shown["results"]["bepa"]["success"]) == ("finished", {"sampled": {"train": 0.5}})
    config = run / "bepa" / "config.yaml"
    config.write_text(config.read_text().replace("iterations: 9", "iterations: 12"))
    assert site.refresh()
    (shown,) = page_data(tmp_path, "index")["runs"]
    assert (shown["state"], shown["results"]["bepa"]["success"]) == ("stopped", None)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    arguments = ["view", str(made_run(tmp_path / "run", 1)), "--out", str(tmp_path / "out")]
    script = f"import sys; from bepa_torchrl.cli import main; main({arguments!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_torn_and_damaged_record(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 3)
    path = run / "bepa" / "episodes.jsonl"
    first, second, third = path.read_text().splitlines(keepends=True)
    path.write_text(first + "not JSON\n[1]\n" + '{"steps": 7}\n' + second + third[:50])
    (run / "bepa" / "results.json").write_text('{"torn')
    out = view(run)
    assert column(out, "run/bepa/episodes", "slot") == [0, 1]
    assert stream_of(out, "run/bepa/episodes")["damaged"] == 3


@pytest.mark.parametrize(
    "fields",
    [{"iteration": "3"}, {"group_id": 0.5}, {"slot": {}}, {"advantage": "x"}, {"policy_version": [1]}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_line_with_a_field_of_another_type_is_damage(tmp_path: Path, view: View, fields: dict[str, Any]) -> None:
    run = made_run(tmp_path / "run", 0)
    write_lines(run / "bepa" / "episodes.jsonl", [made_line(0, []), made_line(1, [], **fields)])
    out = view(run)
    assert column(out, "run/bepa/episodes", "slot") == [0]
    assert stream_of(out, "run/bepa/episodes")["damaged"] == 1


def test_whether_a_row_was_trained_on_may_have_any_type(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 0)
    lines = [made_line(slot, [], trained=trained) for slot, trained in enumerate(["yes", [1], None])]
    write_lines(run / "bepa" / "episodes.jsonl", lines)
    assert column(view(run), "run/bepa/episodes", "trained") == [1, 1, None]


def test_json_that_is_nested_without_end_is_damage(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 1)
    for name in ("episodes.jsonl", "iterations.jsonl", "groups.jsonl", "results.json", "record.json", "config.yaml"):
        with (run / "bepa" / name).open("a") as file:
            file.write("[" * 20_000 + "\n")
    assert stream_of(view(run), "run/bepa/episodes")["damaged"] == 1


def test_numbers_that_no_token_has_are_damage(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 1)
    lines = [made_line(0, [made_step("ab" * 32, CLICK, tokens=[token])]) for token in (-1, 10**30, 319)]
    write_lines(run / "bepa" / "episodes.jsonl", lines)
    out = view(run)
    assert len(column(out, "run/bepa/episodes", "slot")) == 1
    assert stream_of(out, "run/bepa/episodes")["damaged"] == 2


def test_missing_and_damaged_screenshots_are_left_out(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 0)
    broken = save_picture(run / "bepa", b"no picture")
    write_lines(
        run / "bepa" / "episodes.jsonl", [made_line(0, [made_step("ab" * 32, CLICK), made_step(broken, CLICK)])]
    )
    steps = page_data(view(run), "0-0")[0]["steps"]
    assert ["screenshot" in step for step in steps] == [False, False]
    assert steps[0]["thought"] == "I press {0}."


def test_a_record_of_an_early_version_has_few_fields(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 0)
    write_lines(run / "bepa" / "episodes.jsonl", [{"task_id": "old", "steps": [{"text": "no action"}]}])
    out = view(run)
    assert column(out, "run/bepa/episodes", "task") == ["old"]
    assert page_data(out, "0-0")[0]["steps"][0]["note"] == "not parsed: no_action"


def test_a_record_of_a_later_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", 1)
    (run / "bepa" / "record.json").write_text('{"format": "bepa-record", "version": 99}')
    assert main(["view", str(run), "--out", str(tmp_path / "out")]) == 2
    assert "version 1 to 2, got 99; use a later bepa view" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_hostile_text_is_data(tmp_path: Path, view: View) -> None:
    run = one_episode(tmp_path / "run", [made_step("", HOSTILE)], task_id=HOSTILE, instruction="\ud800 alone")
    out = view(run)
    assert page_data(out, "0-0")[0]["steps"][0]["thought"] == HOSTILE
    assert page_data(out, "0-0")[0]["instruction"] == "\ud800 alone"
    script = (out / "data" / "0-0.js").read_text(encoding="ascii")
    assert script.count("\n") == 1
    assert script.startswith('view.received("0-0", JSON.parse("')


def test_numbers_that_json_does_not_have(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 1)
    (run / "bepa" / "iterations.jsonl").write_text('{"iteration": 1, "loss": NaN, "entropy": Infinity}\n')
    assert page_data(view(run), "metrics")["run"]["bepa"] == {"iteration": [1], "loss": [None], "entropy": [None]}


def test_episodes_of_200_steps_make_small_chunks(tmp_path: Path, view: View) -> None:
    out = view(made_run(tmp_path / "run", 40, steps=200))
    starts = stream_of(out, "run/bepa/episodes")["chunks"]
    assert len(starts) > 2
    assert len(page_data(out, "0-0")) == starts[1]
    assert len(page_data(out, "0-1")[0]["steps"]) == 200


def test_a_folder_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert main(["view", str(made_run(tmp_path / "run", 1)), "--out", str(tmp_path / "out")]) == 2
    assert "exists and is not overwritten; give another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("{0}/none", "there is no such folder"),
        ("{0}", "found no run, no traces and no logs"),
        ("agent_s9:{0}", "no reader 'agent_s9'"),
        ("{0}/other.json", "there is no such folder"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "other.json").write_text("[]")
    assert main(["view", argument.format(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert message in error


def test_a_folder_that_cannot_be_made_and_a_port_in_use_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left behind, so that the corrected command is not refused for its --out."""
    run, out = str(made_run(tmp_path / "run", 1)), str(tmp_path / "out")
    assert main(["view", run, "--out", "/dev/null/out"]) == 2
    assert "/dev/null/out cannot be made (Not a directory); give another --out" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["view", run, "--out", out, "--serve", "--port", port]) == 2
    assert f"port {port} of 127.0.0.1 is in use; fix: another --port" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "none"), "--out", out, "--serve"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert not Path(out).exists()


# --- a running run --------------------------------------------------------------------------------------------------


def test_a_running_run_is_read_on_from_its_last_chunk(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", CHUNK_EPISODES + 2)
    out = tmp_path / "out"
    site = Site([str(run)], out)
    site.write()
    first, last = (out / "data" / f"0-{number}.js" for number in range(2))
    written = first.stat().st_mtime_ns, last.stat().st_mtime_ns
    assert not site.refresh()
    with (run / "bepa" / "episodes.jsonl").open("a") as file:
        file.write(json.dumps(made_line(7, [])) + "\n" + '{"half')
    write_lines(run / "bepa" / "iterations.jsonl", [made_metrics(1), made_metrics(2)])
    assert site.refresh()
    assert first.stat().st_mtime_ns == written[0]
    assert last.stat().st_mtime_ns > written[1]
    assert len(column(out, "run/bepa/episodes", "slot")) == CHUNK_EPISODES + 3
    assert page_data(out, "metrics")["run"]["bepa"]["iteration"] == [1, 2]


def test_a_resumed_run_that_removed_episodes_is_read_again(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 5)
    site = Site([str(run)], tmp_path / "out")
    site.write()
    path = run / "bepa" / "episodes.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    (run / "part").write_text("".join(lines[:2]))
    (run / "part").replace(path)
    assert site.refresh()
    assert column(tmp_path / "out", "run/bepa/episodes", "slot") == [0, 1]


# --- experts and self-rollouts --------------------------------------------------------------------------------------


def test_expert_logs(tmp_path: Path, view: View) -> None:
    logs = tmp_path / "logs"
    write_log(logs, s2_lines())
    out = view(f"agent_s2:{logs}")
    (name,) = [stream["name"] for stream in page_data(out, "index")["streams"]]
    assert column(out, name, "task") == ["tab-1"]
    assert column(out, name, "outcome") == ["success"]
    step = page_data(out, "0-0")[0]["steps"][0]
    assert "Reopen the tab." in step["thought"]
    assert (out / step["screenshot"]).is_file()


def test_pictures_are_those_of_the_folder(tmp_path: Path, view: View) -> None:
    """A folder of somebody else's may name any picture of the machine, which the pages would then contain."""
    (tmp_path / "private.png").write_bytes(made_picture(1))
    path = save_trace(sound_trace(), tmp_path / "traces")
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"final_screenshot": "../../private"}))
    run = one_episode(tmp_path / "run", [made_step("../../../../private", CLICK)])
    cache = TaskTraceCache()
    cache.put("a", make_trace("a", steps=2, version=5, source="self_rolled"))
    cache.dumps(tmp_path / "cache")
    (rows,) = (tmp_path / "cache" / "traces").glob("*/rows.json")
    rows.write_text(rows.read_text().replace("images/", "../images/"))
    (tmp_path / "cache" / "images").rename(tmp_path / "images")
    out = view(tmp_path / "traces", run, tmp_path / "cache")
    assert [stream["damaged"] for stream in page_data(out, "index")["streams"]] == [1, 1, 1]
    assert not list((out / "images").rglob("*.png"))


def test_a_picture_is_no_page(tmp_path: Path) -> None:
    """A PNG may be a page, too; under another name a browser would run what is in it."""
    path = tmp_path / "1.html"
    path.write_bytes(made_picture(1))
    name = Pictures(tmp_path / "out").name(path)
    assert name is not None
    assert name.endswith(".png")


def test_a_pipe_is_no_picture(tmp_path: Path) -> None:
    """Opening one waits for a writer, for ever."""
    os.mkfifo(tmp_path / "1.png")
    assert Pictures(tmp_path / "out").name(tmp_path / "1.png") is None


def test_a_runs_expert_traces_and_their_plans(tmp_path: Path, view: View) -> None:
    run = made_run(tmp_path / "run", 1)
    save_trace(sound_trace(), run / "prepared" / "experts")
    out = view(run)
    plan = plan_from_trace(sound_trace())
    assert page_data(out, "plans") == {plan_hash(plan): plan}
    assert column(out, "run/experts", "source") == ["expert"]
    assert column(out, "run/experts", "steps") == [8]


def test_the_ledger_of_self_rollouts(tmp_path: Path, view: View) -> None:
    folder = tmp_path / "selfroll"
    folder.mkdir()
    common = {"expert": "agent_s2", "plan_hash": "12", "steps": 3, "stop": "finished", "failure": None, "problem": ""}
    lines = [
        {"task": "a", "try": 0, "verdict": 1.0, "kept": False, **common},
        {"task": "a", "try": 1, "verdict": 0.0, "kept": False, **common},
    ]
    write_lines(folder / "selfroll.jsonl", lines)
    out = view(folder)
    assert column(out, "selfroll/attempts", "outcome") == ["success", "failure"]
    assert column(out, "selfroll/attempts", "steps") == [3, 3]
    assert page_data(out, "0-0")[0]["problem"] == "not kept"


@pytest.mark.parametrize("kind", ["self_rolled", "converted"])
def test_the_traces_of_a_seed(tmp_path: Path, view: View, kind: str) -> None:
    cache = TaskTraceCache()
    cache.put("a", make_trace("a", steps=2, version=5, source=kind))
    folder = tmp_path / "seed"
    cache.dumps(folder / "cache")
    seed = {"kind": kind, "action_text": "uitars", "scaling": {"factor": 28, "min_pixels": 4, "max_pixels": 9}}
    (folder / "seed.json").write_text(json.dumps(seed))
    out = view(folder)
    name = f"seed/{kind.replace('_', '-')}"
    assert column(out, name, "task") == ["a"]
    assert column(out, name, "version") == [5]
    step = page_data(out, "0-0")[0]["steps"][1]
    assert step["log_probs"] == [-0.5, -0.5, -0.5]
    assert step["action"] == "click(start_box='(1,1)')"


def test_the_folder_of_an_evaluation(tmp_path: Path, view: View) -> None:
    """What ``bepa eval`` keeps: each episode with its steps, by pass; one without a result has no reward."""
    folder = tmp_path / "card"
    folder.mkdir()
    won = made_line(0, [made_step("no", CLICK.format("x"))], reward=1.0) | {"outcome": {"attempt": 0}}
    lost = made_line(0, [], reward=None, failure="died") | {"outcome": {"attempt": 1}}
    write_lines(folder / "episodes.jsonl", [won, lost])
    (folder / "settings.yaml").write_text("policy: {action_text: uitars}\n")
    out = view(folder)
    assert column(out, "card/evaluation/episodes", "mode") == ["pass 1", "pass 2"]
    assert column(out, "card/evaluation/episodes", "reward") == [1.0, None]
    assert page_data(out, "0-0")[0]["steps"][0]["action"] == "click(start_box='(40,24)')"


def test_an_evaluation_that_has_just_begun(tmp_path: Path) -> None:
    """It has no episode yet, while its desktops start, and can be followed from then on."""
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "settings.yaml").write_text("policy: {action_text: uitars}\n")
    site = Site([str(folder)], tmp_path / "out")
    site.write()
    assert column(tmp_path / "out", "card/evaluation/episodes", "task") == []
    write_lines(folder / "episodes.jsonl", [made_line(0, []) | {"outcome": {"attempt": 0}}])
    assert site.refresh()
    assert column(tmp_path / "out", "card/evaluation/episodes", "task") == ["task-00"]


def test_a_port_is_of_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", 1)
    assert main(["view", str(run), "--port", "0", "--out", str(tmp_path / "out")]) == 2
    assert "--port 0 is read with --serve only" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
