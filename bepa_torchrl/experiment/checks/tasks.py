"""Checks of the settings against the tasks of the run. Imports no torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.experiment.checks.check import Check, method_of
from bepa_torchrl.experiment.checks.unread import settings_beside_seed
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.methods import SeedSource
from osworld_gym.tasks.evaluation.judging import is_judged
from osworld_gym.tasks.providers import SIM, wrong_provider

if TYPE_CHECKING:
    from bepa_torchrl.experiment.tasks import Tasks


def task_checks(tasks: Tasks, *, prepared: bool = False) -> tuple[Check, ...]:
    """The checks of a method's settings against the tasks.

    Args:
        tasks: tasks of the run.
        prepared: whether the run has its preparation already, and needs logs, plans and seeds no more.

    The checks raise TraceError if a source of traces is missing, or ``expert.plans`` or ``cache.seed`` cannot be used.
    """
    of_experts = (expert_sources, plans_to_distil, known_attempts)
    expert: tuple[Check, ...] = tuple(partial(each, tasks=tasks) for each in of_experts)
    expert = () if prepared else (made_self_rollouts, *expert)
    always = (tasks_of_provider, judge_of_tasks)
    return (*(partial(each, tasks=tasks) for each in always), *expert, partial(enough_tasks, tasks=tasks))


def tasks_of_provider(settings: Settings, tasks: Tasks) -> str | None:
    """The tasks run on ``env.provider``."""
    env = settings.env
    problem = wrong_provider(env.suite, (*tasks.train, *tasks.held_out), env.provider)
    if problem is None:
        return None
    return f"{problem}; fix: env.provider={'local' if env.provider == SIM else SIM}, or another env.suite"


def expert_sources(settings: Settings, tasks: Tasks) -> str | None:
    """The sources of expert traces can be used, and the method has one."""
    from bepa_torchrl.experiment.tasks import run_seed
    from bepa_torchrl.experts.plans import read_plans
    from bepa_torchrl.experts.sources import split_source

    method = method_of(settings)
    sources = [split_source(source) for source in settings.expert.logs]
    if settings.expert.plans is not None:
        read_plans(Path(settings.expert.plans).expanduser())
    seed = run_seed(settings)
    if seed is not None:
        seed.check_tasks(tasks.suite, tasks.train, tasks.held_out, settings.policy.action_text)
    used = {source.value for source in (method.sft, method.seed_source) if source is not SeedSource.nothing}
    seeded = seed is not None and used == {seed.kind}
    if not used or seeded or sources or any(task.oracle is not None for task in tasks.train):
        return None
    return (
        f"algo={method.name} requires an expert, and none of the {len(tasks.train)} training tasks has an oracle; "
        "fix: expert.logs=[agent_s2:FOLDER], cache.seed=FOLDER, or algo=grpo"
    )


def made_self_rollouts(settings: Settings) -> str | None:
    """What is set of self-rollouts is read: those of ``cache.seed`` have been made."""
    from bepa_torchrl.experiment.tasks import run_seed

    seed = run_seed(settings)
    return None if seed is None or seed.kind != "self_rolled" else settings_beside_seed(settings)


def solved_by_experts(settings: Settings, tasks: Tasks) -> None:
    """``expert.logs`` solved a training task. Raises TraceError otherwise, or if they cannot be read.

    It reads the logs, so it is made once for a run, and not for each of its methods.
    """
    from bepa_torchrl.experts.sources import check_solved

    if settings.expert.logs:
        check_solved(settings.expert.logs, tasks.train)


def plans_to_distil(settings: Settings, tasks: Tasks) -> str | None:
    """``loss.distill_weight`` has plans: of logs, or of the training tasks' oracles."""
    weight = settings.loss.distill_weight
    if not weight or settings.expert.logs or any(task.oracle is not None for task in tasks.train):
        return None
    return (
        f"loss.distill_weight={weight} requires an expert's plans, and none of the {len(tasks.train)} training tasks "
        "has an oracle; set expert.logs=[agent_s2:FOLDER], or loss.distill_weight=0"
    )


def known_attempts(settings: Settings, tasks: Tasks) -> str | None:
    """``expert.pass_k_file`` has ``expert.pass_k`` attempts at each task. Raises TraceError: it lacks a task."""
    from bepa_torchrl.experts.splitting import read_pass_k

    name, k = settings.expert.pass_k_file, settings.expert.pass_k
    if name is None:
        return None
    known, _ = read_pass_k(Path(name).expanduser(), (*tasks.train, *tasks.held_out))
    if known == k:
        return None
    return f"expert.pass_k_file={name} has {known} attempts per task, got expert.pass_k={k}; set expert.pass_k={known}"


def enough_tasks(settings: Settings, tasks: Tasks) -> str | None:
    """An iteration's groups have different tasks."""
    groups, count = settings.collect.groups, len(tasks.train)
    if not method_of(settings).rl or groups <= count:
        return None
    return (
        f"collect.groups={groups} requires {groups} different training tasks, there are {count}; lower it or add tasks"
    )


def judge_of_tasks(settings: Settings, tasks: Tasks) -> str | None:
    """Tasks that a judge scores have one, and there is none for others."""
    judged = any(is_judged(task) for task in (*tasks.train, *tasks.held_out))
    suite, model = settings.env.suite, settings.judge.model
    if judged and model is None:
        return f"env.suite={suite}: its tasks are scored by a judge; set judge.model=NAME and judge.url=URL"
    if model is not None and not judged:
        return f"judge.model={model}: the tasks of env.suite={suite} have verifiers, no judge; leave it out"
    return None
