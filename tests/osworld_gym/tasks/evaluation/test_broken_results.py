"""Results broken by the policy score 0 with the reason; failures of evaluator, rules or gold files are not scored."""

import odd_metrics
import pytest
from file_desktop import FileDesktop
from metric_cases import CASES, PICTURE, docx, p

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation import osworld
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.sidecar.calling import BrokenResult, RuleError, call_metric
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason, Verdict

GARBAGE = b"\x89PNG\r\n\x1a\n\xff\xfe no picture, no archive, no XML"
#: metrics whose result is the second argument, as in OSWorld
SECOND = {"is_included_all_json_objects", "is_in_vm_clickboard"}


def verdict(files: FileCache, desktop: FileDesktop, **evaluator) -> Verdict:
    task = Task(id="t", instruction="i", evaluator=evaluator)
    return verify(task, desktop, stop=StopReason.finished, files=files)


def file(path: str) -> dict:
    return {"type": "vm_file", "path": path, "dest": "x"}


@pytest.fixture
def files(tmp_path) -> FileCache:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "gold.png").write_bytes(PICTURE)
    (tmp_path / "t" / "gold.docx").write_bytes(docx(p("a")))
    (tmp_path / "t" / "torn.png").write_bytes(GARBAGE)
    return FileCache(tmp_path, offline=True, also=())


def gold(name: str) -> dict:
    return {"type": "cloud_file", "path": f"https://hub/{name}", "dest": name}


SOLVED = {name: (arguments, options) for name, arguments, options, score in CASES if score == 1 and name not in SECOND}
#: metrics of binary formats, which score 0 for any incomplete file
PARSED = {name for module in ("pictures", "documents", "archives") for name in osworld.METRICS[module]} - {
    "check_image_file_size"
}
ON_FILES = {name: case for name, case in SOLVED.items() if isinstance(case[0][0], bytes)}


@pytest.mark.parametrize("name", ON_FILES)
@pytest.mark.parametrize("how", ["garbage", "empty", "torn"])
def test_a_broken_file_is_never_the_evaluators_failure(name, how):
    (result, *expected), options = ON_FILES[name]
    broken = {"garbage": GARBAGE, "empty": b"", "torn": result[: len(result) // 3]}[how]
    has_gold = bool(expected) and isinstance(expected[0], bytes)
    try:
        score = call_metric(METRICS[name], broken, tuple(expected), options, gold=has_gold)
    except BrokenResult:
        score = 0.0
    assert 0.0 <= score <= 1.0
    if name in PARSED:
        assert score == 0.0


def test_a_text_saved_as_a_picture_scores_zero_with_the_reason(files, caplog):
    desktop = FileDesktop({"/a.png": b"plain text"})
    found = verdict(files, desktop, func="compare_images", result=file("/a.png"), expected=gold("gold.png"))
    assert found.score == 0.0
    assert found.problem.startswith("compare_images: UnidentifiedImageError")
    assert "task 't', metric 'compare_images': the result cannot be read and is worth 0" in caplog.text


def test_a_gold_file_that_does_not_load_is_the_evaluators_failure(files):
    desktop = FileDesktop({"/a.png": PICTURE})
    with pytest.raises(DesktopError, match="UnidentifiedImageError") as caught:
        verdict(files, desktop, func="compare_images", result=file("/a.png"), expected=gold("torn.png"))
    assert caught.value.reason is FailureReason.evaluator_failed
    both_broken = FileDesktop({"/a.png": b"plain text"})
    with pytest.raises(DesktopError, match="UnidentifiedImageError"):
        verdict(files, both_broken, func="compare_images", result=file("/a.png"), expected=gold("torn.png"))


def test_truncated_xml_under_rules_scores_zero(files):
    desktop = FileDesktop({"/xcu": b"<oor:items"})
    found = verdict(
        files,
        desktop,
        func="check_auto_saving_time",
        result=file("/xcu"),
        expected={"type": "rule", "rules": {"minutes": 3}},
    )
    assert (found.score, found.problem[:34]) == (0.0, "check_auto_saving_time: ParseError")


@pytest.mark.parametrize(
    ("func", "rules", "message"),
    [
        ("check_auto_saving_time", {}, "lack the key 'minutes'"),
        ("check_json", {"expect": [{"key": ["a"], "method": "dream", "ref": 1}]}, "method 'dream' is unknown"),
        ("check_list", {"expect": ["("]}, "unterminated subpattern"),
    ],
)
def test_wrong_rules_are_the_evaluators_failure(files, func, rules, message):
    content = (
        b'{"a": 1}'
        if func != "check_auto_saving_time"
        else b"""<a xmlns:oor="http://openoffice.org/2001/registry">
        <item oor:path="/org.openoffice.Office.Common/Save/Document"><prop oor:name="AutoSaveTimeIntervall">
        <value>3</value></prop></item></a>"""
    )
    with pytest.raises(DesktopError, match=message):
        verdict(
            files,
            FileDesktop({"/a": content}),
            func=func,
            result=file("/a"),
            expected={"type": "rule", "rules": rules},
        )


def test_options_that_the_metric_does_not_have_are_the_tasks_fault(files, monkeypatch, tmp_path):
    """OSWorld's evaluators may have them: without these it cannot be scored."""
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path))
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    evaluator = {"func": "compare_text_file", "result": file("/a"), "expected": gold("gold.png")}
    with pytest.raises(TaskError, match="unexpected keyword argument 'loud'; OSWorld's evaluators are not installed"):
        verdict(files, FileDesktop({"/a": b"x"}), **evaluator, options={"loud": True})


def test_a_settings_file_that_a_getter_cannot_read_scores_zero(files):
    preferences = "/home/user/.config/google-chrome/Default/Preferences"
    evaluator = {
        "func": "exact_match",
        "result": {"type": "enable_do_not_track"},
        "expected": {"type": "rule", "rules": {"expected": "true"}},
    }
    found = verdict(files, FileDesktop({preferences: b"{ torn"}), **evaluator)
    assert found.score == 0.0
    found = verdict(files, FileDesktop({preferences: b"[1]"}), **evaluator)
    assert found.score == 0.0


def test_an_expected_file_that_the_policy_removed_from_the_desktop_scores_zero(files):
    desktop = FileDesktop({"/a": b"x"})
    found = verdict(files, desktop, func="compare_text_file", result=file("/a"), expected=file("/source"))
    assert (found.score, found.problem) == (0.0, "compare_text_file: /source is not on the desktop")


@pytest.mark.parametrize("fails", [odd_metrics.no_numpy, odd_metrics.disk_full, odd_metrics.times_out])
def test_errors_of_this_machine_are_never_a_score(files, monkeypatch, fails):
    for table, name in ((METRICS, "file_contains"), (GETTERS, "vm_file")):
        with monkeypatch.context() as patch:
            patch.delitem(table, name)
            patch.setitem(table, name, fails)
            with pytest.raises(DesktopError) as caught:
                verdict(
                    files,
                    FileDesktop({"/a": b"1"}),
                    func="file_contains",
                    result=file("/a"),
                    expected={"type": "rule", "rules": {"expected": ["1"]}},
                )
            assert caught.value.reason is FailureReason.evaluator_failed


def test_a_broken_result_decides_only_where_its_score_does(files):
    pair = {
        "func": ["file_contains", "compare_images"],
        "result": [file("/a"), file("/a")],
        "expected": [{"type": "rule", "rules": {"expected": ["x"]}}, gold("gold.png")],
    }
    desktop = FileDesktop({"/a": b"x"})
    assert verdict(files, desktop, **pair).problem.startswith("compare_images")
    assert verdict(files, desktop, **pair, conj="or") == Verdict(1.0)


def test_a_score_beyond_1_is_the_metrics_fault_and_not_a_failure_of_the_policy():
    with pytest.raises(RuleError, match=r"the metric returned 100; expected a score in 0..1, where 1 is a success"):
        call_metric(float, b"100", (), {}, gold=False)
    with pytest.raises(BrokenResult, match="the metric returned nan"):
        call_metric(float, b"nan", (), {}, gold=False)
    assert call_metric(float, b"1.000000000001", (), {}, gold=False) == 1.0
    assert call_metric(float, b"-0.5", (), {}, gold=False) == 0.0


def test_a_name_that_a_metric_misspells_is_its_own_failure():
    def misspelled(result):
        return float(jsn.loads(result))  # noqa: F821

    def evaluates(result):
        return eval(result)  # as some of OSWorld's metrics do

    official = {}  # where only an odd result leads to a name that is not there
    source = "def score(result): return undefined"
    exec(compile(source, "/checkout/desktop_env/evaluators/metrics/a.py", "exec"), official)
    with pytest.raises(NameError, match="jsn"):
        call_metric(misspelled, b"1", (), {}, gold=False)
    with pytest.raises(BrokenResult, match="NameError"):
        call_metric(evaluates, "text_of_the_policy", (), {}, gold=False)
    with pytest.raises(BrokenResult, match="NameError"):
        call_metric(official["score"], b"1", (), {}, gold=False)
    with pytest.raises(BrokenResult, match="the metric returned None, which is no score"):
        call_metric(lambda result: None, b"1", (), {}, gold=False)  # noqa: ARG005


def test_a_metric_of_the_users_own_does_not_need_osworlds_evaluators(files, monkeypatch):
    monkeypatch.setitem(METRICS, "mine", lambda result: 1.0)  # noqa: ARG005
    with pytest.raises(TaskError, match=r"evaluator: mine cannot be called with evaluator.expected: [a-z ]*$"):
        verdict(files, FileDesktop(), func="mine", result=file("/x"), expected={"type": "rule", "rules": {}})
