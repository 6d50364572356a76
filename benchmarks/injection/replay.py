"""A policy that replays scripted responses, recorded from an oracle on a desktop without faults."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bepa_torchrl.data.prompt import Prompt, Response
from osworld_gym.desktops.base import Desktop
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, PromptContext, StepResult
from osworld_gym.uitars.format import format_response

WAIT = format_response("Nothing.", [Action("wait")])
FINISHED = format_response("Done.", [Action("finished", content="")])
KILL = format_response("End it all.", [Action("type", content="kill -9 -1\n")])
NO_TOKENS = torch.zeros(1, dtype=torch.int64)  # a placeholder
OPTIONS = EpisodeOptions(max_steps=30)


def record(desktop: Desktop, task: Task) -> tuple[str, ...]:
    """Records an oracle's responses, ending with ``finished``. Seeds change only the background, so any episode fits.

    Raises:
        DesktopError: the desktop failed, or the oracle did not solve the task.
    """
    episode, oracle = Episode(desktop, OPTIONS), make_oracle(task)
    result, responses = episode.begin(task, 0), []
    while not result.done and (step := oracle.next_step(desktop)) is not None:
        responses.append(format_response(step.intent, step.actions))
        result = episode.act(responses[-1])
    if not result.done:
        result = episode.act(FINISHED)
    return (*responses, *_solved(task, result))


def _solved(task: Task, result: StepResult) -> tuple[str]:
    if result.verdict is None or not result.verdict.success:
        failure = result.info.get("failure", result.verdict)
        raise DesktopError(FailureReason.evaluator_failed, f"the oracle does not solve {task.id}: {failure}")
    return (FINISHED,)


class ReplayPolicy:
    """Responds with ``responses[slot][step]`` at the seed key (seed, iteration, task number, slot, step)."""

    version = 0

    def __init__(self, responses: Sequence[Sequence[str]]) -> None:
        self._responses = responses

    @property
    def renderer(self) -> ReplayPolicy:
        """The policy itself."""
        return self

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return [Prompt(NO_TOKENS, ()) for _ in contexts]

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        del prompts, temperature  # a script depends on neither
        return [
            Response(self._responses[key[-2]][key[-1]], torch.zeros(1, dtype=torch.int64), torch.zeros(1))
            for key in keys
        ]
