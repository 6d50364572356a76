"""`osworld-gym`: its output and exit status: 0 success, 1 failed check, 2 bad input, 3 infrastructure failure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from closed_pipe import run_into, run_unread

from osworld_gym import cli
from osworld_gym.commands import doctor
from osworld_gym.desktops import registry
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.checks import MAX_ORACLE_STEPS, check_task
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.oracles.registry import ORACLES, make_oracle
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites import registry as suites
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.tasks.task import Task
from osworld_gym.testing import Fault, ScriptedDesktop, count_task
from osworld_gym.types import Action


class NeverReady(ScriptedDesktop):
    def __init__(self) -> None:
        super().__init__(Fault("reset", 1, "never_ready"))


class Deaf(ScriptedDesktop):
    """A provider that violates one rule of the contract."""

    def read_file(self, path: str) -> bytes:
        return self._files.get(path, b"")


@pytest.fixture
def _providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry with three test providers in addition to the real ones."""
    for kind in (ScriptedDesktop, NeverReady, Deaf):
        monkeypatch.setitem(registry.PROVIDERS, kind.__name__, f"{kind.__module__}:{kind.__name__}")
    monkeypatch.setitem(registry.PROVIDERS, "absent", "no_such_module:Desktop")


def osworld_folder(root: Path, *ids: str, **lists: list[str]) -> Path:
    for i in ids:
        path = root / "examples" / "os" / f"{i}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"id": i, "instruction": f"do\n{i}", "evaluator": {"func": "infeasible"}}))
    for name, members in lists.items():
        (root / f"{name}.json").write_text(json.dumps({"os": members}))
    return root


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["doctor", "--provider", "sim"], 0, "works: 128×128"),
        (["doctor", "--provider", "sim", "--checks"], 0, "passed files_come_back_as_written"),
        (["doctor", "--provider", "NeverReady"], 3, "does not work here: never_ready"),
        (["doctor", "--provider", "absent"], 3, "no_such_module"),
        (["doctor", "--provider", "Deaf", "--checks"], 1, "failed a_missing_file_is_file_not_found"),
        (["tasks", "list", "--split", "held_out"], 0, "template:"),
        (["tasks", "check", "--split", "held_out"], 0, "tasks of sim/held_out are valid"),
    ],
)
@pytest.mark.usefixtures("_providers")
def test_status_and_output(argv: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == status
    assert said in capsys.readouterr().out


def test_doctor_without_a_provider_has_a_line_on_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # without those that try to start real desktops
    monkeypatch.setattr(doctor, "PROVIDERS", ["recorded", "sim", "NeverReady"])
    monkeypatch.setitem(registry.PROVIDERS, "NeverReady", f"{NeverReady.__module__}:NeverReady")
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["sim", "NeverReady", "recorded"]
    assert lines[2] == "recorded   not tried: it requires folder=..."


@pytest.mark.parametrize("url", ["127.0.0.1:5000", "http://[::1", "http://host:5000x", "http://host?chrome=x"])
def test_doctor_goes_on_after_a_wrong_address_of_servers(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PROVIDERS", ["remote", "sim"])
    monkeypatch.setenv("OSWORLD_SERVER_URL", url)
    assert cli.main(["doctor"]) == 0
    remote, sim = capsys.readouterr().out.splitlines()[2:]
    assert "remote     does not work here: a server: expected http://[TOKEN@]HOST[:PORT]" in remote
    assert f"got {url!r}" in remote
    assert sim.startswith("sim        works")
    assert cli.main(["doctor", "--provider", "remote"]) == 2


def test_without_a_home_folder_the_error_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a container's user that /etc/passwd does not have."""
    for name in ("HOME", "OSWORLD_GYM_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("pwd.getpwnam", unknown)
    assert cli.main(["tasks", "fetch"]) == 2
    assert "no home folder; fix: export OSWORLD_GYM_HOME=FOLDER" in capsys.readouterr().err
    assert cli.main(["tasks", "list", "--suite", "~nobody-here"]) == 2
    assert "~nobody-here: expected a user with a home folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tasks", "list", "--suite", "sym"], "unknown suite 'sym' (did you mean 'sim'?); known: "),
        (["tasks", "list", "--split", "tests"], "no split 'tests'"),
        (["tasks", "list", "--split", "heldout"], "(did you mean 'held_out'?)"),
        (["tasks", "show", "no-such-task"], "no task 'no-such-task' in suite 'sim'; it has "),
        (
            ["tasks", "show", "sim-choose-0"],
            "10 tasks of suite 'sim' begin with 'sim-choose-0', expected one: sim-choose-00, sim-choose-01, ",
        ),
        (["tasks", "official", "--suite", "sim", "--task", "no-such-task"], "no task 'no-such-task' in suite 'sim'"),
        (["desktop", "--provider", "sim", "--width", "800"], "has no option width, got --width=800; leave it out"),
        (["doctor", "--provider", "recorded"], "provider 'recorded' requires folder=..."),
        (["doctor", "--provider", "sym"], "unknown provider 'sym' (did you mean 'sim'?); known: "),
        (["tasks", "list", "--provider", "sym"], "unknown provider 'sym' (did you mean 'sim'?); known: "),
        (
            ["tasks", "list", "--import", "no_such_module"],
            "import: cannot import 'no_such_module' (ModuleNotFoundError",
        ),
        (["tasks", "list", "--hashes", "--provider", "sim"], "whether tasks can run; leave --provider, --runnable"),
        (
            ["tasks", "check", "--provider", "local"],
            "the tasks of suite sim run on provider sim, got local; fix: --pro",
        ),
        (["desktop", "--task", "sim:sim-toggle-on-00"], "run on provider sim, got local; fix: --provider sim"),
        (["desktop", "--task", "x"], "--task: expected SUITE:ID, such as desktop:x, got 'x'"),
        (["desktop", "--provider", "sim", "--task", "x"], "--task: expected SUITE:ID, such as sim:x, got 'x'"),
        (
            ["desktop", "--provider", "sim", "--task", "desktop:local-editor-write"],
            "got sim; fix: --provider local, or a --task of another suite",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("argv", [["build-image", "--dockerfile"], ["install-official", "--folder"]])
def test_a_folder_that_cannot_be_made_is_bad_input(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/folder")):
        assert cli.main([*argv, str(folder)]) == 2
        error = capsys.readouterr().err
        assert f"osworld-gym: {argv[1]} {folder}" in error
        assert "choose a" in error
        assert error.count("\n") == 1
    if argv[0] == "build-image":
        assert cli.main([*argv, str(tmp_path)]) == 2
        assert "expected an empty or missing folder" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "image")

    monkeypatch.setattr("osworld_gym.commands.install.write_context", full)
    assert cli.main(["build-image", "--dockerfile", "image"]) == 3
    assert capsys.readouterr().err == "osworld-gym: [Errno 28] No space left on device: 'image'\n"


@pytest.mark.parametrize("argv", [[], ["tasks"], ["tasks", "show"]])
def test_bad_usage_is_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 2


@pytest.mark.parametrize(("argv", "nearest"), [(["docter"], "doctor"), (["tasks", "lst"], "list")])
def test_an_unknown_command_is_answered_with_the_nearest(
    argv: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(argv)
    assert f"got {argv[-1]!r} (did you mean {nearest!r}?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "nearest"), [(["doctor", "--chekcs"], "--checks"), (["tasks", "list", "--domian", "files"], "--domain")]
)
def test_an_unknown_option_is_answered_with_the_nearest(
    argv: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert f"(did you mean {nearest!r}?)" in capsys.readouterr().err


def test_show_prints_the_task_file(capsys: pytest.CaptureFixture[str]) -> None:
    task = sim_suite().tasks[0]
    assert cli.main(["tasks", "show", task.id]) == 0
    assert Task.from_json(json.loads(capsys.readouterr().out)) == Task.from_json(task.to_json())


@pytest.mark.usefixtures("_providers")
def test_unsound_tasks_are_named_and_a_failed_desktop_is_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = sim_suite().tasks[0]
    wrong = replace(sound, id="solved-already", config=(), evaluator=count_task(0).evaluator | {"func": "infeasible"})
    monkeypatch.setitem(suites.SUITES, "odd", lambda: Suite("odd", (sound, wrong), {}))
    assert cli.main(["tasks", "check", "--suite", "odd", "--provider", "sim"]) == 1
    out = capsys.readouterr().out
    assert "solved-already: the oracle is worth 0 after" in out
    assert "1 of 2 tasks" in out
    assert cli.main(["tasks", "check", "--suite", "odd", "--provider", "NeverReady"]) == 3
    assert "never_ready" in capsys.readouterr().err
    assert cli.main(["tasks", "check", "--suite", "odd"]) == 2


def test_a_folder_of_ones_own_is_called_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = sim_suite().tasks[0]
    path = tmp_path / "examples" / task.domain / f"{task.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(task.to_json()))
    assert cli.main(["tasks", "check", "--suite", str(tmp_path), "--provider", "sim"]) == 0
    assert f"1 of 1 tasks of {tmp_path}/" in capsys.readouterr().out
    assert cli.main(["tasks", "check", "--suite", str(tmp_path)]) == 2
    assert f"suite {str(tmp_path)!r} has no default provider" in capsys.readouterr().err


def test_a_task_that_is_solved_from_the_start_is_unsound() -> None:
    given = replace(sim_suite().tasks[0], evaluator={"func": "exact_match", **_always_one()})
    assert check_task(SimDesktop(), given, seed=0) == [
        "the fresh desktop is worth 1, not 0",
        "doing nothing is worth 1, not 0",
    ]


def test_an_oracle_that_comes_to_no_end_is_unsound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It turned a switch on and off, was right by chance when its steps were used up, and passed."""
    given = next(task for task in sim_suite().tasks if task.oracle and task.oracle["goals"][0]["kind"] == "set")
    player = make_oracle(given)
    steps: list[ExpertStep] = []

    class Endless:
        def next_step(self, desktop: Desktop) -> ExpertStep | None:
            steps.append(player.next_step(desktop) or replace(steps[0], actions=(Action("wait"),)))
            return steps[-1]

    monkeypatch.setitem(ORACLES, "sim", lambda *_: Endless())
    assert check_task(SimDesktop(), given, seed=0) == [f"the oracle is not done after {MAX_ORACLE_STEPS} steps"]


def test_tasks_check_names_the_task_whose_desktop_failed_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (task.id for task in sim_suite().split("held_out")[:2])

    def check(_desktop: Desktop, task: Task, _seed: int) -> list[str]:
        if task.id == first:
            raise DesktopError(FailureReason.evaluator_failed, "the oracle waited 60 s")
        return ["it is wrong"] if wrong and task.id == second else []

    monkeypatch.setattr("osworld_gym.commands.tasks.check_task", check)
    wrong, count = False, len(sim_suite().split("held_out"))
    assert cli.main(["tasks", "check", "--split", "held_out"]) == 3
    said = capsys.readouterr()
    assert said.err == f"osworld-gym: task {first!r} could not be checked: evaluator_failed: the oracle waited 60 s\n"
    assert f"{count - 1} of {count} tasks" in said.out
    wrong = True
    assert cli.main(["tasks", "check", "--split", "held_out"]) == 1
    assert f"{second}: it is wrong\n{count - 2} of {count} tasks" in capsys.readouterr().out


def _always_one() -> dict[str, object]:
    return {"result": {"type": "rule", "rules": 1}, "expected": {"type": "rule", "rules": {"expected": 1}}}


def test_an_osworld_folder_is_a_suite(tmp_path: Path) -> None:
    osworld_folder(tmp_path, "a", "b", "c", test_all=["c", "a"], test_small=["a"])
    suite = load_suite(tmp_path)
    assert [task.id for task in suite.split("test")] == ["c", "a"]
    assert [task.id for task in suite.split("all")] == ["a", "b", "c"]
    assert suite.task("a").tags == ("small",)
    assert suite.task("a").domain == "os"


def test_an_osworld_folder_that_is_wrong_names_the_file(tmp_path: Path) -> None:
    osworld_folder(tmp_path, "a", test_all=["a", "zz"])
    with pytest.raises(TaskError, match=r"test_all\.json.*'zz'"):
        load_suite(tmp_path)
    for wrong in ("[1]", '{"os": "a"}'):  # the letters of a text are no ids
        (tmp_path / "test_all.json").write_text(wrong)
        with pytest.raises(TaskError, match=rf"test_all\.json: expected .*, got {re.escape(wrong)}"):
            load_suite(tmp_path)
    (tmp_path / "test_all.json").unlink()
    (tmp_path / "examples" / "os" / "a.json").write_text("{")
    with pytest.raises(TaskError, match=r"a\.json: not a readable task file"):
        load_suite(tmp_path)


def test_oracles_by_type() -> None:
    task = sim_suite().tasks[0]
    desktop = SimDesktop()
    for step in task.config:
        desktop.setup(step)
    assert make_oracle(task).next_step(desktop) is not None
    with pytest.raises(ValueError, match="known: expert, native"):
        make_oracle(task, "foreign")
    with pytest.raises(TaskError, match="has no oracle"):
        make_oracle(count_task(1))
    with pytest.raises(TaskError, match=r"'magic' is unknown; known: local, sim"):
        make_oracle(replace(task, oracle={"type": "magic"}))


@pytest.mark.parametrize("unbuffered", [False, True])
def test_output_that_nobody_reads_is_no_error(unbuffered: bool) -> None:
    assert run_unread("osworld_gym.cli", "tasks", "list", unbuffered=unbuffered) == (0, "")


def test_output_that_cannot_be_written_is_one_line_and_status_3() -> None:
    said = "osworld-gym: standard output: [Errno 28] No space left on device\n"
    assert run_into("osworld_gym.cli", "tasks", "list", "--hashes", output=">/dev/full") == (3, said)


def test_a_closed_output_is_no_error() -> None:
    assert run_into("osworld_gym.cli", "tasks", "list", "--hashes", output=">&-") == (0, "")


def test_an_encoding_without_some_characters_is_no_error(tmp_path: Path) -> None:
    said = tmp_path / "said"
    arguments = ("doctor", "--provider", "sim")
    assert run_into("osworld_gym.cli", *arguments, output=f">{said}", PYTHONIOENCODING="ascii") == (0, "")
    assert "works: 128\\u00d7128" in said.read_text()


def test_an_interrupt_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimDesktop, "reset", interrupted)
    assert cli.main(["doctor", "--provider", "sim"]) == 130
    assert capsys.readouterr().err == "osworld-gym: interrupted\n"


class NoLicence(ScriptedDesktop):
    """A provider of the user's own that does not work."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Incomplete(Desktop):
    """One that lacks methods."""


def test_doctor_says_what_is_wrong_with_a_provider_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in (NoLicence, Incomplete):
        monkeypatch.setitem(registry.PROVIDERS, kind.__name__, kind)
    monkeypatch.setattr(doctor, "PROVIDERS", ["NoLicence", "Incomplete", "sim"])
    assert cli.main(["doctor"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()[2:]
    assert re.fullmatch(r"NoLicence +does not work: RuntimeError: no licence at .*test_cli\.py, line \d+", first)
    assert "its class Incomplete lacks close, perform, read_file, reset, run" in second
    assert third.startswith("sim        works")
    assert cli.main(["doctor", "--provider", "Incomplete"]) == 2
    assert capsys.readouterr().err.startswith("osworld-gym: provider 'Incomplete': its class Incomplete lacks close")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda split: None, "expected a function without arguments, "),  # noqa: ARG005
        (lambda: [], "returns a Suite, got list"),
    ],
)
def test_a_suite_of_ones_own_that_is_none(
    make: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(suites.SUITES, "odd", make)
    assert cli.main(["tasks", "list", "--suite", "odd"]) == 2
    assert said in capsys.readouterr().err
