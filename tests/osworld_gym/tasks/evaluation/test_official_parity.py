"""OSWorld's metrics give the same score as ours on the shared cases.

Requires ``osworld-gym install-official`` with its dependencies (make test-official).
"""

import math

import pytest
from metric_cases import CASES, IDS, as_paths

from osworld_gym.errors import DesktopError
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators

pytestmark = pytest.mark.official


@pytest.fixture(scope="module")
def pool():
    evaluators = OfficialEvaluators()
    yield evaluators
    evaluators.close()


@pytest.mark.parametrize(("name", "arguments", "options", "score"), CASES, ids=IDS)
def test_the_same_score(pool, tmp_path, name, arguments, options, score):
    ours = METRICS[name](*arguments, **options)
    theirs = pool.metric(name, [as_paths(value, tmp_path, name) for value in arguments], options)
    assert theirs == pytest.approx(ours, abs=1e-9)
    assert score is None or math.isclose(theirs, score)


def test_what_raises_there_is_an_error_here(pool):
    with pytest.raises(DesktopError, match=r"evaluator_failed: official: KeyError: 'expected'"):
        pool.metric("exact_match", ["a", {}])
