"""The same environments and contract checks on real X desktops: ``make test-desktop``."""

from __future__ import annotations

import re

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from repository import ROOT
from tensordict import NonTensorStack
from torchrl.envs import check_env_specs

from osworld_gym.desktops.checks import KNOWN_DIFFERENCES, run_checks
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.checks import check_task
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.types import StopReason
from osworld_gym.vector import DesktopVector

pytestmark = pytest.mark.desktop

RESULT = {"type": "vm_command_line", "command": ["cat", "/tmp/note.txt"]}
EVALUATOR = {"func": "exact_match", "result": RESULT, "expected": {"type": "rule", "rules": {"expected": "here"}}}
WRITE = {"type": "execute", "parameters": {"command": "printf here > /tmp/note.txt", "shell": True}}
SUITE = Suite("notes", tuple(Task(name, "Look.", (WRITE,), EVALUATOR) for name in ("first", "second")), {})
LOOK = "Thought: look\nAction: wait()"
DONE = "Thought: done\nAction: finished()"


def test_the_contract_holds() -> None:
    results = run_checks(lambda: make_desktop("local"), KNOWN_DIFFERENCES.get("local"))
    assert [(result.name, result.detail) for result in results if result.outcome == "failed"] == []


def test_the_readmes_first_loop_runs_on_a_local_desktop(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (snippet,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "make_desktop" in text)
    local = snippet.replace('name = "sim"', 'name = "local"')
    assert local != snippet
    exec(compile(local, "README.md", "exec"), {})
    assert "stopped by finished with reward 1.0" in capsys.readouterr().out


def test_an_infeasible_task_is_sound_when_its_oracle_gives_up() -> None:
    with make_desktop("local") as desktop:
        assert check_task(desktop, load_suite("local").task("local-editor-infeasible"), seed=0) == []


def test_gymnasiums_checker_passes() -> None:
    env = gymnasium.make("osworld_gym:OSWorld-v0", provider="local", suite=SUITE, render_mode="rgb_array")
    assert env.observation_space["screenshot"].shape == (720, 1280, 3)
    check_env(env.unwrapped, skip_close_check=True)
    env.close()


@pytest.mark.parametrize("n", [1, 4])
def test_torchrls_checker_passes(n: int) -> None:
    env = OSWorldEnv("local", n, suite=SUITE, observation="array" if n == 1 else "png")
    check_env_specs(env)
    env.close()


def test_each_desktop_is_set_up_and_verified_by_itself() -> None:
    env = OSWorldEnv("local", 2, suite=SUITE, observation="png")
    td = env.reset()
    td["action"] = NonTensorStack(LOOK, DONE)
    after = env.step(td)["next"]
    assert list(after["stop_reason"]) == ["", "finished"]
    assert after["reward"].tolist() == [[0.0], [1.0]]
    env.close()


def test_a_desktop_that_fails_is_masked_and_replaced() -> None:
    with DesktopVector(lambda: make_desktop("local"), 2, deadline=60) as vector:
        for i in range(2):
            vector.send_reset(i, SUITE.tasks[i], 0)
        assert [result.stop for _, result in vector.receive(2)] == [None, None]
        vector._slots[0].worker.desktop.close()  # type: ignore[union-attr]
        for i in range(2):
            vector.send(i, DONE)
        results = dict(vector.receive(2))
        assert (results[0].stop, results[0].failure) == (StopReason.env_error, FailureReason.died)
        assert results[1].reward == 1.0
        vector.send_reset(0, SUITE.tasks[0], 0)
        assert vector.receive()[0][1].stop is None
        vector.send(0, DONE)
        assert vector.receive()[0][1].reward == 1.0
