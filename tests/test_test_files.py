"""scripts/test_files.py: a file that ends its process hides no other file's outcome."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.test_files import TESTS, main, marked_files, outcome, pytest_options, run_files

FILES = {
    "passes": "def test_it(): pass",
    "fails": "def test_it(): assert False",
    "crashes": "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGSEGV)",
    "elsewhere": "import pytest\n@pytest.mark.slow\ndef test_it(): pass",
}


def test_a_marker_is_a_whole_word(tmp_path: Path) -> None:
    texts = {"a": "@pytest.mark.ray", "b": "@pytest.mark.raylet", "c": "mark ray", "d": "[pytest.mark.ray, other]"}
    for name, text in texts.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    assert [path.stem for path in marked_files("ray", tmp_path)] == ["test_a", "test_d"]


def test_an_exit_status_in_words() -> None:
    assert [outcome(status) for status in (0, 1, 5, -11)] == [
        *("passed", "failed (exit status 1)", "no tests", "ended by SIGSEGV"),
    ]


def test_nightly_tests_are_selected_alone_or_not_at_all() -> None:
    assert pytest_options("ray", ["--timeout", "5"]) == ["-m", "ray and not nightly", "--timeout", "5"]
    assert pytest_options("ray", ["--nightly", "--timeout", "5"]) == ["-m", "ray and nightly", "--timeout", "5"]


def test_files_for_which_there_is_no_time_are_named_and_fail_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTS_START_BEFORE", "1000000000")  # in 2001
    files = marked_files("ray")
    assert main(["ray", "--timeout", "600"]) == 0
    *named, last = capsys.readouterr().out.splitlines()
    assert sorted(named) == sorted(f"not run: {path.name}" for path in files)
    assert last == f"0 of {len(files)} files passed, {len(files)} not run"


def run_inner(folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on one file with the project's conftest.py."""
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_inner.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(TESTS.parent / "pyproject.toml"),
    ]
    return subprocess.run(
        [*command, "--rootdir", str(folder), "-m", "", str(folder)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_tests_for_which_there_is_no_time_are_skipped_and_counted(tmp_path: Path) -> None:
    ended = run_inner(tmp_path, "def test_it(): assert False", TESTS_START_BEFORE="1000000000")
    assert ended.returncode == 0, ended.stdout
    assert "not run: 1 tests" in ended.stdout.splitlines()


def test_a_tier_that_the_makefile_would_not_find_is_an_error(tmp_path: Path) -> None:
    ended = run_inner(tmp_path, "import pytest\npytestmark = getattr(pytest.mark, 'slow')\ndef test_it(): pass")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR, ended.stdout
    assert "fix: write mark.slow in the file" in ended.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_every_file_has_its_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTS_START_BEFORE", raising=False)  # it may pass meanwhile
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: minutes\n")
    paths = []
    for name, text in FILES.items():
        paths.append(tmp_path / f"test_{name}.py")
        paths[-1].write_text(text)
    found = run_files(paths, ["-q", "-m", "not slow", "-p", "no:randomly", "-p", "no:cacheprovider"])
    assert {path.stem: said for path, said in found.items()} == {
        "test_passes": "passed",
        "test_fails": "failed (exit status 1)",
        "test_crashes": "ended by SIGSEGV",
        "test_elsewhere": "no tests",
    }
