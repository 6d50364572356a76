"""Runs with ``storage=``: resumed on an empty machine, a server that is away during the run, bad input."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from object_servers import Server, azurite_connection, azurite_server

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.remote_copy import restore_missing
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.store.mirror import RunStore, RunUploader, restore
from bepa_torchrl.scale.store.objects import StorageError, open_store
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.lock import FolderInUseError, locked
from bepa_torchrl.testing import small_checkpoint

#: a run that uploads often
MAIN = """
import sys
from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment import remote_copy
remote_copy._INTERVAL = 0.1
sys.exit(main(sys.argv[1:]))
"""
DEADLINE = 600.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    checkpoint = TransformersPolicy(small_checkpoint(), preset="compact").save(tmp_path_factory.mktemp("p") / "random")
    return [
        "experiment=smoke", "algo=level2", "compare=[]", f"policy.checkpoint={checkpoint}", "policy.max_new_tokens=8",
        "env.max_steps=1", "env.desktops=4", "env.train_limit=2", "env.held_out_limit=1", "eval.every=0",
        "eval.final_episodes=0", "record.every=1", "train.iterations=5", "name=x",
    ]  # fmt: skip


def start(*settings: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAIN, *settings]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.3)
    return found


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def checkpoints(store: RunStore) -> set[str]:
    """The checkpoints in the newest snapshot."""
    for number in store.numbers()[:1]:
        return {path.split("/")[2] for path in store.read(number).files if path.startswith("level2/checkpoints/")}
    return set()


@pytest.mark.slow
def test_a_run_whose_machine_is_lost_goes_on_from_the_store(settings: list[str], tmp_path: Path) -> None:
    url, first, second = tmp_path / "store", tmp_path / "first", tmp_path / "second"
    store = RunStore(open_store(str(url)), "x")
    with start(*settings, f"runs={first}", f"storage={url}") as launcher:
        wait_for(lambda: len(checkpoints(store)) == 2, launcher)
        launcher.kill()
    shutil.rmtree(first)
    assert main(["resume=true", "name=x", f"runs={second}", f"storage={url}"]) == 0
    lines = read_lines(second / "x" / "level2" / "iterations.jsonl")
    assert [line["iteration"] for line in lines] == list(range(6))
    assert (second / "x" / "results.json").exists()
    assert restore(store, tmp_path / "third") is not None
    assert content(tmp_path / "third") == content(second / "x")


def test_bad_input_is_one_line_before_anything_is_computed(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store" / "x" / "snapshots").mkdir(parents=True)
    (tmp_path / "store" / "x" / "snapshots" / "000000000001").touch()
    (tmp_path / "file").touch()
    for storage, code, message in (
        ("abf://c/x", 2, "unknown scheme 'abf' (did you mean 'abfs'?)"),
        (str(tmp_path / "store"), 2, "store/x exists and is not overwritten; give another name=, or go on with resume"),
        (str(tmp_path / "file"), 3, "file: creating probe-"),
    ):
        assert main([*settings, f"runs={tmp_path}/runs", f"storage={storage}"]) == code
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line
        assert not (tmp_path / "runs").exists()
    assert main(["resume=true", "name=y", f"runs={tmp_path}/runs", f"storage={tmp_path}/store"]) == 2
    assert "nothing to resume: neither" in capsys.readouterr().err


def resuming(tmp_path: Path) -> Settings:
    return load_config(["name=x", "resume=true", f"runs={tmp_path / 'runs'}", f"storage={tmp_path / 'store'}"])


def stored_run(tmp_path: Path) -> Settings:
    """The settings that resume ``runs/x``, of which the store has a snapshot and this machine nothing."""
    elsewhere = tmp_path / "elsewhere" / "x"
    elsewhere.mkdir(parents=True)
    (elsewhere / "config.yaml").write_text("whole: 1\n")
    RunUploader(elsewhere, RunStore(open_store(str(tmp_path / "store")), "x"), interval=60.0, note=print).close(60.0)
    return resuming(tmp_path)


@pytest.mark.parametrize("left", [(), (".lock",), (".lock", "overrides.json"), ("level2/config.yaml",)])
def test_a_folder_in_which_no_run_has_begun_is_restored_over(left: tuple[str, ...], tmp_path: Path) -> None:
    config, folder, notes = stored_run(tmp_path), tmp_path / "runs" / "x", list[str]()
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("1\n")
    restore_missing(config, folder, notes.append)
    assert content(folder) == content(tmp_path / "elsewhere" / "x")
    assert notes == [f"restored 1 files from {tmp_path / 'store' / 'x'}"]


def test_a_store_that_fails_for_a_moment_restores_a_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, numbers, asked = stored_run(tmp_path), RunStore.numbers, list[int]()

    def fail_first(store: RunStore) -> list[int]:
        asked.append(len(asked))
        if len(asked) == 1:
            raise StorageError("no route to the store")
        return numbers(store)

    monkeypatch.setattr(RunStore, "numbers", fail_first)
    restore_missing(config, tmp_path / "runs" / "x", print)
    assert content(tmp_path / "runs" / "x") == content(tmp_path / "elsewhere" / "x")


def test_nothing_is_restored_over_a_folder_with_anything_else(tmp_path: Path) -> None:
    config, folder = stored_run(tmp_path), tmp_path / "runs" / "x"
    (folder / "prepared").mkdir(parents=True)
    (folder / "overrides.json").write_text("[]")
    with pytest.raises(RecordError, match=r"runs/x has prepared, and no config.yaml of a run; .* move the folder away"):
        restore_missing(config, folder, print)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "overrides.json", "prepared"]
    shutil.rmtree(folder / "prepared")
    with locked(folder), pytest.raises(FolderInUseError, match="is in use by process"):
        restore_missing(config, folder, print)
    assert (folder / "overrides.json").exists()


def test_without_a_run_in_the_store_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    (folder / "overrides.json").write_text("[]")
    with pytest.raises(RecordError, match="nothing to resume: neither"):
        restore_missing(resuming(tmp_path), folder, print)
    assert [path.name for path in folder.iterdir()] == ["overrides.json"]


@pytest.mark.parametrize("storage", ["runs", "runs/x", "file://{}/runs/x/copy", "link"])
def test_the_copy_of_a_run_is_not_in_its_own_folder(
    storage: str, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be copied with the run, again and again."""
    (tmp_path / "link").symlink_to(tmp_path / "runs", target_is_directory=True)
    place = storage.format(tmp_path) if "://" in storage else str(tmp_path / storage)
    assert main([*settings, f"runs={tmp_path / 'runs'}", f"storage='{place}'"]) == 2
    assert f"would be in its own folder, {tmp_path / 'runs' / 'x'}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from azure.storage.blob import ContainerClient

    server = azurite_server(tmp_path / "azurite")
    server.start()
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_connection(server))
    with ContainerClient.from_connection_string(azurite_connection(server), "container") as container:
        container.create_container()
    yield server
    server.stop()


@pytest.mark.storage
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_server_that_is_away_during_the_run_has_everything_at_the_end(
    settings: list[str], azure: Server, tmp_path: Path
) -> None:
    url = "abfs://container/runs"
    store = RunStore(open_store(url), "x")
    with start(*settings, f"runs={tmp_path}", f"storage={url}") as launcher:
        wait_for(lambda: checkpoints(store), launcher)
        azure.stop()
        wait_for(lambda: (tmp_path / "x" / "results.json").exists(), launcher)  # the run itself does not wait
        azure.start()
        output, error = launcher.communicate(timeout=DEADLINE)
        assert launcher.returncode == 0, error
    assert "abfs://container/runs/x" in " ".join(output.split())  # a note only if Azure's own retries gave up
    restore(store, tmp_path / "restored")
    assert content(tmp_path / "restored") == content(tmp_path / "x")
