"""``bepa experts plan``: plans by rule and by a model, kept line by line, asked again, refused by name, resumed."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server
from expert_fixtures import frame, sound_trace, step
from repository import ROOT
from small_disk import small_disk

from bepa_torchrl.cli import main
from bepa_torchrl.experts import ExpertTrace, TraceError, load_trace, plan_from_trace, save_trace
from bepa_torchrl.experts.plan import plan_hash, plan_messages
from bepa_torchrl.experts.plans import PLANS, PlanFile, PlanMethod, phi_by_rule, read_plans, write_plans
from bepa_torchrl.experts.sources import read_source
from bepa_torchrl.rollout.stages import SilentProgress
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.types import Action

LOGS = ROOT / "examples" / "experts"
PAGE = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")


def plan(out: Path, *more: str) -> int:
    return main(["experts", "plan", str(LOGS), "--out", str(out), *more])


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / PLANS).read_text().splitlines()]


def test_by_rule_a_line_per_successful_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path / "plans") == 0
    assert "4 plans (4 new) of 4 successful runs" in capsys.readouterr().out
    lines = read(tmp_path / "plans")
    assert [line["expert"] for line in lines] == ["agent_s2", "agent_s2", "agent_s3", "gui_owl_1_5"]
    last = lines[-1]
    assert (last["task"], last["run"]) == ("sim-toggle-on-00", "gui_owl/sim/sim-toggle-on-00")
    assert last["plan"] == "1. open sound\n2. tab volume\n3. click mute"
    assert last["plan_hash"] == plan_hash(last["plan"])
    assert (last["method"], last["source"], last["model"]) == ("rule", "raw", None)
    assert plan(tmp_path / "plans") == 0
    assert "4 plans (0 new)" in capsys.readouterr().out
    assert read(tmp_path / "plans") == lines
    assert plan(tmp_path / "plans", "expert.plan_source=converted") == 2
    assert "has plans by another method (by rule, raw traces, now by rule, converted traces)" in capsys.readouterr().err


def test_screenshots_are_kept_only_where_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = load_suite("sim").split("train")
    loaded = read_source(str(LOGS), tasks, successes=True)
    stored = tmp_path / "stored"
    for trace in loaded:
        save_trace(trace, stored)
    for source in (str(LOGS), str(stored)):
        bare = read_source(source, tasks, successes=True, images=False)
        assert not any(any(trace.screenshots) or trace.final_screenshot for trace in bare)
        assert sorted(trace.content_hash for trace in bare) == sorted(trace.content_hash for trace in loaded)
        assert {plan_from_trace(trace) for trace in bare} == {plan_from_trace(trace) for trace in loaded}
    kept = []
    monkeypatch.setattr("bepa_torchrl.experts.readers.run._read", lambda path: kept.append(path) or b"")
    assert plan(tmp_path / "plans") == 0
    assert not kept
    assert plan(tmp_path / "converted", "expert.plan_source=converted") == 2  # these pictures are empty
    assert kept


def test_a_step_that_changed_nothing_is_found_without_its_pictures(tmp_path: Path) -> None:
    click = step("Press next", "pyautogui.click(1, 2)", (Action("click", start=(1, 2)),))
    frames = (frame(0), frame(0), frame(1))
    trace = ExpertTrace("t", "i", "e", (click,) * 3, frames, True, frame(1))
    bare = load_trace(save_trace(trace, tmp_path), images=False)
    assert plan_from_trace(bare) == plan_from_trace(trace) == "1. Press next\n2. Press next"


@pytest.mark.parametrize("action", ["plan", "convert"])
def test_the_documentation_shows_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    shown = re.search(rf"\$ bepa (experts {action} [^\n]*)\n(.*?)```", PAGE, re.S)
    assert shown
    assert main(shown[1].split()) == 0
    assert capsys.readouterr().out == shown[2]


def test_the_file_is_phi_for_the_traces_that_were_read_or_stored(tmp_path: Path) -> None:
    assert plan(tmp_path) == 0
    plans = read_plans(tmp_path / PLANS)
    traces = read_source(str(LOGS), load_suite("sim").split("train"), successes=True)
    assert {plans(trace) for trace in traces} == set(plans.by_trace.values())
    for trace in [*traces, sound_trace()]:  # as a run stores them
        assert load_trace(save_trace(trace, tmp_path / "stored")).content_hash == trace.content_hash
    with pytest.raises(TraceError, match="has no plan of it"):
        plans(sound_trace())


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "has no plan"), ('{"trace": "1", "plan": " ", "task": "t"}\n', "the plan of t is empty"), ("[]\n", "object")],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / PLANS
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_plans(path)
    with pytest.raises(TraceError, match="not a file of plans"):
        read_plans(tmp_path / "none.jsonl")


def test_a_line_that_a_kill_left_incomplete_is_written_again(tmp_path: Path) -> None:
    assert plan(tmp_path) == 0
    whole = read(tmp_path)
    path = tmp_path / PLANS
    path.write_bytes(path.read_bytes()[:-9])
    assert plan(tmp_path) == 0
    assert read(tmp_path) == whole


def test_a_plan_that_is_too_long_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, "--max-characters", "60") == 0
    found = capsys.readouterr()
    assert "1 plans (1 new) of 4 successful runs" in found.out
    assert "no plan: trace of 'sim-choose-00' by 'agent_s2': its plan has" in found.err
    assert plan(tmp_path / "none", "--max-characters", "3") == 2


def test_by_a_model_with_tokens_and_cost_and_nothing_asked_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(lambda _: Reply("Task: x\n\n1. Open sound\n2. Press mute")) as server:
        options = ["--model", "m", "--url", server.url, "--at-once", "2", "--price", "1,10"]
        assert plan(tmp_path, *options) == 0
        assert {line["plan"] for line in read(tmp_path)} == {"1. Open sound\n2. Press mute"}
        assert {(line["method"], line["model"]) for line in read(tmp_path)} == {("model", "m")}
        assert "4 answers from the endpoint, 0 from the cache, 0 refused; 400 + 80 tokens, $0.00" in (
            capsys.readouterr().err
        )
        assert len(server.requests) == 4
        assert server.most <= 2
        (tmp_path / PLANS).unlink()  # the answers are kept by themselves
        assert plan(tmp_path, *options) == 0
        assert len(server.requests) == 4
        assert "0 answers from the endpoint, 4 from the cache" in capsys.readouterr().err


def test_screenshots_are_asked_for() -> None:
    trace = sound_trace()
    (plain,) = plan_messages(trace)
    (message,) = plan_messages(replace(trace, screenshots=(b"", *trace.screenshots[1:])), images=True)
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "text", *["text", "image_url"] * 7]  # the first step has no screenshot
    told = "".join(part["text"] for part in message["content"] if part["type"] == "text")
    assert told.strip() == plain["content"].strip()


@pytest.mark.parametrize("bad", ["", "Sure! Open the settings, then mute.", "<html><body>1 2 3</body></html>"])
def test_an_answer_that_is_no_plan_is_asked_for_again_then_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    with chat_server(lambda _: Reply(bad)) as server:
        assert plan(tmp_path, "--model", "m", "--url", server.url) == 2
        assert len(server.requests) == 4 * 3
    error = capsys.readouterr().err
    assert "no plan: trace of 'sim-toggle-on-00' by 'agent_s3': 3 answers of m were of no use" in error
    assert "has no numbered line" in error


@pytest.mark.parametrize("kind", ["down", "refused", "html", "slow"])
def test_an_endpoint_that_gives_no_answer_is_one_line_and_what_was_done_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    never = threading.Event()
    bad = {
        "down": Reply("overloaded", 503),
        "refused": Reply("no such model", 404),
        "html": Reply("<html>a login page</html>", raw=True),
        "slow": Reply(hold=never),
    }[kind]
    count = 0

    def script(_: dict[str, Any]) -> Reply:
        nonlocal count
        count += 1
        return Reply("1. Open sound") if count == 1 else bad

    with chat_server(script) as server:
        options = ["--model", "m", "--url", server.url, "--at-once", "1", "--retries", "0", "--timeout", "1"]
        assert plan(tmp_path, *options) == 3
        never.set()
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("bepa experts plan: m at http://127.0.0.1")
        assert "continue with: bepa experts plan" in last
        assert len(read(tmp_path)) == 1
        count = -100  # it works again
        bad = Reply("1. Open sound")
        assert plan(tmp_path, *options) == 0
        assert len(read(tmp_path)) == 4


def test_an_address_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        assert plan(tmp_path, "--model", "m", "--url", url, "--retries", "0") == 3
    assert "is it running?" in capsys.readouterr().err


def test_a_rate_limit_is_waited_for(tmp_path: Path) -> None:
    left = [Reply("slow down", 429, headers={"retry-after-ms": "1"})]
    with chat_server(lambda _: left.pop() if left else Reply("1. Open sound")) as server:
        assert plan(tmp_path, "--model", "m", "--url", server.url, "--at-once", "1") == 0
        assert len(server.requests) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--price", "1"], "--price is read with --model NAME only"),
        (["--at-once", "2"], "--at-once is read with --model NAME only; add it, or leave --at-once out"),
        (["--retries", "0"], "--retries is read with --model NAME only"),
        (["--max-tokens", "9"], "--max-tokens is read with --model NAME only"),
        (["--images"], "--images is read with --model NAME only"),
        (["--reasoning"], "--reasoning is read with --model NAME only"),
        (["--model", "m", "--url", "http://x/v1", "--price", "1"], "--price: expected IN,OUT, two numbers"),
        (["--model", "m", "--url", "http://x/v1", "--price", "1,nan"], "--price: expected IN,OUT, two numbers"),
        (["--model", "m", "--url", "x/v1"], "expected a URL such as http://127.0.0.1:8000/v1, got 'x/v1'"),
        (["--model", "m", "--url", "http://x/v1", "--at-once", "0"], "at_once must be at least 1, got 0"),
        (["env.suite=nowhere"], "unknown suite 'nowhere'"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert plan(tmp_path / "out", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_read_or_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan(Path("/proc/none/plans")) == 2
    assert "/proc/none/plans cannot be made" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != LOGS)  # root may read everything
    assert plan(tmp_path) == 2
    assert "cannot be read: its permissions forbid it" in capsys.readouterr().err


def test_a_disk_that_fills_keeps_what_fitted(tmp_path: Path) -> None:
    traces = [replace(sound_trace(), task_id=f"t{n}") for n in range(400)]
    with small_disk(tmp_path, size=60_000, largest_file=40_000) as disk:
        path = disk / PLANS
        phi = phi_by_rule(PlanMethod())
        with pytest.raises(OSError, match=r"(No space left|File too large)"):
            write_plans(traces, phi, PlanFile(path, PlanMethod()), progress=SilentProgress())
        copy = tmp_path / PLANS
        copy.write_bytes(path.read_bytes())
    file = PlanFile(copy, PlanMethod())
    assert 10 < len(file.traces) < 400
    before = len(file.traces)
    assert write_plans(traces, phi, file, progress=SilentProgress()).before == before
    assert len(read_plans(copy).by_trace) == 400
