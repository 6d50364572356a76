"""Our metrics on the cases that test_official_parity.py runs with OSWorld's metrics."""

import zipfile

import pytest
from broken_cases import BROKEN
from metric_cases import CASES, IDS, packed

from osworld_gym.tasks.evaluation.metrics import METRICS, OURS


@pytest.mark.parametrize(("name", "arguments", "options", "score"), CASES, ids=IDS)
def test_the_score(name, arguments, options, score):
    found = METRICS[name](*arguments, **options)
    assert isinstance(found, float)
    assert 0.0 <= found <= 1.0
    if score is not None:  # None: a similarity that is not worked out by hand, only compared with OSWorld's
        assert found == pytest.approx(score)


@pytest.mark.parametrize(("name", "arguments", "options"), BROKEN.values(), ids=BROKEN)
def test_what_osworld_gives_nothing_for(name, arguments, options):
    try:
        found = METRICS[name](*arguments, **options)
    except (ValueError, TypeError, LookupError, AttributeError, OSError, zipfile.BadZipFile):
        found = 0.0
    assert found == 0.0


def test_every_metric_has_cases_for_and_against():
    missing = set(METRICS) - set(OURS) - {name for name, *_ in CASES}
    assert missing == {"check_play_and_exit"}  # not in OSWorld's release: its case is below
    for name in {name for name, *_ in CASES}:
        scores = {score for other, _, _, score in CASES if other == name}
        assert len(scores) > 1, name


def test_play_and_exit():
    metric = METRICS["check_play_and_exit"]
    assert metric(b"#play-and-exit=0\nplay-and-exit=1\n", {"expected_play_and_exit": 0}) == 0.0
    assert metric(b"play-and-exit=0\n", {"expected_play_and_exit": 0}) == 1.0
    assert metric(b"", {"expected_play_and_exit": 0}) == 1.0


def test_an_archive_that_is_a_tape():
    zipped, taped = (packed({"x/a.txt": "1"}, kind) for kind in ("zip", "tar"))
    assert METRICS["compare_archive"](taped, taped, file_path="x") == 1.0
    assert METRICS["compare_archive"](taped, zipped, file_path="x") == 0.0  # OSWorld goes by the gold file's name


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("compare_archive", (packed({"a": "1"}), packed({"a": "1"})), {"file_type": "video"}, "a file_type of text"),
        (
            "is_expected_tabs",
            ([{"url": "x"}], {"type": "title"}),
            {},
            "is_expected_tabs: .* must be 'url'",
        ),
        ("is_extension_installed", ("x", {"type": "is", "expected": "x"}), {}, "type must be 'contain'"),
        ("literal_match", ("x", "x"), {"type": "set"}, "must be 'str' or 'list'"),
    ],
)
def test_what_a_task_file_gets_wrong(name, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        METRICS[name](*arguments, **options)
