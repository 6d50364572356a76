"""Official tasks that can run here score 0 for a policy that does nothing, and their evaluators do not fail.

The tasks' files are gigabytes of downloads, so generated files are used instead (``scripts/made_files.py``).
Requires the full desktop (osworld-gym install-desktop), ``osworld-gym install-official`` and OSWorld's task files
(OSWORLD_ROOT).
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from repository import OSWORLD_BESIDE

from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.osworld.requirements import KNOWN_ISSUES, Machine, reasons_against
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason
from scripts.made_files import LIMITS, fill_cache

DESKTOPS = 3
SAMPLE = 40
TRIES = 2  # of a task whose desktop failed, e.g. because the accessibility tree was late on a loaded machine


@pytest.fixture(scope="module")
def suite():
    roots = [root for root in (os.environ.get("OSWORLD_ROOT"), OSWORLD_BESIDE) if root]
    found = [root for root in roots if (Path(root) / "evaluation_examples").is_dir()]
    if not found:
        pytest.skip("OSWorld's task files are absent: set OSWORLD_ROOT to a checkout")
    assert find_template() is not None, "the applications' HOME is missing; fix: osworld-gym install-desktop --yes"
    return load_suite(found[0])


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> FileCache:
    return FileCache(tmp_path_factory.mktemp("files"), offline=True, also=())


def runnable(suite, files: FileCache) -> list[Task]:
    """The tasks that can run on a local desktop with their files."""
    for task in suite.tasks:
        fill_cache(files.root, task)
    machine = Machine(files=files)
    able = [task for task in suite.tasks if not reasons_against(task, "local", machine)]
    return [task for task in able if task.id[:8] not in LIMITS]


def idle_problems(tasks: Sequence[Task], files: FileCache) -> list[str]:
    """One line for each task that rewards doing nothing, or that could not be set up and scored."""
    waiting: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        waiting.put(task)
    pool = OfficialEvaluators()

    def work() -> list[str]:
        problems = []
        desktop = make_desktop("local", width=1920, height=1080)
        try:
            while True:
                task = waiting.get_nowait()
                for left in reversed(range(TRIES)):
                    try:
                        desktop.reset(0)
                        prepare(task, desktop, files)
                        desktop.screenshot()
                        evaluators = Evaluators(official=pool)
                        verdict = verify(task, desktop, stop=StopReason.finished, evaluators=evaluators, files=files)
                        if verdict.success:
                            problems.append(f"{task.id}: doing nothing scores 1")
                        break
                    except (DesktopError, TaskError) as error:
                        if not left:
                            problems.append(f"{task.id}: {error}")
                        desktop.close()
                        desktop = make_desktop("local", width=1920, height=1080)
        except Empty:
            return problems
        finally:
            desktop.close()

    with ThreadPoolExecutor(DESKTOPS) as threads:
        found = [future.result() for future in [threads.submit(work) for _ in range(DESKTOPS)]]
    pool.close()
    return [problem for problems in found for problem in problems]


@pytest.mark.official
@pytest.mark.timeout(600)
def test_doing_nothing_scores_zero_on_a_sample_of_tasks(suite, files):
    tasks = runnable(suite, files)
    step = len(tasks) / SAMPLE
    sample = [tasks[int(i * step)] for i in range(SAMPLE)]
    assert len({task.domain for task in sample}) > 5
    assert idle_problems(sample, files) == []


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_doing_nothing_scores_zero_on_every_task(suite, files):
    tasks = runnable(suite, files)
    assert len(tasks) > 150
    assert idle_problems(tasks, files) == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_known_free_reward_is_one(suite, files):
    """An entry that is no longer true (e.g. with a newer Chromium) must be removed from the table."""
    free = [task for task in suite.tasks if str(KNOWN_ISSUES.get(task.id[:8], ("",))[0]) == "free reward"]
    runnable(suite, files)
    assert len(idle_problems(free, files)) == len(free) > 0
