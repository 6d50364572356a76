"""Which providers tasks run on: those of the simulated desktop on ``sim`` alone, those with programs on all others."""

from __future__ import annotations

from collections.abc import Sequence

from osworld_gym.errors import TaskError
from osworld_gym.tasks.setup.run import HOST_STEPS
from osworld_gym.tasks.task import Task

SIM = "sim"
REMOTE_MACHINES = frozenset({"vm", "remote"})  #: providers whose desktops have their own network
#: the providers of desktops with programs; nothing is known of those that other packages add
_WITH_PROGRAMS = frozenset({"local", "container", "vm", "remote"})


def is_simulated(task: Task) -> bool:
    """Whether the task is one of the simulated desktop."""
    return any(step["type"] == SIM for step in task.config)


def default_provider(tasks: Sequence[Task]) -> str:
    """The provider that tasks run on without further settings: ``sim`` if it is that of all, otherwise ``local``."""
    return SIM if all(map(is_simulated, tasks)) else "local"


def wrong_provider(suite: str, tasks: Sequence[Task], provider: str) -> str | None:
    """What is wrong with the provider for tasks of a suite, without a fix; None: nothing is known to be.

    Unsupported tasks are not looked at: they run on none.
    """
    tasks = [task for task in tasks if not task.unsupported]
    if provider in _WITH_PROGRAMS:
        wrong = [task for task in tasks if is_simulated(task)]
        expected = f"provider {SIM}"
    elif provider == SIM:
        wrong = [task for task in tasks if any(step["type"] not in {SIM, *HOST_STEPS} for step in task.config)]
        expected = "a desktop with programs, such as provider local"
    else:
        return None
    if not wrong:
        return None
    which = "the tasks" if len(wrong) == len(tasks) else f"{len(wrong)} of the {len(tasks)} tasks"
    return f"{which} of suite {suite} run on {expected}, got {provider}"


def check_tasks_of_provider(
    suite: str, tasks: Sequence[Task], provider: str, *, others: str = "another --suite or --split"
) -> None:
    """Checks the argument ``--provider`` of a command, which has ``others`` to choose other tasks by.

    Raises:
        TaskError: tasks of the suite do not run on it.
    """
    problem = wrong_provider(suite, tasks, provider)
    if problem is not None:
        fix = "local" if provider == SIM else SIM
        raise TaskError(f"{problem}; fix: --provider {fix}, or {others}")
