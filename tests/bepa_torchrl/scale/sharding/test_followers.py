"""The processes of the other ranks get commands, end with rank 0, and are named when they exit too early."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bepa_torchrl.experiment.method_handle import exit_text
from bepa_torchrl.failures import INFRASTRUCTURE
from bepa_torchrl.scale.sharding.followers import Followers
from bepa_torchrl.training.rank_failures import RankLostError

WRITES = """
import os, sys
with open(os.environ["FOLDER"] + "/" + os.environ["RANK"], "w") as file:
    for line in sys.stdin:
        file.write(line)
"""
FAILS = "import sys; sys.stdin.readline(); sys.stderr.write('run: rank 1: no memory\\n'); sys.exit(2)"
STAYS = """
import os, time
end = time.monotonic() + 90
while time.monotonic() < end and not os.path.exists(os.environ["FOLDER"] + "/ended"):
    time.sleep(0.05)
"""
LEAVES_A_PROCESS = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {STAYS!r}])  # has this rank's standard error, too
sys.stderr.write("run: rank 1: no memory\\n")
sys.exit(2)
"""
LOST = """
import sys, time
from bepa_torchrl.scale.sharding import followers
followers._GRACE = 0.1
command = [sys.executable, "-c", "import sys; sys.exit(7)"]
followers.Followers(command, 2, name="run", environment={}, describe=lambda code: f"ended with code {code}")
time.sleep(60)
"""


def started(program: str, ranks: int, folder: Path) -> Followers:
    return Followers(
        [sys.executable, "-c", program],
        ranks,
        name="run",
        environment={"FOLDER": str(folder)},
        describe=exit_text,
    )


def test_every_rank_gets_every_command_and_ends(tmp_path: Path) -> None:
    followers = started(WRITES, 3, tmp_path)
    followers.send({"do": "step", "max_tokens": 5})
    followers.send({"do": "gather"})
    followers.close(kill=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    for path in tmp_path.iterdir():
        commands = [json.loads(line) for line in path.read_text().splitlines()]
        assert commands == [{"do": "step", "max_tokens": 5}, {"do": "gather"}]


def test_an_early_exit_is_named_with_its_error(tmp_path: Path) -> None:
    followers = started(FAILS, 2, tmp_path)
    try:
        assert followers.exited(0.0) is None
        followers.send({"do": "step"})
        assert followers.exited(30.0) == "rank 1 of 2 ended with code 2: no memory"
        with pytest.raises(RankLostError, match="rank 1 of 2 has exited"):
            followers.send({"do": "step"})
    finally:
        followers.close(kill=True)


def test_an_exit_is_noticed_although_a_process_of_the_rank_goes_on(tmp_path: Path) -> None:
    started_at = time.monotonic()
    followers = started(LEAVES_A_PROCESS, 2, tmp_path)
    try:
        assert followers.exited(45.0) == "rank 1 of 2 ended with code 2: no memory"
        followers.close(kill=True)
        assert time.monotonic() - started_at < 60
    finally:
        (tmp_path / "ended").touch()


def test_processes_that_are_busy_can_be_ended_at_once(tmp_path: Path) -> None:
    started_at = time.monotonic()
    followers = started("import time; time.sleep(60)", 2, tmp_path)
    followers.close(kill=True)
    assert time.monotonic() - started_at < 20


@pytest.mark.slow
def test_a_busy_rank_0_is_ended_when_another_rank_exits() -> None:
    found = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=50, check=False)
    assert found.returncode == INFRASTRUCTURE
    assert found.stderr.startswith("run: rank 1 of 2 ended with code 7; go on with resume=true")
