"""Records a task's oracle on a desktop as an expert trace: the source of D_E for tasks with an oracle."""

from __future__ import annotations

from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.desktops.base import Desktop
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.base import ExpertStep, Oracle, play_oracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.task import Task


def record_expert(
    desktop: Desktop,
    task: Task,
    seed: int,
    *,
    style: str = "expert",
    oracle: Oracle | None = None,
    name: str | None = None,
    max_steps: int = 50,
) -> ExpertTrace:
    """Runs the task's oracle and verifies the result; ``success=False`` is a result, not an error.

    As in an episode, repeated calls of ``call_user`` end the run, which solves an infeasible task.

    Args:
        desktop: is reset with ``seed``; then the task's setup steps run.
        task: the task.
        seed: seed of the desktop.
        style: style of the task's oracle, ``expert`` or ``native``.
        oracle: replaces the task's oracle.
        name: the trace's ``expert``; by default ``<provider's oracle type>_<style>``.
        max_steps: maximum number of steps, after which the result is verified.

    Raises:
        TaskError: the task has no oracle and ``oracle`` is None.
        DesktopError: the desktop failed.
    """
    player = oracle if oracle is not None else make_oracle(task, style)
    kind = "oracle" if task.oracle is None else str(task.oracle.get("type", "oracle"))
    desktop.reset(seed)
    prepare(task, desktop, seed=seed)
    steps: list[ExpertStep] = []
    frames = [desktop.screenshot().png]

    def record(step: ExpertStep) -> None:
        steps.append(step)
        frames.append(desktop.screenshot().png)

    _, stop = play_oracle(desktop, player, max_steps=max_steps, on_step=record)
    verdict = verify(task, desktop, stop=stop)
    return ExpertTrace(
        task_id=task.id,
        instruction=task.instruction,
        expert=name or f"{kind}_{style}",
        steps=tuple(steps),
        screenshots=tuple(frames[:-1]),
        success=verdict.success,
        final_screenshot=frames[-1],
        env_seed=seed,
    )
