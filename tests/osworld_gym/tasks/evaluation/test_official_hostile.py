"""On results that a policy could leave behind, no metric of ours gives more than OSWorld's of the same name.

What cannot be read is worth 0 on both sides. Requires ``osworld-gym install-official`` (make test-official, nightly).
"""

import random
import secrets
from collections import defaultdict

import pytest
from broken_cases import BROKEN
from hostile_results import variants
from metric_cases import CASES, as_paths

from osworld_gym.errors import DesktopError
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators

pytestmark = pytest.mark.official
#: metrics whose result is the second argument, as in OSWorld
SECOND = {"is_included_all_json_objects", "is_in_vm_clickboard"}
#: metrics of ours that give less for some results → the reason
STRICTER = {
    "check_include_exclude": "a result that is no text is unreadable; OSWorld takes any container, and 0 as missing",
    "check_json_settings": "the file must be a JSON object; OSWorld takes any JSON if no key is expected",
    "is_expected_bookmarks": "every bookmark must be an object; OSWorld may not come to the one that is not",
    "check_image_size": "the picture must decode; OSWorld reads its header",
    "check_libre_locale": "the file must have the encoding that it declares; lxml takes UTF-16 in any case",
}


@pytest.fixture(scope="module")
def pool():
    evaluators = OfficialEvaluators()
    yield evaluators
    evaluators.close()


def ours(name, arguments, options) -> float:
    try:
        return float(METRICS[name](*arguments, **options))
    except Exception:  # noqa: BLE001  unreadable
        return 0.0


def theirs(pool, folder, name, arguments, options) -> float:
    folder.mkdir()
    try:
        return pool.metric(name, [as_paths(value, folder, name) for value in arguments], options)
    except DesktopError:  # it raised
        return 0.0


@pytest.mark.parametrize(("name", "arguments", "options"), BROKEN.values(), ids=BROKEN)
def test_what_osworld_gives_nothing_for(pool, tmp_path, name, arguments, options):
    assert theirs(pool, tmp_path / "x", name, arguments, options) == 0.0


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Palette images:UserWarning")
@pytest.mark.parametrize("seed", [0, secrets.randbits(32)], ids=["fixed seed", "fresh seed"])
def test_ours_never_give_more(pool, tmp_path, seed):
    more, less, count = [], defaultdict(list), 0
    for number, (name, arguments, options, _) in enumerate(CASES):
        place = 1 if name in SECOND else 0
        for label, value in variants(arguments[place], random.Random(f"{seed} {number}")):
            changed = [*arguments[:place], value, *arguments[place + 1 :]]
            found = ours(name, changed, options)
            official = theirs(pool, tmp_path / str(count), name, changed, options)
            count += 1
            if not found <= official + 1e-9:
                more.append(f"{name} ({number}), {label}: {found} here, {official} there")
            elif found < official - 1e-9:
                less[name].append(label)
    assert not more, f"seed {seed}: {more}"
    assert set(less) <= set(STRICTER), f"seed {seed}: {dict(less)}"
    assert count > 10_000
