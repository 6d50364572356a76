"""The faults' benchmark: its plans, that its judge sees what is wrong, that it sees what is left, and a small run."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from repository import ROOT

from benchmarks.injection.ledger import Ledger, problems
from benchmarks.injection.plans import Fault, Kind, Shape, deal
from benchmarks.section import write_section
from bepa_torchrl.data.keys import Source
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from osworld_gym.episode import blank
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import StepResult, StopReason, Verdict

TASK = Task("t", "Do.", (), {"func": "infeasible"})
FRAME = blank((8, 8))
FAULT = Fault(Kind.guest_killed, "perform", 0)

# --- plans -----------------------------------------------------------------------------------------------------------


def test_every_kind_comes_some_episodes_are_hit_at_every_attempt_and_a_seed_fixes_it_all() -> None:
    shapes = [Shape(setups=2, performs=3)] * 24
    faults = deal(shapes, 0.35, 3, seed=5)
    assert faults == deal(shapes, 0.35, 3, seed=5)
    assert faults != deal(shapes, 0.35, 3, seed=6)
    assert {fault.kind for fault in faults.values()} == set(Kind)
    attempts = Counter(job for job, _ in faults)
    assert sorted(Counter(attempts.values()).items()) == [(1, 4), (2, 3), (3, 1)]
    assert all((job, n) in faults for job, times in attempts.items() for n in range(times))


def test_faults_come_at_calls_that_an_episode_makes() -> None:
    shape = Shape(setups=1, performs=2)
    limits = {"setup": shape.setups, "perform": shape.performs, "screenshot": shape.screenshots, "verify": 1}
    faults = [fault for seed in range(60) for fault in deal([shape] * 8, 1.0, 1, seed).values()]
    assert all(0 <= fault.number < limits[fault.call] for fault in faults)
    assert {fault.call for fault in faults if fault.kind is Kind.guest_killed} == set(limits)
    assert all(fault.call == "verify" for fault in faults if fault.kind is Kind.evaluator_raises)
    amid = [fault for fault in faults if fault.after]
    assert {fault.kind for fault in amid} == {Kind.guest_killed, Kind.guest_frozen, Kind.x_killed}
    last = ("screenshot", shape.screenshots - 1)  # too late
    assert all((fault.call, fault.number) != last for fault in amid)


def test_no_desktop_is_ended_at_the_same_step_twice() -> None:
    """Two such exits would be the policy's own doing."""
    ends = {Kind.guest_killed, Kind.x_killed, Kind.disk_full}
    for seed in range(40):
        for (_, attempt), fault in deal([Shape(1, 3)] * 12, 1.0, 3, seed).items():
            if attempt and fault.kind in ends:
                assert fault.call == "setup" or (fault.call, fault.number, fault.after) == ("screenshot", 0, 0.0)


def test_fewer_episodes_than_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="6 kinds of faults require at least as many episodes, got 5"):
        deal([Shape(1, 1)] * 5, 0.5, 3, 0)


# --- the judge -------------------------------------------------------------------------------------------------------


def ended(score: float) -> StepResult:
    return StepResult(FRAME, StopReason.finished, Verdict(score))


def broken(reason: FailureReason) -> StepResult:
    return StepResult(FRAME, StopReason.env_error, failure=reason)


def rows(job: EpisodeJob, reward: float) -> object:
    nothing = torch.zeros(1, dtype=torch.int64)
    turn = Turn(FRAME.png, Prompt(nothing, ()), Response("x", nothing, torch.zeros(1)))
    place = {"task_id": "t", "instruction": "Do.", "group_id": 0, "slot": job.slot, "source": Source.on_policy}
    return episode_rows([turn], **place, policy_version=0, reward=reward, stop=StopReason.finished, plan_free=True)  # type: ignore[arg-type]


class Run:
    """Two episodes: the first one's guest is killed once and it starts again, the second one is scored at once."""

    def __init__(self) -> None:
        self.jobs = [EpisodeJob(TASK, (0, 0, 0, n), 100 + n, slot=n) for n in range(2)]
        self.ledger = Ledger([100, 101], {(0, 0): FAULT})
        for desktop, seed in ((0, 100), (1, 101)):
            self.ledger.begin(desktop, seed)
        self.ledger.attempts[0].injected = True
        self.ledger.end(0, broken(FailureReason.died))
        self.ledger.end(1, ended(0.0))
        self.ledger.begin(0, 100)
        self.ledger.end(0, ended(1.0))
        first, second = self.jobs
        self.results = [
            EpisodeResult(first, rows(first, 1.0), StopReason.finished, Verdict(1.0), retried=(FailureReason.died,)),  # type: ignore[arg-type]
            EpisodeResult(second, rows(second, 0.0), StopReason.finished, Verdict(0.0)),  # type: ignore[arg-type]
        ]
        self.failures = {FailureReason.died: 1}

    def problems(self) -> list[str]:
        return problems(self.ledger, self.results, [1.0, 0.0], self.failures)


def replace(run: Run, n: int, **changed: object) -> None:
    old = run.results[n]
    fields = {name: getattr(old, name) for name in ("job", "rows", "stop", "verdict", "failure", "retried")}
    run.results[n] = EpisodeResult(**fields | changed)  # type: ignore[arg-type]


def faulty_but_scored(run: Run) -> None:
    run.ledger.attempts[1].fault, run.ledger.attempts[1].injected = FAULT, True


def wrong_reason(run: Run) -> None:
    run.ledger.attempts[0].result = broken(FailureReason.evaluator_failed)
    run.failures = {FailureReason.evaluator_failed: 1}


def another_seed(run: Run) -> None:
    run.ledger.attempts[2].seed = 7


def never_ended(run: Run) -> None:
    run.ledger.attempts[1].result = None


def scored_twice(run: Run) -> None:
    run.ledger.attempts[0].result = ended(0.0)
    run.failures = {}


WRONG: dict[str, tuple[Callable[[Run], object], str]] = {
    "an episode is missing": (lambda run: run.results.pop(), "2 episodes were requested, 1 came back"),
    "one came back twice": (lambda run: run.results.append(run.results[0]), "episode 0 came back 2 times"),
    "a fault is scored": (faulty_but_scored, "episode 1, attempt 0: guest killed at perform 0 ended as finished"),
    "a fault is reported wrongly": (wrong_reason, "was reported as evaluator_failed"),
    "a retry has another seed": (another_seed, "episode 0: an attempt with seed 7"),
    "an attempt never ended": (never_ended, "episode 1: attempt 0 never ended"),
    "two attempts are scored": (scored_twice, r"episode 0: attempts \[0, 1\] of 2 were scored"),
    "retries are reported wrongly": (lambda run: replace(run, 0, retried=()), "2 attempts, but 0 retries are reported"),
    "a wrong score": (lambda run: replace(run, 1, verdict=Verdict(1.0)), "scripted for 0, scored 1"),
    "a wrong reward": (lambda run: replace(run, 1, rows=rows(run.jobs[1], 1.0)), "scripted for 0, rewarded {1.0}"),
    "a masked one has rows": (
        lambda run: replace(run, 1, stop=StopReason.env_error, failure=FailureReason.died),
        "its infrastructure failed, but it has the verdict",
    ),
    "a wrong count": (lambda run: run.failures.clear(), "the vector counted {}"),
}


def test_a_sound_run_has_no_problems() -> None:
    assert Run().problems() == []


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_seen(case: str) -> None:
    spoil, said = WRONG[case]
    run = Run()
    spoil(run)
    assert any(re.search(said, line) for line in run.problems()), run.problems()


# --- what is left ----------------------------------------------------------------------------------------------------

LOOK = """
import sys
from benchmarks.injection import leftovers
leftovers.PATIENCE = 1.0
status, left = leftovers.run_and_inspect([sys.executable, "-c", sys.argv[1]])
print(status, left)
for line in left.lines():
    print(line.split()[0], line.split()[1].rpartition("/")[2], *line.split()[2:])
"""


def look(program: str) -> list[str]:
    """In a separate process, which adopts every orphan below it."""
    command = [sys.executable, "-c", LOOK, textwrap.dedent(program)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_tidy_program_leaves_nothing() -> None:
    assert look("import tempfile; tempfile.TemporaryFile(); raise SystemExit(3)") == [
        "3 0 processes, 0 mounts, 0 folders, 0 groups"
    ]


def test_an_orphan_and_a_folder_are_found_and_ended() -> None:
    said = look("""
        import subprocess, tempfile
        tempfile.mkdtemp(prefix="left-")
        subprocess.Popen(["setsid", "-f", "sleep", "4712"]).wait()
    """)
    assert said[0] == "0 1 processes, 0 mounts, 1 folders, 0 groups"
    assert said[1].endswith("sleep 4712")
    assert said[2].startswith("left: left-")
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4712"]]


# --- the page --------------------------------------------------------------------------------------------------------


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for title, body in (("One", "first"), ("Two", "second"), ("Three", "third"), ("Two", "newer")):
        write_section(title, body, page)
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == ["One", "Two", "Three"]
    assert ("second" in text, text.count("newer"), "first" in text, "third" in text) == (False, 1, True, True)
    assert "\n\n\n" not in text


# --- a small run -----------------------------------------------------------------------------------------------------


@pytest.mark.desktop
@pytest.mark.nightly
def test_a_small_run_holds() -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--episodes", "24", "--desktops", "3", "--seed", "1"]
    got = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert got.returncode == 0, got.stdout + got.stderr
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", got.stdout, re.M))
    kinds = re.findall(r"([1-9]\d*) ([\w ]+)", rows["faults injected"].partition(": ")[2])
    assert {kind for _, kind in kinds} == {kind.value for kind in Kind}
    assert rows["faults among the rewards"] == "0"
    assert rows["left after the owner's end"] == "0 processes, 0 mounts, 0 folders, 0 groups"
    assert rows["processes of closed desktops, their owner alive"] == "0"
    assert rows["episodes"].endswith(", 1 masked")
    assert rows["scores as scripted"] == "24 of 24"
    assert rows["desktop ended by the policy's own actions, scored 0"] == "1"
