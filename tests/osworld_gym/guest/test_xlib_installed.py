"""Files of python3-xlib in place of python-xlib's are reported with the fix, and the Makefile avoids them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

FIX = "fix: pip install --force-reinstall --no-deps python-xlib"


def import_with(folder: Path, extensions: list[str], files: list[str]) -> subprocess.CompletedProcess[str]:
    """Imports the module with an Xlib whose list of extensions is ``extensions`` and which has the given modules."""
    package = folder / "Xlib" / "ext"
    package.mkdir(parents=True)
    (folder / "Xlib" / "__init__.py").touch()
    (package / "__init__.py").write_text(f"__extensions__ = {[(name.upper(), name) for name in extensions]}")
    for name in files:
        (package / f"{name}.py").touch()
    code = "from osworld_gym.guest.x11.x_resource import res; print(res.__name__)"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_python_xlib_is_accepted(tmp_path: Path) -> None:
    done = import_with(tmp_path, ["xtest", "res"], ["xtest", "res"])
    assert (done.stdout, done.stderr) == ("Xlib.ext.res\n", "")


@pytest.mark.parametrize("files", [["xtest"], ["xtest", "res"]], ids=["its files alone", "over those of python-xlib"])
def test_python3_xlib_is_an_error_with_the_fix(tmp_path: Path, files: list[str]) -> None:
    done = import_with(tmp_path, ["xtest"], files)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: expected python-xlib with the X-Resource extension, got files of python3-xlib")
    assert last.endswith(FIX)


def test_a_listed_extension_without_its_file(tmp_path: Path) -> None:
    done = import_with(tmp_path, ["xtest", "res"], ["xtest"])
    assert done.stderr.splitlines()[-1].endswith(FIX)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("uv", [[], ["UV=/path/to/uv"]], ids=["pip", "uv"])
@pytest.mark.parametrize(("extras", "last"), [("test+guest+ray", True), ("guest", True), ("test", False)])
def test_the_makefile_installs_python_xlib_last(tmp_path: Path, uv: list[str], extras: str, last: bool) -> None:
    command = ["make", "-n", f"VENV={tmp_path}", *uv, f"{tmp_path}/.installed-{extras}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True).stdout
    installs = [line for line in said.splitlines() if " pip install " in line]
    assert all(line.startswith("/path/to/uv ") for line in installs) or not uv
    end = "-c constraints.txt --force-reinstall --no-deps python-xlib"
    assert installs[-1].endswith(end) == last
    assert f'-e ".[{extras.replace("+", ",")}]"' in installs[-2 if last else -1]
