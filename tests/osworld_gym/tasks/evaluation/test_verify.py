"""The verifier on a desktop that is a dictionary of files: func lists, conj, missing files, FAIL, errors."""

import odd_metrics
import pytest
from file_desktop import FileDesktop

from osworld_gym.errors import DesktopError, FailureReason, StepRefused, TaskError
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators, OfficialLocation
from osworld_gym.tasks.evaluation.osworld import CHOICES
from osworld_gym.tasks.evaluation.osworld.metrics import archives
from osworld_gym.tasks.evaluation.score import Evaluators, is_official
from osworld_gym.tasks.evaluation.verify import read_evaluator, verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import TaskRun, prepare
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason


def task(**evaluator) -> Task:
    return Task(id="t", instruction="i", evaluator=evaluator)


def file(path: str) -> dict:
    return {"type": "vm_file", "path": path, "dest": "x"}


def rules(**values) -> dict:
    return {"type": "rule", "rules": values}


A_IS_1 = {"func": "file_contains", "result": file("/a"), "expected": rules(expected=["1"])}


def score(desktop, stop=StopReason.finished, **evaluator) -> float:
    return verify(task(**evaluator), desktop, stop=stop).score


def test_one_metric():
    assert score(FileDesktop({"/a": b"1"}), **A_IS_1) == 1.0
    assert score(FileDesktop({"/a": b"2"}), **A_IS_1) == 0.0
    assert score(FileDesktop(), **A_IS_1) == 0.0


@pytest.mark.parametrize("stop", [StopReason.max_steps, StopReason.parse_error, StopReason.context_full])
def test_how_it_stopped_does_not_matter_except_for_fail(stop):
    assert score(FileDesktop({"/a": b"1"}), stop=stop, **A_IS_1) == 1.0


def test_fail_is_right_only_on_an_infeasible_task():
    assert score(FileDesktop({"/a": b"1"}), stop=StopReason.call_user, **A_IS_1) == 0.0
    assert score(FileDesktop(), stop=StopReason.call_user, func="infeasible") == 1.0
    for stop in (StopReason.finished, StopReason.max_steps, StopReason.parse_error, StopReason.context_full):
        assert score(FileDesktop(), stop=stop, func="infeasible") == 0.0


def both(conj=None) -> dict:
    out = {
        "func": ["file_contains", "diff_text_file"],
        "result": [file("/a"), file("/b")],
        "expected": [rules(expected=["1"]), file("/gold")],
    }
    return out if conj is None else out | {"conj": conj}


def test_and_is_the_mean_and_zero_ends_it():
    files = {"/a": b"1", "/b": b"x\ny", "/gold": b"x\nz"}  # the diff is 2*1/(2+2)
    assert score(FileDesktop(files), **both()) == pytest.approx((1 + 0.5) / 2)
    assert score(FileDesktop(files | {"/a": b"0"}), **both("and")) == 0.0
    assert score(FileDesktop({"/a": b"1", "/gold": b"x"}), **both("and")) == 0.0  # /b is missing


def test_or_is_the_best():
    files = {"/a": b"0", "/b": b"x\ny", "/gold": b"x\nz"}
    assert score(FileDesktop(files), **both("or")) == pytest.approx(0.5)
    assert score(FileDesktop(files | {"/a": b"1"}), **both("or")) == 1.0
    assert score(FileDesktop({"/b": b"x", "/gold": b"x"}), **both("or")) == 1.0  # /a is missing: its metric scores 0


def test_options_and_metrics_without_expected():
    evaluator = {"func": "compare_text_file", "result": file("/a"), "expected": file("/b")}
    desktop = FileDesktop({"/a": b"X", "/b": b"x"})
    assert score(desktop, **evaluator) == 0.0
    assert score(desktop, **evaluator, options={"ignore_case": True}) == 1.0


def test_command_getters():
    desktop = FileDesktop(commands={"ls": "out"})
    line = {"type": "vm_command_line", "command": "ls"}
    assert score(desktop, func="exact_match", result=line, expected=rules(expected="out")) == 1.0
    error = {"type": "vm_command_error", "command": "ls", "shell": True}
    assert score(desktop, func="exact_match", result=error, expected=rules(expected="err:True")) == 1.0
    size = {"type": "vm_screen_size"}
    assert score(desktop, func="exact_match", result=size, expected=rules(expected={"width": 640, "height": 480})) == 1


def test_several_files_of_one_getter():
    several = {"type": "vm_file", "path": ["/a", "/b"], "dest": ["a", "b"], "multi": True}
    desktop = FileDesktop({"/b": b"1"})
    wanted = rules(expected=["1"])
    assert score(desktop, func="file_contains", result=several | {"gives": [1]}, expected=wanted) == 1.0
    assert score(desktop, func="file_contains", result=several, expected=wanted) == 0.0  # gives [0]: missing


def test_several_files_are_in_the_order_of_their_paths(tmp_path):
    files = FileCache(tmp_path, offline=True, also=())
    (tmp_path / "t").mkdir()
    names = ["a", "b"]
    for name in names:
        (tmp_path / "t" / name).write_bytes(b"gold " + name.encode())
    common = {"multi": True, "dest": names, "gives": [1, 0]}
    result = {"type": "vm_file", "path": ["/a", "/b"], **common}
    gold = {"type": "cloud_file", "path": ["https://hub/a", "https://hub/b"], **common}
    run = TaskRun(task(func="exact_match", result=result), FileDesktop({"/a": b"1"}), files, {})
    assert GETTERS["vm_file"](run, result) == [b"1", None]
    assert GETTERS["cloud_file"](run, gold) == [b"gold a", b"gold b"]


def test_postconfig_runs_before_the_getters():
    desktop = FileDesktop()
    save = {"type": "write_file", "parameters": {"path": "/a", "content": "1"}}
    assert score(desktop, **A_IS_1, postconfig=[save]) == 1.0
    assert desktop.steps == ["write_file"]


class Missing(FileDesktop):
    """Its steps ``open`` fail: the file is not there, or nobody knows why."""

    def setup(self, step):
        super().setup(step)
        if step["type"] == "open":
            kind = StepRefused if step["parameters"]["path"] == "/gone" else DesktopError
            raise kind(FailureReason.setup_failed, "open: planned")


def test_a_step_of_postconfig_whose_file_the_policy_removed_is_left_out(caplog):
    save = {"type": "write_file", "parameters": {"path": "/a", "content": "1"}}
    gone, unknown = ({"type": "open", "parameters": {"path": path}} for path in ("/gone", "/other"))
    desktop = Missing()
    assert score(desktop, **A_IS_1, postconfig=[gone, save]) == 1.0
    assert desktop.steps == ["open", "write_file"]
    assert "task t: a step of postconfig is left out: open: planned" in caplog.text
    with pytest.raises(DesktopError, match="open: planned") as caught:
        score(Missing(), **A_IS_1, postconfig=[unknown, save])
    assert caught.value.reason is FailureReason.setup_failed
    with pytest.raises(StepRefused):  # before an episode nothing is left out
        prepare(Task("t", "i", (gone,)), Missing())


def test_rules_that_do_not_fit_the_metric_are_the_evaluators_failure():
    with pytest.raises(DesktopError, match=r"metric 'file_contains': RuleError: .*lack the key 'expected'") as caught:
        score(FileDesktop({"/a": b"["}), func="file_contains", result=file("/a"), expected=rules(expect=[]))
    assert caught.value.reason is FailureReason.evaluator_failed


def test_a_getter_that_raises_is_the_evaluators_failure():
    desktop = FileDesktop(commands={"ls": OSError("torn")})
    with pytest.raises(DesktopError, match="OSError: torn") as caught:
        score(desktop, func="exact_match", result={"type": "vm_command_line", "command": "ls"}, expected=rules())
    assert caught.value.reason is FailureReason.evaluator_failed


def test_a_folder_in_place_of_the_file_scores_zero():
    class Folder(FileDesktop):
        def read_file(self, path):
            raise IsADirectoryError(path)

    assert score(Folder(), **A_IS_1) == 0.0


def test_a_result_that_is_none_scores_zero():
    window = {"func": "is_vlc_fullscreen", "result": {"type": "profile_name"}, "expected": {"type": "vm_screen_size"}}
    assert score(FileDesktop(), **window) == 0.0


def test_an_evaluator_that_takes_too_long_is_its_failure(monkeypatch):
    monkeypatch.setitem(METRICS, "sleeps", odd_metrics.sleeps)
    evaluator = A_IS_1 | {"func": "sleeps"}
    with pytest.raises(DesktopError, match=r"took longer than 0.2 s") as caught:
        verify(
            task(**evaluator), FileDesktop({"/a": b""}), stop=StopReason.finished, evaluators=Evaluators(deadline=0.2)
        )
    assert caught.value.reason is FailureReason.evaluator_failed


def test_output_that_postconfig_stored():
    desktop = FileDesktop(commands={"ls": "a.txt\n"})
    keep = {"type": "command", "parameters": {"command": "ls", "stdout": "ls.out"}}
    listed = {"func": "check_list", "expected": rules(expect=["a.txt"])}
    assert score(desktop, **listed, result={"type": "cache_file", "path": "ls.out"}, postconfig=[keep]) == 1.0
    with pytest.raises(TaskError, match=r"getter 'cache_file': postconfig stored no 'other', only ls.out"):
        score(desktop, **listed, result={"type": "cache_file", "path": "other"}, postconfig=[keep])


def test_gold_files_come_from_the_cache(tmp_path):
    files = FileCache(tmp_path, offline=True, also=())
    (tmp_path / "t").mkdir()
    for name in ("gold", "gold2"):
        (tmp_path / "t" / name).write_bytes(name.encode())
    gold = {"type": "cloud_file", "path": "https://hub/x", "dest": "gold"}
    several = {
        "type": "cloud_file",
        "path": ["https://hub/x", "https://hub/y"],
        "dest": ["gold", "gold2"],
        "multi": True,
    }

    def of(expected, func="compare_text_file") -> float:
        one = task(func=func, result=file("/a"), expected=expected)
        return verify(one, FileDesktop({"/a": b"gold"}), stop=StopReason.finished, files=files).score

    assert of(gold) == 1.0
    assert of(several) == 1.0  # gives the first
    assert of(several | {"gives": [1]}) == 0.0
    assert of(several | {"gives": [0, 1]}, "compare_csv") == 1.0
    with pytest.raises(TaskError, match=r"task 't' requires https://hub/z"):
        of(gold | {"path": "https://hub/z", "dest": "gold3"})


def test_an_expected_value_that_is_missing_or_not_taken_is_a_task_error():
    """Not the evaluator's failure, which masks the episode and repeats it for ever."""
    for evaluator, says in (
        ({"func": "file_contains"}, r"our file_contains cannot be called without .*expected.*: missing .*'rules'"),
        ({"func": "check_left_panel", "expected": rules()}, r"with evaluator.expected: .*positional"),
    ):
        (check,) = read_evaluator(task(result=file("/a"), **evaluator))[1]
        with pytest.raises(TaskError, match=says):
            is_official("t", check, Evaluators("ours"))


def test_options_that_our_metric_lacks_are_osworlds_evaluators():
    """As in two tasks of OSWorld: YAML for ``check_json``, PDF files for ``compare_archive``."""
    for func, options, says in (
        ("check_json", {"is_yaml": True}, "our check_json got an unexpected keyword argument 'is_yaml'"),
        (
            "compare_archive",
            {"file_type": "pdf"},
            "has file_type text, docx, image, csv, not 'pdf'",
        ),
    ):
        (check,) = read_evaluator(task(func=func, result=file("/a"), expected=rules(), options=options))[1]
        assert says in check.unknown_to_us()
        with pytest.raises(TaskError, match=says):
            is_official("t", check, Evaluators("ours"))
    for options in ({}, {"file_type": "csv", "file_path": "b"}):
        compare = task(func="compare_archive", result=file("/a"), expected=file("/b"), options=options)
        (check,) = read_evaluator(compare)[1]
        assert check.unknown_to_us() == ""
    assert tuple(archives._BY_TYPE) == CHOICES["compare_archive"]["file_type"]


def test_osworlds_evaluators_are_asked_for_and_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path))
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    for backend, func in (("official", "file_contains"), ("auto", "compare_table")):
        one = task(**(A_IS_1 | {"func": func}))
        with pytest.raises(TaskError, match=r"OSWorld's evaluators are not installed; fix: .*install-official"):
            verify(one, FileDesktop(), stop=StopReason.finished, evaluators=Evaluators(backend))
    with pytest.raises(TaskError, match=r"unknown metric 'compare_table' .*\(one of your own .*\); known: check_auto"):
        verify(one, FileDesktop(), stop=StopReason.finished, evaluators=Evaluators("ours"))
    with pytest.raises(ValueError, match="must be one of auto, ours, official, got 'theirs'"):
        Evaluators("theirs")


def test_an_unknown_metric_is_not_taken_for_one_of_osworlds(tmp_path):
    """A module that was not imported, on a desktop without a server, while OSWorld's evaluators are installed."""
    pool = OfficialEvaluators(OfficialLocation(tmp_path, "python"))
    said = r"names unknown metric 'level' .*\(one of your own is known with --import MODULE.*evaluators require a guest"
    with pytest.raises(TaskError, match=said):
        verify(
            task(**(A_IS_1 | {"func": "level"})),
            FileDesktop({"/a": b"1"}),
            stop=StopReason.finished,
            evaluators=Evaluators(official=pool),
        )


def test_an_exited_desktop_keeps_its_reason():
    desktop = FileDesktop(commands={"ls": DesktopError(FailureReason.hung, "late")})
    with pytest.raises(DesktopError) as caught:
        score(desktop, func="exact_match", result={"type": "vm_command_line", "command": "ls"}, expected=rules())
    assert caught.value.reason is FailureReason.hung


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"func": "compare_dreams"},
            r"unknown metric 'compare_dreams' .*\(one of your own .*--import .*\); known: .*exact_",
        ),
        ({"func": ["infeasible"], "result": [file("/a")], "expected": None}, r"'infeasible' must be the only metric"),
        ({"result": {"type": "dream"}}, r"unknown getter 'dream' .*\(one of your own .*\); known: .*vm_file"),
        ({"func": "exact_mach"}, r"unknown metric 'exact_mach' \(did you mean 'exact_match'\?\)"),
        ({"result": {"type": "vm_fiel"}}, r"unknown getter 'vm_fiel' \(did you mean 'vm_file'\?\)"),
        ({"expected": {"type": "cloud"}}, r"evaluator.expected names unknown getter 'cloud'"),
        ({"func": []}, r"evaluator.func must be the name of a metric, or a list of at least one"),
        ({"func": ["exact_match"]}, r"evaluator.result must be a list of 1"),
        ({"conj": "xor"}, r"conj must be 'and' or 'or', got 'xor'"),
        ({"result": {"type": "vm_file"}}, r"getter 'vm_file': key 'path' is missing"),
    ],
)
def test_a_wrong_evaluator_is_a_task_error(change, message, monkeypatch, tmp_path):
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path))  # no evaluators of OSWorld
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    with pytest.raises(TaskError, match=message):
        score(FileDesktop(), **(A_IS_1 | change))
