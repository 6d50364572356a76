"""The identity of desktops: found where there is one, the same for the same files, not known otherwise."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osworld_gym.desktops import identity
from osworld_gym.desktops.home_template.find import Template
from osworld_gym.desktops.identity import NOT_KNOWN, desktop_identity, file_sha256
from osworld_gym.errors import DesktopError, FailureReason


def test_the_home_template_and_the_applications_of_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(identity, "packages", lambda: {"gimp": "2.10", "vlc": "3.0"})
    monkeypatch.setattr(identity, "find_template", lambda: Template(tmp_path, "abc"))
    assert desktop_identity("local", {}) == "home template abc, gimp 2.10, vlc 3.0"
    assert desktop_identity("local", {"template": None}) == "bare HOME, gimp 2.10, vlc 3.0"
    assert desktop_identity("local", {"isolated": False}) == "bare HOME, gimp 2.10, vlc 3.0"
    monkeypatch.setattr(identity, "find_template", lambda: None)
    assert desktop_identity("local", {}) == "bare HOME, gimp 2.10, vlc 3.0"


def test_another_template_is_known_by_its_manifest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(identity, "packages", dict)
    home = tmp_path / "home"
    home.mkdir()
    assert desktop_identity("local", {"template": str(home)}) == NOT_KNOWN
    (tmp_path / "manifest.json").write_text("{}")
    expected = hashlib.sha256(b"{}").hexdigest()[:16]
    assert desktop_identity("local", {"template": str(home)}) == f"home template {expected}"


class Engine:
    """A Docker engine that has one image."""

    api = SimpleNamespace(inspect_image=lambda name: {"Id": f"sha256:of-{name}"})
    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_images_id_of_container(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr("osworld_gym.desktops.container.engine.engine", lambda: engine)
    monkeypatch.setattr("osworld_gym.desktops.container.desktop.find_image", lambda _client, name: name or "own:full")
    assert desktop_identity("container", {}) == "image own:full sha256:of-own:full"
    assert desktop_identity("container", {"image": "x"}) == "image x sha256:of-x"
    assert engine.closed


def test_the_disk_and_the_image_of_vm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path / "own"))
    monkeypatch.setattr("osworld_gym.desktops.container.engine.engine", Engine)
    disk = tmp_path / "Ubuntu.qcow2"
    disk.write_bytes(b"QFI")
    expected = f"disk sha256 {hashlib.sha256(b'QFI').hexdigest()}, image x sha256:of-x"
    assert desktop_identity("vm", {"disk": str(disk), "image": "x"}) == expected
    assert desktop_identity("vm", {"disk": str(tmp_path / "none"), "image": "x"}) == NOT_KNOWN


def test_what_cannot_be_found_out_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def down() -> Any:
        raise DesktopError(FailureReason.never_ready, "no engine")

    monkeypatch.setattr("osworld_gym.desktops.container.engine.engine", down)
    assert desktop_identity("container", {}) == NOT_KNOWN
    assert desktop_identity("remote", {}) == NOT_KNOWN
    assert desktop_identity("of_an_extension", {}) == NOT_KNOWN
    assert desktop_identity("sim", {}).startswith("simulated by osworld-gym ")


def test_a_disk_is_read_again_only_if_it_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path / "own"))
    read = []
    whole = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: read.append(kind) or whole(file, kind))
    disk = tmp_path / "disk"
    disk.write_bytes(b"one")
    assert file_sha256(disk) == file_sha256(disk) == hashlib.sha256(b"one").hexdigest()
    assert len(read) == 1
    disk.write_bytes(b"other")
    assert file_sha256(disk) == hashlib.sha256(b"other").hexdigest()
    (kept,) = (tmp_path / "own" / "cache" / "hashes").iterdir()
    kept.write_text("torn")
    assert file_sha256(disk) == hashlib.sha256(b"other").hexdigest()
    assert len(read) == 3
