"""The container provider without an engine: owners, reaper, pipe, the image's build folder, container options."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from osworld_gym import cli
from osworld_gym.desktops.container import build as container_build
from osworld_gym.desktops.container import image as container_image
from osworld_gym.desktops.container.build import follow, host_mirrors, sources
from osworld_gym.desktops.container.desktop import ContainerDesktop, create_options
from osworld_gym.desktops.container.engine import OWNER, engine, engine_errors, engine_problem, labels, reap
from osworld_gym.desktops.container.image import guest_content, packages, write_context
from osworld_gym.desktops.container.owner import Owner
from osworld_gym.desktops.container.pipe import ContainerPipe
from osworld_gym.desktops.guest_server.prepared_desktop import LARGEST
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.server.channels import Channels, Stream
from osworld_gym.guest.server.forward import join

# --- owners ----------------------------------------------------------------------------------------------------------


def test_this_process_is_running_and_an_exited_one_is_not() -> None:
    mine = Owner.this()
    assert not mine.dead
    assert Owner.parse(str(mine)) == mine
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = int(Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    theirs = Owner(mine.machine, mine.boot, mine.namespace, child.pid, start)
    assert not theirs.dead
    child.communicate()
    assert theirs.dead


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({"start": 1}, True),  # its process id was reused by this process
        ({"boot": "earlier"}, True),
        ({"machine": "another", "start": 1}, False),
        ({"namespace": "0", "start": 1}, False),
        ({}, False),
    ],
)
def test_only_a_process_known_to_have_exited_counts_as_exited(change: dict[str, Any], dead: bool) -> None:
    mine = Owner.this()
    fields = {name: getattr(mine, name) for name in ("machine", "boot", "namespace", "pid", "start")}
    assert Owner(**(fields | change)).dead is dead


def test_an_owner_is_five_parts() -> None:
    with pytest.raises(ValueError, match="machine:boot:namespace:pid:start"):
        Owner.parse("somebody")


class Containers:
    """An engine with a list of containers; records the removed ones."""

    def __init__(self, owners: Mapping[str, str]) -> None:
        self.held = dict(owners)
        self.api = self

    def containers(self, all: bool, filters: Mapping[str, str]) -> list[dict[str, Any]]:
        assert all
        assert filters == {"label": OWNER}
        return [{"Id": ident, "Labels": {OWNER: owner}} for ident, owner in self.held.items()]

    def remove_container(self, ident: str, force: bool, v: bool) -> None:
        assert force
        assert v
        del self.held[ident]


def test_the_reaper_removes_containers_of_exited_owners_only() -> None:
    mine = Owner.this()
    dead = Owner(mine.machine, mine.boot, mine.namespace, mine.pid, 1)
    foreign = Owner("another", mine.boot, mine.namespace, mine.pid, 1)
    engine_ = Containers({"a": str(dead), "b": str(mine), "c": str(foreign), "d": "not ours"})
    assert reap(engine_) == 1  # type: ignore[arg-type]
    assert sorted(engine_.held) == ["b", "c", "d"]


def test_labels_name_this_process() -> None:
    assert Owner.parse(labels("container")[OWNER]) == Owner.this()


# --- engine failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "fix"),
    [("unix:///nowhere/docker.sock", "systemctl start docker"), ("tcp://127.0.0.1:1", "unset DOCKER_HOST")],
)
def test_no_engine_names_the_command_that_starts_one(host: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(DesktopError, match=fix) as caught:
        engine()
    assert caught.value.reason is FailureReason.never_ready


def test_without_docker_the_fix_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "Docker is not installed; fix: sudo apt-get install" in engine_problem(ConnectionRefusedError("refused"))


def test_no_permission_names_the_group() -> None:
    assert "usermod -aG docker" in engine_problem(PermissionError(13, "Permission denied"))


def test_no_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(DesktopError, match=r"pip install 'osworld-gym\[container\]'"):
        engine()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (requests.exceptions.ReadTimeout(), FailureReason.hung),
        (docker.errors.APIError("no", explanation="no space left"), FailureReason.died),
        (requests.exceptions.ConnectionError(), FailureReason.died),
    ],
)
def test_the_engines_refusals_are_typed(error: Exception, reason: FailureReason) -> None:
    with pytest.raises(DesktopError, match="starting") as caught, engine_errors(FailureReason.died, "starting"):
        raise error
    assert caught.value.reason is reason


@pytest.mark.parametrize("size", [(63, 720), (1280, 8193)])
def test_a_screen_that_cannot_be_is_refused_before_the_engine_is_asked(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="64 to 8192"):
        ContainerDesktop(*size)


def test_options_of_the_container() -> None:
    told = create_options("2g", "96m", "128m", 1.5, 99, "none")
    assert (told["mem_limit"], told["memswap_limit"], told["nano_cpus"]) == ("2g", "2g", 1_500_000_000)
    assert (told["pids_limit"], told["shm_size"], told["network_mode"]) == (99, "128m", "none")
    assert told["cap_drop"] == ["ALL"]
    assert told["security_opt"] == ["no-new-privileges"]
    assert told["read_only"]
    assert told["auto_remove"]
    assert told["log_config"]["type"] == "none"
    assert {path for path, options in told["tmpfs"].items() if "size=96m" in options} == {
        "/tmp",
        "/var/tmp",
        "/home/user",
    }
    assert all("size=" in options for options in told["tmpfs"].values())
    folder = int(told["tmpfs"]["/run/osworld"].rpartition("size=")[2].removesuffix("m"))
    assert folder << 20 > 4 * LARGEST**2 + (1 << 20)  # the framebuffer of the largest screen, and logs
    assert "nano_cpus" not in create_options("2g", "96m", "128m", None, 99, "none")


# --- the pipe ---------------------------------------------------------------------------------------------------------


class Inside:
    """The container's end of an attached stream; wraps its output in the engine's frames."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire, self.reader = wire, wire.makefile("rb")

    def write(self, data: bytes, kind: int = 1) -> None:
        self.wire.sendall(struct.pack(">BxxxI", kind, len(data)) + data)

    def serve(self, answer: bytes) -> dict[str, Any]:
        order = json.loads(self.reader.readline())
        self.write(b"a warning\n", kind=2)
        self.write(answer[:5])  # frames may end at any byte
        self.write(answer[5:])
        return order


@pytest.fixture
def ends() -> Any:
    ours, theirs = socket.socketpair()
    pipe = ContainerPipe(ours, (5000,))
    inside = Inside(theirs)
    yield pipe, inside
    pipe.close()
    inside.reader.close()
    theirs.close()


def test_the_order_goes_in_and_a_port_comes_out(ends: Any) -> None:
    pipe, inside = ends
    got: dict[str, Any] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def desktop() -> None:
            got.update(inside.serve(b'{"display": 3}\n'))
            Channels(inside.reader.read, inside.write, accept).run()

        def accept(stream: Stream, _port: int) -> None:
            with socket.create_connection(server.getsockname()) as local:
                join(local, stream)

        thread = threading.Thread(target=desktop, daemon=True)
        thread.start()
        pipe.start({"seed": 7}, 60.0)
        with socket.create_connection(pipe.address(5000), 60) as near:
            far, _ = server.accept()
            with far:
                near.sendall(b"ping")
                assert far.recv(4) == b"ping"
                far.sendall(b"pong")
                assert near.recv(4) == b"pong"
    assert got == {"seed": 7}  # not before: the port is forwarded after it was noted
    assert pipe.said == "a warning"
    pipe.close()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"error": "Xvfb was not ready"}\n', "Xvfb was not ready"),
        (b"Traceback\n", "not JSON"),
    ],
)
def test_a_desktop_that_fails_reports_the_reason(ends: Any, answer: bytes, said: str) -> None:
    pipe, inside = ends
    threading.Thread(target=inside.serve, args=(answer,), daemon=True).start()
    with pytest.raises(DesktopError, match=said) as caught:
        pipe.start({}, 10.0)
    assert caught.value.reason is FailureReason.never_ready


def test_a_silent_desktop_is_never_ready_and_an_exited_one_fails_at_once(ends: Any) -> None:
    pipe, inside = ends
    with pytest.raises(DesktopError, match=r"within 0\.2 s"):
        pipe.start({}, 0.2)
    inside.write(b"no such file\n", kind=2)
    inside.wire.shutdown(socket.SHUT_WR)
    with pytest.raises(DesktopError, match="no such file"):
        pipe.start({}, 10.0)


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_full_image_has_all_of_the_basic_one() -> None:
    basic, full = packages("basic"), packages("full")
    assert set(basic) < set(full)
    assert {"xvfb", "openbox", "python3-xlib"} <= set(basic)
    assert "libreoffice-calc" in full
    assert "bubblewrap" not in full
    assert len(full) == len(set(full))


def test_the_folder_holds_all_that_a_build_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        container_image, "MODULES", ("pytest-timeout",)
    )  # any pure Python package; the guest's extra may not be installed
    write_context(tmp_path / "image", "basic", "some/base:1")
    text = (tmp_path / "image" / "Dockerfile").read_text()
    assert "ARG BASE=some/base:1\n" in text
    assert f"LABEL osworld-gym.content={guest_content()}\n" in text
    assert "HEALTHCHECK" in text
    assert "USER 1000:1000" in text
    copied = {str(path.relative_to(tmp_path / "image")) for path in (tmp_path / "image").rglob("*") if path.is_file()}
    assert {"guest/main.py", "guest/container.py", "guest/server/channels.py", "python/pytest_timeout.py"} <= copied
    assert not [path for path in copied if "__pycache__" in path]
    with pytest.raises(FileExistsError, match="choose a new folder"):
        write_context(tmp_path / "image", "basic")


def test_a_changed_guest_is_another_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text("x = 1\n")
    assert guest_content(tmp_path / "a") == guest_content(tmp_path / "b")
    (tmp_path / "b" / "main.py").write_text("x = 2\n")
    assert guest_content(tmp_path / "a") != guest_content(tmp_path / "b")
    (tmp_path / "b" / "main.py").write_text("x = 1\n")
    (tmp_path / "b" / "main.py").chmod(0o755)
    assert guest_content(tmp_path / "a") != guest_content(tmp_path / "b")


def test_a_missing_module_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_image, "MODULES", ("no-such-distribution",))
    with pytest.raises(FileNotFoundError, match=r"pip install 'osworld-gym\[guest\]'"):
        write_context(tmp_path / "image", "basic")


@pytest.mark.parametrize(
    ("text", "mirrors"),
    [
        ("deb http://a/debian bookworm main\ndeb http://b/debian-security x main\n", ("http://a/debian", "http://b/debian-security")),
        ("Types: deb\nURIs: http://a/debian/\nSuites: bookworm\n", ("http://a/debian", None)),
        ("# deb http://a/debian bookworm main\ndeb [arch=amd64] https://else/repo x main\n", (None, None)),
        ("", (None, None)),
    ],
)  # fmt: skip
def test_mirrors_of_this_machine(text: str, mirrors: tuple[str | None, str | None]) -> None:
    assert host_mirrors(text) == mirrors


def test_another_distributions_mirrors_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a/debian bookworm main\n")
    release = tmp_path / "os-release"
    release.write_text("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n")
    assert sources(tmp_path, release) == ""
    release.write_text('PRETTY_NAME="Debian"\nID=debian\n')
    assert "http://a/debian" in sources(tmp_path, release)


def test_a_builds_error_is_reported() -> None:
    said: list[str] = []
    with pytest.raises(DesktopError, match="the build failed: no such package"):
        follow([{"stream": "Step 1\n"}, {"stream": "\n"}, {"error": "no such package"}], said.append)
    assert said == ["Step 1"]


def test_debootstrap_requires_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(container_build.shutil, "which", lambda _name: "/usr/sbin/debootstrap")
    with pytest.raises(DesktopError, match="sudo osworld-gym build-image"):
        container_build.bootstrap(None, "http://a/debian", lambda _line: None)  # type: ignore[arg-type]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_doctor_names_the_fix_of_each_provider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    for provider in ("container", "vm"):
        assert cli.main(["doctor", "--provider", provider]) == 3
        said = capsys.readouterr().out.splitlines()[-1]
        problem = "no Docker engine answers at DOCKER_HOST=unix:///nowhere/docker.sock; fix: start it there"
        assert said.startswith(f"{provider:10} does not work here: never_ready: {problem}")


def test_build_image_without_an_engine_is_status_3_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert cli.main(["build-image"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_the_dockerfile_is_written_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr(container_image, "MODULES", ("pytest-timeout",))
    assert cli.main(["build-image", "--dockerfile", str(tmp_path / "image")]) == 0
    assert f"docker build --tag osworld-gym/desktop:basic {tmp_path / 'image'}" in capsys.readouterr().out
    assert (tmp_path / "image" / "Dockerfile").read_text().count("FROM $BASE") == 1
