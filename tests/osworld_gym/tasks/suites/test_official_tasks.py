"""OSWorld's evaluators on a real desktop: our getters return what theirs return, and official tasks score 0 and 1.

Requires the full desktop (osworld-gym install-desktop), ``osworld-gym install-official`` and, for the tasks, OSWorld's
task files (OSWORLD_ROOT).
"""

import os
from pathlib import Path

import pytest
from repository import OSWORLD_BESIDE

from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators
from osworld_gym.tasks.evaluation.score import Check, Evaluators, score
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import TaskRun, prepare
from osworld_gym.tasks.suites.osworld.runs import run_all
from osworld_gym.tasks.suites.osworld.solutions import oracle_of, play_official
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from scripts.made_files import fill_cache

pytestmark = pytest.mark.official

#: one or two per application: verified by settings, shell or accessibility tree, and infeasible ones
TASKS = ["030eeff7", "12086550", "44ee5668", "7a5a7856", "7767eef2", "a4d98375", "28cc3b7e", "4783cc41", "8ba5ae7a"]


@pytest.fixture(scope="module", autouse=True)
def _template():
    assert find_template() is not None, "the applications' HOME is missing; fix: osworld-gym install-desktop --yes"


@pytest.fixture(scope="module")
def pool():
    evaluators = OfficialEvaluators()
    yield evaluators
    evaluators.close()


@pytest.fixture(scope="module")
def desktop():
    with make_desktop("local", width=1920, height=1080) as made:
        made.reset(0)
        yield made


#: a sheet, a document and slides, which the application has open and the evaluator saves
BY_GOLD_FILE = ["0326d92d", "0810415c", "04578141"]


PROFILE = ["default_search_engine", "profile_name", "enable_do_not_track", "new_startup_page", "bookmarks"]
CHROME = [*PROFILE, "chrome_language", "chrome_font_size", "enabled_experiments", "enable_safe_browsing"]
SEEN = [
    *({"type": kind} for kind in CHROME),
    {"type": "vm_screen_size"},
    {"type": "shortcuts_on_desktop"},
    {"type": "default_video_player"},
    {"type": "vm_command_line", "command": "echo a; echo b >&2; exit 3", "shell": True},
    {"type": "vm_command_line", "command": ["ls", "-a", "~/"]},
    {"type": "vm_command_error", "command": "ls /none"},
    {"type": "list_directory", "path": "/home/user/.config/vlc"},
]


@pytest.mark.parametrize("config", SEEN, ids=lambda config: config["type"])
def test_our_getters_see_what_theirs_see(desktop, pool, config):
    run = TaskRun(Task(id="t", instruction="i", evaluator={"func": "infeasible"}), desktop, FileCache(), {})
    ours = GETTERS[config["type"]](run, config)
    for wanted, worth in ((ours, 1.0), (["something else"], 0.0)):
        check = Check("exact_match", config, {"type": "rule", "rules": {"expected": wanted}})
        assert score(run, check, Evaluators("official", official=pool)).score == worth


@pytest.mark.parametrize(
    "config",
    [
        {"type": "vlc_config", "dest": "vlcrc"},
        {"type": "vm_file", "path": "/home/user/.config/vlc/vlcrc", "dest": "vlcrc"},
    ],
    ids=lambda config: config["type"],
)
def test_our_files_are_theirs(desktop, pool, config):
    run = TaskRun(Task(id="t", instruction="i", evaluator={"func": "infeasible"}), desktop, FileCache(), {})
    text = GETTERS[config["type"]](run, config).decode()
    for wanted, worth in ((text, 1.0), (f"{text}x", 0.0)):
        check = Check("compare_config", config, {"type": "rule", "rules": {"expected": wanted}})
        assert score(run, check, Evaluators("official", official=pool)).score == worth


def test_a_file_that_is_not_there_costs_no_wait(desktop, pool):
    run = TaskRun(Task(id="t", instruction="i", evaluator={"func": "infeasible"}), desktop, FileCache(), {})
    gone = {"type": "vm_file", "path": "/home/user/none", "dest": "x"}
    check = Check("compare_config", gone, {"type": "rule", "rules": {"expected": "x"}})
    assert (
        score(run, check, Evaluators("official", deadline=10, official=pool)).score == 0.0
    )  # their client sleeps 15 s


@pytest.fixture(scope="module")
def official_suite():
    checkout = [os.environ.get("OSWORLD_ROOT"), OSWORLD_BESIDE]
    roots = [root for root in checkout if root and (Path(root) / "evaluation_examples").is_dir()]
    if not roots:
        pytest.skip("OSWorld's task files are absent: set OSWORLD_ROOT to a checkout")
    return load_suite(roots[0])


@pytest.mark.timeout(900)
def test_official_tasks_score_nothing_and_one(pool, official_suite):
    tasks = [task for task in official_suite.tasks if task.id[:8] in TASKS]
    assert len(tasks) == len(TASKS)
    with make_desktop("local", width=1920, height=1080) as desktop:
        lines = [(outcome.sound, outcome.line()) for outcome in run_all(desktop, tasks, pool)]
    assert all(sound for sound, _ in lines), "\n".join(line for _, line in lines)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BY_GOLD_FILE)
def test_a_gold_file_in_place_of_an_open_one_scores_one(desktop, pool, official_suite, tmp_path, name):
    """The files are made up; the application is closed, and the evaluator's own Ctrl+S does not undo the solution."""
    (task,) = (task for task in official_suite.tasks if task.id.startswith(name))
    fill_cache(tmp_path, task)
    files = FileCache(tmp_path, offline=True, also=())
    desktop.reset(0)
    prepare(task, desktop, files)
    oracle = oracle_of(task)
    play_official(oracle, task, desktop, files)
    assert verify(task, desktop, stop=oracle.stop, evaluators=Evaluators(official=pool), files=files).score == 1.0
