"""The recipes on OSWorld are the paper's: 128 + 241 tasks, 4 epochs, evaluations within a tenth of the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from bepa_torchrl.commands.plan import _evaluations
from bepa_torchrl.experiment.checks import MACHINE
from bepa_torchrl.experiment.checks.tasks import known_attempts, task_checks
from bepa_torchrl.experiment.config import CONFIGS, ConfigError, check, load_config
from bepa_torchrl.experiment.preparation import final_evaluation, measure_base
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import Tasks, make_tasks
from bepa_torchrl.experts import TraceError
from bepa_torchrl.rollout.episodes import EpisodeJob
from bepa_torchrl.rollout.stages import Stages
from osworld_gym.tasks.suites.registry import load_suite

TRAIN, HELD_OUT = 128, 241
RECIPES = sorted(path.stem for path in (CONFIGS / "experiment").glob("osworld*.yaml"))
SIM = ("env=sim", "env.train_split=train", "env.held_out_split=held_out")


class CountingStages(Stages):
    """Plays nothing, and counts the episodes of each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, int] = {}

    def episodes(self, name: str, **_: Any) -> Any:
        def play(_policy: object, _vector: object, jobs: Sequence[EpisodeJob], **_: Any) -> list[Any]:
            self.jobs[name] = len(jobs)
            return []

        return play


def tasks_of(train: int, held_out: int) -> Tasks:
    """A run's tasks: the simulated suite's, repeated under other ids."""
    suite = load_suite("sim")
    many = tuple(suite.tasks[n % len(suite.tasks)] for n in range(train + held_out))
    return Tasks(suite, many[:train], many[train:])


def evaluation_episodes(settings: Settings, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> int:
    """Episodes of all evaluations of a run, as the functions of the preparation and the end of a run play them."""
    stages, nothing = CountingStages(), cast("Any", None)
    monkeypatch.setattr(
        "bepa_torchrl.experiment.preparation.read_pass_k", lambda _, every: (5, {task.id: (0, 5) for task in every})
    )
    measure_base(settings, nothing, nothing, tasks, stages=stages)
    before, stages.jobs = sum(stages.jobs.values()), {}
    if settings.eval.final_episodes:
        final_evaluation(settings, nothing, nothing, [*tasks.train, *tasks.held_out], stages=stages)
    every, count = settings.eval.every, len(tasks.train) + len(tasks.held_out)
    during = 0 if every == 0 else (settings.train.iterations - 1) // every
    return before + sum(stages.jobs.values()) + during * settings.eval.episodes * count


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_the_papers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_config([f"experiment={name}"])
    train = settings.train.iterations * settings.collect.groups
    assert (settings.collect.groups, settings.collect.group_size, settings.env.max_steps) == (16, 8, 15)
    assert train == 4 * TRAIN  # epochs
    lists = [Path(split or "") for split in (settings.env.train_split, settings.env.held_out_split)]
    assert [path.name for path in lists] == ["train.json", "held_out.json"]
    assert settings.expert.pass_k_file == str(lists[0].with_name("pass_k.json"))
    assert (settings.expert.pass_k, settings.expert.seed_from_converted) == (5, False)
    played = evaluation_episodes(settings, tasks_of(TRAIN, HELD_OUT), monkeypatch)
    assert played == 369  # one per task at the end
    assert played / (train * settings.collect.group_size) < 0.1


def test_the_default_evaluations_are_more_than_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """640 for pass@5, 1 greedy + 3 sampled before and after for 369 tasks, and 2 times one episode each."""
    settings = load_config(["experiment=paper"])
    played = evaluation_episodes(settings, tasks_of(TRAIN, HELD_OUT), monkeypatch)
    assert played == 640 + 2 * 4 * 369 + 2 * 369
    assert played > settings.train.iterations * 16 * 8


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=osworld_7b"],
        ["experiment=paper"],
        ["experiment=paper", "eval.every=5", "eval.episodes=2", "eval.greedy=false"],
        ["experiment=paper", "eval.final_episodes=0", "eval.every=0"],
    ],
    ids=" ".join,
)
def test_the_plan_counts_the_evaluations_that_are_played(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_config(overrides)
    counted = _evaluations(settings, TRAIN, HELD_OUT).count(settings.train.iterations)
    assert counted == evaluation_episodes(settings, tasks_of(TRAIN, HELD_OUT), monkeypatch)


# --- lists that are missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_missing_list_names_the_command_that_writes_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_config([f"experiment={name}"])
    problem = (
        r"^env\.train_split=splits/osworld/train\.json: .*, no such file; .* "
        r"with this run's settings: bepa experts split agent_s2:LOGS --split test --out splits/osworld$"
    )
    with pytest.raises(ConfigError, match=problem):
        make_tasks(settings)
    settings = load_config([f"experiment={name}", "policy.lora.rank=null", "optimizer.kind=adamw", "env.suite=sim"])
    with pytest.raises(ConfigError, match=r"LOGS --out splits/osworld$"):
        check(settings, MACHINE)
    folder = tmp_path / "splits" / "osworld"
    folder.mkdir(parents=True)
    (folder / "train.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^env\.held_out_split=.*held_out\.json: .* --out FOLDER$"):
        make_tasks(settings)


# --- the base policy's attempts -------------------------------------------------------------------------------------


def test_the_attempts_of_a_split_stand_for_the_base_policys_evaluations(tmp_path: Path) -> None:
    tasks, path = make_tasks(load_config(SIM)), tmp_path / "pass_k.json"
    every = [task.id for task in (*tasks.train, *tasks.held_out)]
    path.write_text(json.dumps({"k": 5, "counts": {task: [n % 2, 5] for n, task in enumerate(every)}}))
    settings = load_config([*SIM, f"expert.pass_k_file={path}"])
    stages, nothing = CountingStages(), cast("Any", None)
    base = measure_base(settings, nothing, nothing, tasks, stages=stages)
    assert stages.jobs == {}
    assert base["pass_k"].counts == {task.id: (n % 2, 5) for n, task in enumerate(tasks.train)}
    assert base["sampled"].counts == {task: (n % 2, 5) for n, task in enumerate(every)}
    assert set(base) == {"pass_k", "sampled"}


def test_attempts_that_do_not_fit_the_run_are_refused_before_it(tmp_path: Path) -> None:
    tasks, path = make_tasks(load_config(SIM)), tmp_path / "pass_k.json"
    counts = {task.id: [1, 3] for task in (*tasks.train, *tasks.held_out)}
    path.write_text(json.dumps({"k": 3, "counts": counts}))
    settings = load_config([*SIM, f"expert.pass_k_file={path}"])
    with pytest.raises(ConfigError, match=r"has 3 attempts per task, got expert\.pass_k=5; set expert\.pass_k=3"):
        check(settings, task_checks(tasks))
    check(settings, task_checks(tasks, prepared=True))
    check(load_config([*SIM, f"expert.pass_k_file={path}", "expert.pass_k=3"]), task_checks(tasks))
    path.write_text(json.dumps({"k": 5, "counts": dict(list(counts.items())[1:])}))
    with pytest.raises(TraceError, match=r"expected k and the counts of all \d+ tasks \(KeyError"):
        known_attempts(settings, tasks)
    path.unlink()
    with pytest.raises(TraceError, match=r"pass_k\.json"):
        known_attempts(settings, tasks)
