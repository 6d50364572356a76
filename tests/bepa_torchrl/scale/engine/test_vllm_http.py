"""``bepa engine``: a policy samples with vLLM by HTTP, also after a sync and after the engine was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from processes import command_lines
from vllm_engine import assert_as_trainer, change, make_trainer

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.scale.engine.http.client import EngineClient
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.testing import picture
from osworld_gym.types import PromptContext

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
TOKEN = b"0123456789abcdef"
TIMEOUTS = {"start_timeout": 180.0, "stall_timeout": 90.0}  #: together below the test's


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running ``bepa engine`` and its URL; if the test has not ended it, its log and where its threads are."""
    command = [sys.executable, "-m", "bepa_torchrl", "engine", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "BEPA_ENGINE_TOKEN": TOKEN.decode(), "PYTHONFAULTHANDLER": "1"}
    path = tmp_path / "engine.log"
    with (
        path.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        stop = threading.Timer(300.0, process.kill)
        stop.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            stop.cancel()
            assert line.startswith("vLLM "), f"{line}{path.read_text()}"
            drain = threading.Thread(target=log.writelines, args=[process.stdout], daemon=True)
            drain.start()
            yield line.split()[-1], process
        finally:
            stop.cancel()
            if process.poll() is None:
                end_with_stacks(process.pid)
                print(path.read_text())


def end_with_stacks(pid: int) -> None:
    """Ends a process and those below it; each writes the stacks of its threads to its stderr."""
    below = list(command_lines(pid))
    for process in (*below, psutil.Process(pid)):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGABRT)
    for process in psutil.wait_procs([*below, psutil.Process(pid)], timeout=10.0)[1]:
        process.kill()


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8)], ids=["whole weights", "adapters alone"])
def test_it_samples_syncs_restarts_and_ends(
    lora: Lora | None, server: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    url, process = server
    trainer = make_trainer(lora=lora)
    policy = VLLMSampler(
        trainer, access=Access(url, TOKEN), folder=tmp_path / "weights", kv_cache_gb=0.25, max_rows=8, **TIMEOUTS
    )
    contexts = [PromptContext(f"open {i}", [picture(i), picture(50 + i)], ["Action: wait()"]) for i in range(3)]
    prompts = [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]
    keys = [(11, 0, i, 0, 0) for i in range(3)]
    assert_as_trainer(policy.sample(prompts, keys), trainer, prompts, keys)
    change(trainer, "" if lora is None else "lora_")
    policy.sync()  # verified by the probe
    assert ("adapter" in EngineClient(Access(url, TOKEN)).state()["weights"]) == (lora is not None)
    assert_as_trainer(policy.sample(prompts, keys), trainer, prompts, keys)

    (engine,) = (child for child, line in command_lines(process.pid).items() if "EngineCore" in line)
    engine.send_signal(signal.SIGKILL)
    assert_as_trainer(policy.sample(prompts, keys), trainer, prompts, keys)
    assert policy.drain_metrics()["engine/restarts"] == 1

    policy.close()
    assert EngineClient(Access(url, TOKEN)).state()["weights"] is None
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not psutil.wait_procs(children, timeout=20)[1], "processes are left"
