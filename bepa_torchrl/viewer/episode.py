"""What the pages show of an episode, wherever it was read from. Plain data; imports nothing of the project."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

Number = float | None  #: None: not recorded


@dataclass(frozen=True, slots=True)
class ShownAction:
    """One action as it is drawn on the screenshot.

    Args:
        kind: the kind of :data:`osworld_gym.uitars.actions.ACTIONS`.
        start: (x, y) in screen pixels, or None.
        end: the end of a drag.
        text: keys, typed text or direction.
    """

    kind: str
    start: tuple[float, float] | None = None
    end: tuple[float, float] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One step.

    Args:
        screenshot: file of the screenshot before it; None where none was recorded.
        thought: the thought of the response.
        action: the rest of the response, as written.
        actions: the action as data; empty if it cannot be parsed.
        executed: the code that it stands for.
        note: why something is missing or could not be read; empty otherwise.
        tokens: text of each token; empty if the tokenizer is not at hand.
        log_probs: nats per token, as sampled.
        old_log_probs: nats per token, under the policy before the update, without a plan.
        ratios: new to old probability per token in the last optimiser step; empty where a run does not record it.
        clipped: indices of the tokens where the clip bound; None where a run does not record it.
    """

    screenshot: Path | None = None
    thought: str = ""
    action: str = ""
    actions: tuple[ShownAction, ...] = ()
    executed: str = ""
    note: str = ""
    tokens: tuple[str, ...] = ()
    log_probs: tuple[Number, ...] = ()
    old_log_probs: tuple[Number, ...] = ()
    ratios: tuple[Number, ...] = ()
    clipped: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """One episode.

    Args:
        task: id of the task.
        source: on_policy, self_rolled, converted, raw_expert, refreshed (the policy's own earlier success, injected)
            or expert.
        outcome: success, failure, no reward (the infrastructure failed, or nobody evaluated it).
        iteration: the iteration of the training; None outside of it.
        group: id of the group, None outside of training.
        slot: in the group.
        instruction: the instruction of the task.
        stop: why it ended.
        reward: None if there is none.
        advantage: None if it was not trained on.
        version: optimiser steps of the policy that sampled it.
        injected: whether it replaced a rollout, or was added to the group.
        trained: whether its rows were trained on; None outside of training.
        updates: the policy's versions after the optimiser steps that its rows were in, where a run records them.
        copied_from: the rollout, ``<group>-<slot>``, that an injected trace is a copy of.
        failure: the failure of the infrastructure; empty if none.
        problem: why what the policy left behind could not be read.
        judge: the judge whose opinion the reward is; empty: a verifier's.
        mode: greedy or sampled, of an evaluation.
        expert: whose trace it is or goes back to, and its run.
        plan: hash of the plan in the prompt.
        count: number of steps, also where the steps themselves are not recorded.
        replayed: the first steps, which were replayed from a cached success and not trained on.
        steps: in order.
        final: file of the screenshot after the last step.
    """

    task: str
    source: str
    outcome: str
    iteration: int | None = None
    group: int | None = None
    slot: int | None = None
    instruction: str = ""
    stop: str = ""
    reward: Number = None
    advantage: Number = None
    version: int | None = None
    injected: bool = False
    trained: bool | None = None
    updates: tuple[int, ...] = ()
    copied_from: str = ""
    failure: str = ""
    problem: str = ""
    judge: str = ""
    mode: str = ""
    expert: str = ""
    plan: str = ""
    count: int = 0
    replayed: int = 0
    steps: tuple[ShownStep, ...] = ()
    final: Path | None = None

    @property
    def mean_log_probs(self) -> tuple[Number, Number]:
        """Mean of the tokens' log-probs, nats: as sampled, and under the policy before the update."""
        return _mean([step.log_probs for step in self.steps]), _mean([step.old_log_probs for step in self.steps])

    @property
    def text(self) -> str:
        """Thoughts and actions in one text, for the search."""
        return "\n".join(f"{step.thought}\n{step.action}" for step in self.steps)


def recorded(shown: ShownEpisode | ShownStep | ShownAction) -> dict[str, Any]:
    """The fields of one of these that are not empty; not those of its parts."""
    values = ((field.name, getattr(shown, field.name)) for field in fields(shown))
    return {name: value for name, value in values if value not in (None, "") and (value != () or name == "clipped")}


def outcome_of(reward: Number) -> str:
    """The outcome of a reward; a success is a reward of 1."""
    return "no reward" if reward is None else "success" if reward == 1.0 else "failure"


def _mean(parts: list[tuple[Number, ...]]) -> Number:
    known = [value for part in parts for value in part if value is not None]
    return sum(known) / len(known) if known else None
