"""What a policy may leave behind to harm the trainer scores 0, and this process stays as it was."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import hostile_files as hostile
import odd_metrics
import psutil
import pytest
from file_desktop import FileDesktop
from metric_cases import PICTURE, docx, p, packed

from osworld_gym.errors import DesktopError, FailureReason, ReplyTooLarge, TaskError
from osworld_gym.tasks.evaluation import own_pool
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.own_pool import OwnEvaluators
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.evaluation.sidecar import process
from osworld_gym.tasks.evaluation.sidecar.calling import Exhausted, Limits, check_file
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason, Verdict

FLAT = 64 << 20  # bytes: what this process may grow by; the large files unpack to 300 MiB
SMALL = Limits(cpu=1, memory=256 << 20)
FILE = {"type": "vm_file", "path": "/a", "dest": "a"}
COOKIES = "/home/user/.config/google-chrome/Default/Cookies"
NOTHING = {"func": "compare_archive", "result": FILE, "expected": {"type": "rule", "rules": None}}


def gold(data: bytes) -> dict:
    return {"type": "cloud_file", "path": "https://hub/gold", "dest": "gold", "data": data}


def rules(**values) -> dict:
    return {"type": "rule", "rules": values}


def judged(tmp_path: Path, files, *, limits: Limits | None = None, deadline: float = 60.0, **evaluator) -> Verdict:
    """The verdict on a desktop with these files; an expected gold file is put into the cache first."""
    (tmp_path / "t").mkdir(exist_ok=True)
    (tmp_path / "t" / "gold").write_bytes((evaluator.get("expected") or {}).pop("data", b""))
    evaluators = Evaluators(deadline=deadline, limits=limits or Limits())
    task = Task(id="t", instruction="i", evaluator=evaluator)
    cache = FileCache(tmp_path, offline=True, also=())
    desktop = files if isinstance(files, FileDesktop) else FileDesktop(files)
    return verify(task, desktop, stop=StopReason.finished, evaluators=evaluators, files=cache)


class Peak:
    """The growth of this process's memory at its highest, in bytes, since it was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._high()

    def _high(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    def __call__(self) -> int:
        return self._high() - self._before


ARCHIVE = {"func": "compare_archive", "expected": gold(packed({"a": "1"}))}
LETTER = {"func": "compare_docx_files", "expected": gold(docx(p("a")))}
BOOK = {"func": "check_sheet", "expected": rules(cells={"A1": 1})}
IMAGE = {"func": "compare_images", "expected": gold(PICTURE)}
SAVING = {"func": "check_auto_saving_time", "expected": rules(minutes=3)}
JSON = {"func": "check_json", "expected": rules(expect=[{"key": ["a"], "method": "eq", "ref": 1}])}
TABLE = {"func": "check_csv", "expected": rules(expect=[{"a": "x"}])}
REGEX = {"func": "check_list", "expected": rules(expect=["^(a+)+$"])}
#: name → (file, evaluator, limits, part of the verdict's problem if the result counts as exhausting)
HOSTILE = {
    "zip bomb": (lambda: hostile.zip_bomb("a"), ARCHIVE, None, "unpacks to more than"),
    "tar bomb": (hostile.tar_bomb, ARCHIVE, None, "unpacks to more than"),
    "docx bomb": (lambda: hostile.zip_bomb("word/document.xml"), LETTER, None, "unpacks to more than"),
    "xlsx bomb": (lambda: hostile.zip_bomb("xl/workbook.xml"), BOOK, None, "unpacks to more than"),
    "directory that lies": (lambda: hostile.lying_zip("word/document.xml"), LETTER, None, ""),
    "bomb in an archive": (lambda: packed({"a": hostile.zip_bomb("b")}), ARCHIVE, None, "unpacks to more than"),
    "archives in each other": (lambda: hostile.nested(b"x", 6), ARCHIVE, None, "archives are inside each other"),
    "many files": (lambda: hostile.many_files(10_001), ARCHIVE, None, "more than 10000 files"),
    "rows": (lambda: b"a\n" + b"b\n" * 2_000_000, TABLE, None, "lines"),
    "pixels": (lambda: hostile.png_header(60_000, 60_000), IMAGE, None, "pixels"),
    "pixels below Pillow's limit": (lambda: hostile.png_header(10_000, 10_000), IMAGE, None, "10000 x 10000"),
    "billion laughs": (lambda: hostile.billion_laughs("items").encode(), SAVING, None, "declares entities"),
    "styles": (lambda: hostile.many_styles(1_000_000), BOOK, None, "cell formats"),
    "cells": (lambda: hostile.repeated_cells(9_999), BOOK, None, "cells"),
    "deep JSON": (lambda: b"[" * 1_000_000, JSON, None, ""),
    "deep XML": (lambda: b"<a>" * 1_000_000 + b"</a>" * 1_000_000, SAVING, None, ""),
    "regex": (lambda: b"a" * 64 + b"b", REGEX, SMALL, "CPU time"),
    "large JSON": (lambda: b"[" + b"{}," * 4_000_000 + b"0]", JSON, SMALL, "memory"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_scores_zero_and_costs_this_process_nothing(tmp_path, name):
    make, evaluator, limits, says = HOSTILE[name]
    data = make()
    judged(tmp_path, {"/a": b"x"}, **{**evaluator, "result": FILE})  # a process is running
    threads, peak = threading.active_count(), Peak()
    found = judged(tmp_path, {"/a": data}, **{**evaluator, "result": FILE}, limits=limits)
    assert (found.score, found.exhausted) == (0.0, bool(says))
    assert says in found.problem
    assert peak() < FLAT
    assert threading.active_count() == threads


def test_what_a_getter_parses_has_limits_too(tmp_path):
    evaluator = {"func": "is_cookie_deleted", "result": {"type": "cookie_data"}}
    evaluator["expected"] = rules(type="domains", domains=["a.org"])
    store = hostile.endless_cookies(tmp_path)
    peak = Peak()
    found = judged(tmp_path, {COOKIES: store}, **evaluator, limits=Limits(cpu=5, memory=256 << 20))
    assert (found.score, found.exhausted) == (0.0, True)
    assert peak() < FLAT


def test_a_file_that_is_too_large_to_be_read_scores_zero(tmp_path):
    class Large(FileDesktop):
        def read_file(self, path):  # noqa: ARG002
            raise ReplyTooLarge(FailureReason.died, "too large")

    for extra in ({"result": FILE}, {"result": FILE, "expected": FILE}):
        found = judged(tmp_path, Large(), **{**TABLE, **extra})
        assert (found.score, found.exhausted) == (0.0, True)


def test_output_that_is_too_large_to_be_kept_scores_zero(tmp_path):
    keep = {"type": "command", "parameters": {"command": "cat", "stdout": "out"}}
    desktop = FileDesktop(commands={"cat": ReplyTooLarge(FailureReason.died, "too large")})
    found = judged(tmp_path, desktop, **TABLE, result={"type": "cache_file", "path": "out"}, postconfig=[keep])
    assert (found.score, found.exhausted, found.problem[:10]) == (0.0, True, "postconfig")


def test_the_limits_of_a_file():
    limits = Limits(unpacked=1000, members=3, nesting=2, pixels=1200)
    for fine in (b"", b"text", packed({"a": "1" * 1000}), packed({"a": packed({"b": "1"})}), PICTURE):
        check_file(fine, limits)
    for data, says in (
        (packed({"a": "1" * 1001}), "more than 1000 bytes"),
        (packed({"a": "1" * 600, "b": "1" * 600}), "more than 1000 bytes"),
        (packed({"a": packed({"b": "1" * 700}), "c": "1" * 300}), "more than 1000 bytes"),
        (packed({"a": "1" * 1001}, "tar"), "more than 1000 bytes"),
        (hostile.many_files(4), "more than 3 files"),
        (hostile.nested(b"x", 3), "more than 2 archives"),
        (hostile.png_header(40, 31), "40 x 31 pixels"),
        (packed({"a": hostile.png_header(40, 31)}), "40 x 31 pixels"),
    ):
        with pytest.raises(Exhausted, match=says):
            check_file(data, limits)
    with pytest.raises(ValueError, match=r"Limits.cpu: expected more than 0, got 0"):
        Limits(cpu=0)


# --- the process that evaluates ---------------------------------------------------------------------------------------


@pytest.fixture
def pool(monkeypatch):
    evaluators = OwnEvaluators(size=1)
    monkeypatch.setattr(own_pool, "_shared", [evaluators])
    yield evaluators
    evaluators.close()


def odd(monkeypatch, metric) -> dict:
    monkeypatch.setitem(METRICS, metric.__name__, metric)
    return {"func": metric.__name__, "result": FILE}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("metric", "says"),
    [(odd_metrics.computes, "CPU time"), (odd_metrics.allocates, "memory"), (odd_metrics.crashes, "SIGSEGV")],
)
def test_what_exhausts_the_process_is_the_policys(tmp_path, monkeypatch, metric, says):
    found = judged(tmp_path, {"/a": b"x"}, **odd(monkeypatch, metric), limits=SMALL)
    assert (found.score, found.exhausted) == (0.0, True)
    assert says in found.problem
    assert judged(tmp_path, {"/a": b"1"}, func="file_contains", result=FILE, expected=rules(expected=["1"])).success


@pytest.mark.usefixtures("pool")
def test_working_until_the_deadline_is_the_policys_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "BUSY", 0.01)  # this machine's load decides how much it works until then
    before, threads = children(), threading.active_count()
    evaluator = odd(monkeypatch, odd_metrics.starts_a_program_and_computes)
    start = time.monotonic()
    found = judged(tmp_path, {"/a": b"x"}, **evaluator, deadline=2.0)
    assert (found.score, found.exhausted) == (0.0, True)
    assert "worked on it for more than 2 s" in found.problem
    assert time.monotonic() - start < 60
    assert threading.active_count() == threads
    psutil.wait_procs([psutil.Process(pid) for pid in children() - before if psutil.pid_exists(pid)], timeout=5)
    assert children() <= before


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("metric", [odd_metrics.sleeps, odd_metrics.is_killed])
def test_what_happens_to_the_process_is_this_machines(tmp_path, monkeypatch, metric):
    with pytest.raises(DesktopError) as caught:
        judged(tmp_path, {"/a": b"x"}, **odd(monkeypatch, metric), deadline=1.0)
    assert caught.value.reason is FailureReason.evaluator_failed
    assert judged(tmp_path, {"/a": b"1"}, func="file_contains", result=FILE, expected=rules(expected=["1"])).success


@pytest.mark.usefixtures("pool")
def test_a_process_that_does_not_start_is_this_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(own_pool, "MODULE", "no_such_module")
    with pytest.raises(DesktopError, match="process exited") as caught:
        judged(tmp_path, {"/a": b"x"}, **{**TABLE, "result": FILE})
    assert caught.value.reason is FailureReason.evaluator_failed


@pytest.mark.usefixtures("pool")
def test_one_process_serves_many_checks_and_an_idle_one_that_died_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setitem(GETTERS, "pid", odd_metrics.pid)
    monkeypatch.setitem(METRICS, "records", odd_metrics.records)
    place = tmp_path / "pids"
    for _ in range(3):
        judged(tmp_path, {}, func="records", result={"type": "pid"}, expected=rules(path=str(place)))
    first = place.read_text().split()
    assert len(set(first)) == 1
    assert int(first[0]) != os.getpid()
    psutil.Process(int(first[0])).kill()
    psutil.wait_procs([psutil.Process(int(first[0]))], timeout=10)
    judged(tmp_path, {}, func="records", result={"type": "pid"}, expected=rules(path=str(place)))
    assert place.read_text().split()[-1] != first[0]


def test_a_metric_that_another_process_cannot_import_is_a_task_error(tmp_path, monkeypatch):
    monkeypatch.setitem(METRICS, "local", lambda result: 1.0)  # noqa: ARG005
    with pytest.raises(TaskError, match=r"'local' is test_limits:.*<lambda>, which another process cannot import"):
        judged(tmp_path, {"/a": b"x"}, func="local", result=FILE)


def test_the_processes_end_with_this_one():
    code = (
        "import os, sys\nsys.path.insert(0, sys.argv[1])\n"
        "from file_desktop import FileDesktop\n"
        "from osworld_gym.tasks.evaluation.verify import verify\n"
        "from osworld_gym.tasks.task import Task\nfrom osworld_gym.types import StopReason\n"
        "import psutil\n"
        "file = {'type': 'vm_file', 'path': '/a', 'dest': 'a'}\n"
        "task = Task('t', 'i', evaluator={'func': 'compare_text_file', 'result': file, 'expected': file})\n"
        "assert verify(task, FileDesktop({'/a': b'1'}), stop=StopReason.finished).success\n"
        "print(*[child.pid for child in psutil.Process().children()], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    support = str(Path(odd_metrics.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, support], capture_output=True, text=True, timeout=120, check=False
    )
    (pid,) = done.stdout.split()
    psutil.wait_procs([psutil.Process(int(pid))] if psutil.pid_exists(int(pid)) else [], timeout=20)
    assert not psutil.pid_exists(int(pid)), done.stderr
