"""``bepa experts convert``, ``selfroll`` and ``split`` on the bundled logs, and runs that start from their folders."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cache_traces import make_trace
from chat_server import Reply, chat_server
from repository import ROOT
from rich.console import Console
from small_disk import small_disk

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.cli import main
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import mark, provenance_of
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experiment.checks.tasks import task_checks
from bepa_torchrl.experiment.config import ConfigError, check, load_config, with_changes
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.preparation import phi
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.experts import Manifest, TraceError
from bepa_torchrl.experts.plans import PLANS, read_plans
from bepa_torchrl.experts.seed import Seed, read_seed
from bepa_torchrl.experts.splitting import make_split, split_of_run
from bepa_torchrl.storage.json_lines import count_units
from bepa_torchrl.testing import lamp_task
from osworld_gym.tasks.suites.registry import load_suite

LOGS = str(ROOT / "examples" / "experts")
OWL = str(ROOT / "examples" / "experts" / "gui_owl")
TASK = "sim-toggle-on-00"
QUICK = ("expert.selfroll_attempts=4", "env.desktops=2", "policy.max_new_tokens=48", "env.max_steps=8")
SLOW = 600.0  #: seconds that a loaded machine may take


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """D_self of the tiny policy, which follows the plan of GUI-Owl's log."""
    out = tmp_path_factory.mktemp("selfroll") / "out"
    assert main(["experts", "selfroll", f"auto:{OWL}", "--out", str(out), *QUICK]) == 0
    return out


def lists(folder: Path, **splits: list[str]) -> list[str]:
    """Settings that choose these tasks."""
    for name, ids in splits.items():
        (folder / f"{name}.json").write_text(json.dumps({"x": ids}))
    return [f"env.{name}_split={folder / name}.json" for name in splits]


def cache_in(folder: Path) -> TaskTraceCache:
    cache = TaskTraceCache()
    cache.loads(folder / "cache")
    return cache


# --- convert ---------------------------------------------------------------------------------------------------------


def test_convert_by_rule_counts_what_was_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(ROOT / "examples" / "experts" / "agent_s2", logs)
    path = logs / "sim" / TASK / "traj.jsonl"
    first, *others = path.read_text().splitlines()
    entry = json.loads(first)
    entry["action"] = "pyautogui.click(5, 5, clicks=1, button='middle')"
    path.write_text("\n".join([json.dumps(entry), *others]) + "\n")
    out = tmp_path / "out"
    assert main(["experts", "convert", f"agent_s2:{logs}", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    found = json.loads((out / "dropped.json").read_text())
    assert found["totals"]["traces"] == found["totals"]["converted"] == 2
    assert found["totals"]["faithful"] == 1
    assert found["totals"]["dropped"] == {"not_convertible": 1}
    assert found["traces"][1]["dropped"] == [[1, "not_convertible"]]
    assert "2 of 2 traces converted, 1 of them faithful\nsteps dropped    not_convertible    1" in shown
    seed = read_seed(out)
    assert (seed.kind, set(seed.tasks)) == ("converted", {"sim-choose-00", TASK})
    provenance = provenance_of(cache_in(out).get_trace(TASK)[0])
    assert provenance is not None
    assert (provenance.expert, provenance.plan) == ("agent_s2", None)


@pytest.mark.parametrize("thinking", ["", "<think>\nA step.\nAction: what?\n</think>\n\n"])
def test_convert_with_a_models_thoughts(tmp_path: Path, capsys: pytest.CaptureFixture[str], thinking: str) -> None:
    with chat_server(lambda _: Reply(f"{thinking}Thought: I see it.\nAction: wait()")) as server:
        command = ["experts", "convert", OWL, "--model", "m", "--url", server.url, "--out", str(tmp_path / "out")]
        assert main(command) == 0
    responses = [row[K.RESPONSE] for row in cache_in(tmp_path / "out").get_trace(TASK).unbind(0)]
    assert all(response.startswith("Thought: I see it.\nAction: ") for response in responses)
    assert "wait()" not in "".join(responses)  # the actions are the expert's
    assert "4 answers from the endpoint" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["", "<html>Sign in</html>", "Thought: \nAction: wait()"])
def test_thoughts_that_are_none_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    with chat_server(lambda _: Reply(bad)) as server:
        command = ["experts", "convert", OWL, "--model", "m", "--url", server.url, "--out", str(tmp_path / "out")]
        assert main(command) == 2
    assert "0 of 1 traces converted" in (shown := capsys.readouterr().out)
    assert "refused          a thought of a converted step: 3 answers of m were of no use" in shown
    assert not (tmp_path / "out").exists()


# --- selfroll and cache.seed -----------------------------------------------------------------------------------------


def test_a_self_rolled_folder(rolled: Path) -> None:
    attempts = [json.loads(line) for line in (rolled / "selfroll.jsonl").read_text().splitlines()]
    assert [attempt["kept"] for attempt in attempts] == [False] * (len(attempts) - 1) + [True]
    seed = read_seed(rolled)
    assert seed.kind == "self_rolled"
    assert dict(seed.tasks) == {TASK: load_suite("sim").task(TASK).content_hash}
    assert not list(rolled.parent.glob("out.*"))


def test_self_rolls_follow_a_file_of_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experts", "plan", LOGS, "--out", str(tmp_path / "plans")]) == 0
    lines = (tmp_path / "plans" / PLANS).read_text().splitlines()
    entry = json.loads(lines[-1])
    file = tmp_path / PLANS
    file.write_text(json.dumps(entry | {"plan": "1. Look around"}) + "\n")
    more = ["--plans", str(file), "--out", str(tmp_path / "out"), "expert.selfroll_attempts=1", "env.max_steps=2"]
    assert main(["experts", "selfroll", LOGS, *more]) == 0
    found = [json.loads(line) for line in (tmp_path / "out" / "selfroll.jsonl").read_text().splitlines()]
    assert [line["expert"] for line in found] == ["gui_owl_1_5"]
    assert "3 traces without a plan" in capsys.readouterr().out


def test_a_run_starts_from_the_folder_with_its_provenance(rolled: Path, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    assert main(["experts", "plan", OWL, "--out", str(plans)]) == 0
    tasks = lists(tmp_path, train=[TASK, "sim-choose-00"], held_out=["sim-choose-01"])
    config = load_config(
        ["experiment=smoke", f"cache.seed={rolled}", f"expert.plans={plans / PLANS}", f"expert.logs=[{OWL}]",
         "policy.max_new_tokens=48", "compare=[]", "eval.final_episodes=0", *tasks]
    )  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    chosen, policy = make_tasks(config), make_policy(config, seed=0)
    check(config, task_checks(chosen))
    prepared = prepared_run(config, folder, policy, chosen, Console(quiet=True))
    assert prepared.metrics["self_roll_episodes"] == 0
    assert prepared.manifest.self_rolled == (TASK,)
    kept = json.loads((rolled / "selfroll.jsonl").read_text().splitlines()[-1])
    found = prepared.manifest.provenance["self_rolled"][TASK]
    assert (found["expert"], found["plan"]) == ("gui_owl_1_5", kept["plan_hash"])
    assert found["attempt"] == kept["try"]
    one, other = cache_in(rolled).get_trace(TASK), prepared.self_rolled.get_trace(TASK)
    for key in (K.RESPONSE_TOKENS, K.PROMPT_TOKENS):
        assert [row.get(key).tolist() for row in one.unbind(0)] == [row.get(key).tolist() for row in other.unbind(0)]
    shutil.rmtree(plans)  # the run has a copy
    assert read_plans(folder / "prepared" / PLANS).by_trace
    with pytest.raises(TraceError, match="not a file of plans"):
        phi(config)
    with pytest.raises(TraceError, match="not a file of plans"):
        check(config, task_checks(chosen))
    check(config, task_checks(chosen, prepared=True))  # a resumed run
    phi(config, folder / "prepared")


@pytest.mark.parametrize("methods", [("algo=prefix", "compare=[]"), ("algo=bepa", "compare=[prefix]")])
def test_prefixes_refuse_a_folder_of_an_earlier_version(rolled: Path, tmp_path: Path, methods: tuple[str, str]) -> None:
    """Its traces do not state the seed of their desktop: they could not be replayed, and nothing would say so."""
    cache, old = cache_in(rolled), tmp_path / "old"
    found = provenance_of(row_list(trace := cache.get_trace(TASK))[0])
    assert found is not None
    assert found.env_seed is not None
    cache.put(TASK, mark(trace, replace(found, env_seed=None)))
    shutil.copytree(rolled, old)
    shutil.rmtree(old / "cache")
    cache.dumps(old / "cache")
    settings = [
        "experiment=smoke",
        "policy.max_new_tokens=48",
        *lists(tmp_path, train=[TASK], held_out=["sim-choose-01"]),
    ]
    config = load_config([*settings, f"cache.seed={old}", *methods])
    chosen, policy = make_tasks(config), make_policy(config, seed=0)
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(
        ValueError, match=rf"1 of the 1 traces of cache.seed={old} do not state .* `bepa experts selfroll`"
    ):
        prepared_run(config, folder, policy, chosen, Console(quiet=True))


def test_a_folder_that_does_not_fit_is_refused_before_anything_runs(
    rolled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(*settings: str) -> str:
        assert main(["train", f"cache.seed={rolled}", "experiment=smoke", *settings]) == 2
        assert not Path("runs").exists()
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    held_out = lists(tmp_path, train=["sim-choose-00", "sim-choose-01"], held_out=[TASK])
    assert f"cache.seed={rolled} and the held-out split share 1 tasks: {TASK}" in refused(*held_out)
    other = lists(tmp_path, train=["sim-choose-00", "sim-choose-01"], held_out=["sim-slide-00"])
    assert "none of its 1 traces is of a training task" in refused(*other)
    assert "expected a folder of `bepa experts selfroll` or `convert`" in refused(f"cache.seed={tmp_path}")
    data = json.loads((rolled / "seed.json").read_text())

    def changed(**values: Any) -> str:
        folder = tmp_path / "changed"
        folder.mkdir(exist_ok=True)
        (folder / "seed.json").write_text(json.dumps(data | values))
        return refused(f"cache.seed={folder}", "env.train_limit=null")

    assert f"its task '{TASK}' has changed since" in changed(tasks={TASK: "0"})
    assert "its task 'x' is not in suite 'sim'" in changed(tasks={"x": "0"})
    assert "its responses are in the action text 'opencua'" in changed(action_text="opencua")
    assert "its coordinates are of the image scaling" in changed(scaling={"factor": 28})
    assert "the tokens of another tokenizer" in changed(tokens="0")
    assert "incomplete" in changed(more=1)


def test_a_seed_stands_for_the_experts_of_tasks_without_oracles(rolled: Path) -> None:
    config = load_config([f"cache.seed={rolled}", "env.held_out_split=null", "collect.groups=2"])
    tasks = make_tasks(config)
    bare = replace(tasks, train=tuple(replace(task, oracle=None) for task in tasks.train))
    check(config, task_checks(bare))
    check(with_changes(config, {"algo.name": "grpo"}), task_checks(bare))
    with pytest.raises(ConfigError, match=r"algo=luffy requires an expert.*cache\.seed=FOLDER"):
        check(with_changes(config, {"algo.name": "luffy"}), task_checks(bare))


def test_only_training_tasks_are_taken_from_the_folder(tmp_path: Path) -> None:
    suite = load_suite("sim")
    tasks = {task.id: task.content_hash for task in suite.tasks[:3]}
    seed = Seed(tmp_path, "self_rolled", "sim", tasks, "uitars", {}, "")
    seed.check_tasks(suite, suite.tasks[:1], suite.tasks[3:], "uitars")
    with pytest.raises(TraceError, match="share 2 tasks"):
        seed.check_tasks(suite, suite.tasks[:1], suite.tasks[1:], "uitars")


# --- split -----------------------------------------------------------------------------------------------------------


def test_the_papers_numbers() -> None:
    """369 tasks; 150 solved by the expert or by Pass@5: 120 and 8 others train, 241 are held out."""
    tasks = [lamp_task(n) for n in range(369)]
    expert = {f"lamp-{n}" for n in range(120)}
    base = {f"lamp-{n}": (1 if 90 <= n < 150 else 0, 5) for n in range(369)}
    own = {f"lamp-{n}" for n in range(60, 100)}
    found = make_split(tasks, expert=expert, base=base, self_rolled=own, seed=7)
    assert [len(ids) for ids in (found.pool, found.manifest.train, found.manifest.held_out)] == [150, 128, 241]
    assert len(set(found.manifest.train) & set(found.pool)) == 120
    assert found.manifest.expert_only == tuple(f"lamp-{n}" for n in range(60, 90))
    with pytest.raises(ValueError, match=r"--fraction in \[0, 1\]"):
        make_split(tasks, expert=expert, base=base, fraction=1.5)


def test_split_writes_lists_that_a_run_takes(rolled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "split"
    tasks = lists(tmp_path, train=[TASK, *(f"sim-choose-0{n}" for n in range(4))])
    more = ["--split", tasks[0].partition("=")[2], "--extra", "1", "--fraction", "0.5", "--selfroll", str(rolled)]
    settings = ["expert.pass_k=1", "env.desktops=4", "env.max_steps=4"]
    assert main(["experts", "split", LOGS, "--out", str(out), *more, *settings]) == 0
    manifest = Manifest.load(out / "manifest.json")
    assert {TASK, "sim-choose-00"} <= set(manifest.expert)
    assert manifest.hashes[TASK] == load_suite("sim").task(TASK).content_hash
    counts = json.loads((out / "pass_k.json").read_text())
    assert counts["k"] == 1
    assert {task for task, (wins, _) in counts["counts"].items() if wins} == set(manifest.base_solved)
    assert manifest.expert_only == (() if TASK in manifest.base_solved else (TASK,))
    chosen = make_tasks(load_config([f"env.train_split={out}/train.json", f"env.held_out_split={out}/held_out.json"]))
    assert {task.id for task in chosen.train} == set(manifest.train)
    assert {task.id for task in chosen.held_out} == set(manifest.held_out)
    assert "pool " in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("split*")] == ["split"]
    again = ["experts", "split", LOGS, "--out", str(tmp_path / "again"), "--pass-k", str(out / "pass_k.json")]
    assert main([*again, *more]) == 0
    assert Manifest.load(tmp_path / "again" / "manifest.json") == manifest
    assert main([*again[:4], str(tmp_path / "other"), *again[5:], "--split", "train"]) == 2
    assert "expected k and the counts of all 64 tasks (KeyError" in capsys.readouterr().err
    assert main(["experts", "split", LOGS, "--out", str(tmp_path / "third"), "--selfroll", str(tmp_path)]) == 2
    assert f"--selfroll={tmp_path}: expected a folder of `bepa experts selfroll`" in capsys.readouterr().err


def test_the_sets_of_a_run_and_the_tasks_whose_cache_it_refreshed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ids = [f"sim-choose-0{n}" for n in range(4)]
    suite = load_suite("sim")
    manifest = Manifest(
        {task_id: suite.task(task_id).content_hash for task_id in ids},
        train=tuple(ids[:3]),
        held_out=tuple(ids[3:]),
        self_rolled=tuple(ids[:3]),
        base_solved=tuple(ids[2:3]),
    )
    manifest.save(run / "prepared" / "manifest.json")
    with pytest.raises(TraceError, match="no checkpoint of 'bepa' with a cache"):
        split_of_run(run, "bepa")
    cache = TaskTraceCache()
    for task_id in (ids[1], ids[2]):
        cache.refresh(task_id, [make_trace(task_id)])
    cache.put(ids[0], make_trace(ids[0]))
    checkpoint = run / "bepa" / "checkpoints" / "iteration-000000000012"
    cache.dumps(checkpoint / "components" / "0000-cache")
    (checkpoint / "manifest.json").write_text("{}")
    assert split_of_run(run, "bepa").updated == (ids[1],)  # refreshed, and never solved by the base policy
    assert main(["experts", "split", "--run", str(run), "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "updated.json").read_text()) == {suite.task(ids[1]).domain: [ids[1]]}


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_keeps_the_self_rolls_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("expert.selfroll_attempts=2", "env.desktops=2", "policy.max_new_tokens=48", "env.max_steps=4")

    def roll(out: Path) -> int:
        return main(["experts", "selfroll", LOGS, "--out", str(out), *quick])

    with small_disk(tmp_path, size=16_384, largest_file=2_000) as disk:
        assert roll(disk / "out") == 3
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bepa experts selfroll:")]
        assert "No space left" in line or "File too large" in line
        assert f"continue with: bepa experts selfroll {LOGS}" in line
        assert not (disk / "out").exists()
        shutil.copytree(disk / "out.unfinished", tmp_path / "out.unfinished")
    kept = count_units(tmp_path / "out.unfinished")
    assert kept > 0
    assert roll(tmp_path / "out") == 0
    before = re.findall(r"(\d+) of \d+ were finished before", capsys.readouterr().err)
    assert sum(map(int, before)) == kept
    attempts = [json.loads(line) for line in (tmp_path / "out" / "selfroll.jsonl").read_text().splitlines()]
    assert len(attempts) > kept
    assert len({(line["task"], line["expert"], line["try"]) for line in attempts}) == len(attempts)
    assert [line["task"] for line in attempts if line["kept"]] == [TASK]
    assert set(read_seed(tmp_path / "out").tasks) == {TASK}
