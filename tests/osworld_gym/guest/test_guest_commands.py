"""Paths and command lines by the rules of OSWorld's server, which runs in the user's home."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from osworld_gym.guest.endpoints.files import Files
from osworld_gym.guest.process.commands import Commands


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "d").mkdir(parents=True)
    (folder / "d" / "file").write_text("seen")
    return folder


@pytest.fixture
def commands(home: Path, tmp_path: Path) -> Commands:
    return Commands({"HOME": str(home), "USER": "user", "PATH": os.environ["PATH"]}, tmp_path / "log")


@pytest.mark.parametrize("path", ["d/file", "./d/file", "~/d/file", "$HOME/d/file", "/home/user/d/file"])
def test_relative_paths_and_home_resolve_against_home(commands: Commands, home: Path, path: str) -> None:
    assert commands.expand(path).resolve() == home / "d" / "file"


@pytest.mark.parametrize("path", ["/etc/hostname", "/home/username/x"])
def test_other_absolute_paths_stay(commands: Commands, path: str) -> None:
    assert commands.expand(path) == Path(path)


def test_a_file_and_a_folder_are_found_by_their_relative_path(commands: Commands) -> None:
    files = Files(commands)
    assert files.file({"file_path": "d/file"}).body == b"seen"
    assert files.list_directory({"path": "d"}).status == 200
    assert files.upload({"file_path": "new/file", "file_data": b"x"}).status == 200
    assert (commands.home / "new" / "file").read_bytes() == b"x"


def test_a_link_to_itself_is_listed_as_a_file(commands: Commands) -> None:
    (commands.home / "d" / "loop").symlink_to("loop")
    (commands.home / "d" / "up").symlink_to("..")
    tree = json.loads(Files(commands).list_directory({"path": "d"}).body)["directory_tree"]
    assert {node["name"]: node["type"] for node in tree["children"]} == {
        "file": "file", "loop": "file", "up": "directory",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["cat ~/d/file", ["cat", "~/d/file"], "cat d/file", ["cat", "d/file"]])
def test_home_expands_in_commands_without_a_shell(commands: Commands, command: str | list[str]) -> None:
    assert commands.execute(command, False, 10.0) == (0, "seen", "")


def test_a_tilde_elsewhere_stays(commands: Commands) -> None:
    assert commands.execute("echo ~ a~/b '~x'", False, 10.0)[1] == "~ a~/b ~x\n"


def test_an_empty_line_is_a_shell_script_but_no_program(commands: Commands) -> None:
    assert commands.execute("", True, 10.0) == (0, "", "")
    with pytest.raises(ValueError, match="the command is empty"):
        commands.execute("", False, 10.0)


def test_a_pipe_in_the_place_of_the_log_holds_no_program(commands: Commands, tmp_path: Path) -> None:
    """A program of the policy may write the folder of the log; opening a pipe waits for a reader."""
    (tmp_path / "log").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "log")
    reader = threading.Timer(10.0, lambda: os.open(tmp_path / "log", os.O_RDONLY))
    reader.daemon = True
    reader.start()
    commands.launch(["true"], False).wait(20.0)
    assert reader.is_alive()  # nobody had to read
    reader.cancel()
