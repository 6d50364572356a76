"""Setup steps against a target that records its calls."""

import pytest

from osworld_gym.desktops.guest_server import setup_steps as setup
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.types import CommandResult


class Recorder:
    screen_size = (1280, 720)
    client_password = "s3cret"

    def __init__(self, outputs=("",)):
        self.calls, self.outputs = [], list(outputs)

    def execute(self, command, *, shell):
        self.calls.append(("execute", command, shell))
        return CommandResult(0, self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0], "")

    def launch(self, command, *, shell, window):
        self.calls.append(("launch", command, shell, window))

    def open_file(self, path):
        self.calls.append(("open", path))

    def activate_window(self, name, *, strict, by_class):
        self.calls.append(("activate", name, strict, by_class))

    def close_window(self, name, *, strict, by_class):
        self.calls.append(("close", name, strict, by_class))

    def write_file(self, path, data):
        self.calls.append(("write", path, data))

    def wait_still(self, deadline):
        self.calls.append(("still", deadline))


def run(kind, outputs=("",), **parameters):
    target = Recorder(outputs)
    setup.run_step(target, {"type": kind, "parameters": parameters})
    return target.calls


def test_every_step():
    assert run("launch", command=["xterm"]) == [("launch", ["xterm"], False, None)]
    assert run("launch", command="xterm &", shell=True, window=True) == [("launch", "xterm &", True, True)]
    assert run("open", path="/home/user/a.txt") == [("open", "/home/user/a.txt")]
    assert run("execute", command=["ls"]) == run("command", command=["ls"]) == [("execute", ["ls"], False)]
    assert run("sleep", seconds=2) == run("sleep", seconds="2") == [("still", 2.0)]
    assert run("activate_window", window_name="x", strict=True) == [("activate", "x", True, False)]
    assert run("close_window", window_name="x", by_class=True) == [("close", "x", False, True)]
    assert run("write_file", path="/a", content="é") == [("write", "/a", b"\xc3\xa9")]


def test_upload_file(tmp_path):
    (tmp_path / "a").write_bytes(b"\0\1")
    assert run("upload_file", files=[{"local_path": str(tmp_path / "a"), "path": "/b"}]) == [("write", "/b", b"\0\1")]
    with pytest.raises(TaskError, match="No such file"):
        run("upload_file", files=[{"local_path": str(tmp_path / "none"), "path": "/b"}])
    with pytest.raises(TaskError, match="'files' requires 'local_path'"):
        run("upload_file", files=[{"path": "/b"}])


def test_placeholders_and_the_string_true():
    calls = run("execute", command="echo {CLIENT_PASSWORD} {SCREEN_WIDTH_HALF} {SCREEN_HEIGHT}", shell="true")
    assert calls == [("execute", "echo s3cret 640 720", True)]


def test_until_repeats_until_the_condition_is_met(monkeypatch):
    monkeypatch.setattr(setup, "UNTIL_INTERVAL", 0.0)
    assert len(run("execute", ["no", "no", "yes"], command=["x"], until={"stdout": "yes"})) == 3
    assert len(run("execute", ["no"], command=["x"], until={"returncode": 0})) == 1
    monkeypatch.setattr(setup, "UNTIL_DEADLINE", 0.05)
    with pytest.raises(DesktopError, match="did not reach") as caught:
        run("execute", ["no"], command=["x"], until={"stdout": "yes"})
    assert caught.value.reason is FailureReason.setup_failed


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"type": "dance"}, r"unknown setup step 'dance'; known: launch, open, execute"),
        ({"type": "open", "parameters": {}}, r"'open': parameter 'path' must be str, got nothing"),
        ({"type": "open", "parameters": {"path": 3}}, r"parameter 'path' must be str, got 3"),
        ({"type": "open", "parameters": {"path": "/a", "how": 1}}, r"'open': unknown parameters: how"),
        ({"type": "open", "parameters": [1]}, r"'parameters' must be an object"),
        ({"type": "sleep", "parameters": {"seconds": "long"}}, r"'seconds' must be a number >= 0, got 'long'"),
        ({"type": "sleep", "parameters": {"seconds": -1}}, r"'seconds' must be a number >= 0, got -1"),
        ({"type": "sleep", "parameters": {"seconds": "nan"}}, r"'seconds' must be a number >= 0, got 'nan'"),
    ],
)
def test_a_wrong_step_is_a_task_error(step, message):
    with pytest.raises(TaskError, match=message):
        setup.run_step(Recorder(), step)
