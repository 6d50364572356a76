"""Training rows of several episodes with ragged responses and their history, for tests of packing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows, row_list, stack_rows, step_contexts
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.transformers.renderer import ChatRenderer
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.types import PromptContext, StopReason
from osworld_gym.uitars import prompt as prompts_of_uitars

WORDS = ("Thought: click mute", "Action: wait()", "hello world", "open the trash", "<|box_start|>(72,40)<|box_end|>")


class ShortPromptPolicy(TransformersPolicy):
    """A small random model in float64 with a chat preset whose text is the instruction alone, to save time.

    In float64, so that differences are those of the formulas, not of rounding.
    """

    def __init__(self, *, family: str = "qwen2_5_vl", **options: Any) -> None:
        super().__init__(small_checkpoint(spread=0.1, family=family), preset="short", **options)
        self.model.double()
        self.renderer.__class__ = ShortPromptRenderer


class ShortPromptRenderer(ChatRenderer):
    """Renders the instruction alone."""

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        short = {"short": prompts_of_uitars.ChatPreset("user", None, "{instruction}")}
        with patch.object(prompts_of_uitars, "CHAT_PRESETS", short):
            return super().render(contexts)


def made_episodes(policy: TransformersPolicy, steps: Sequence[int], *, seed: int = 0) -> TensorDictBase:
    """Rows ``[R]`` of one episode per entry of ``steps``, two per group, with an advantage and an old log-prob each.

    Responses are 1 to 6 random words. The last episode is injected (OFF_POLICY). Old log-probs differ from the policy's
    by up to 0.5 nats, so that some ratios are clipped.
    """
    numbers = np.random.default_rng(seed)
    rows: list[TensorDictBase] = []
    for number, count in enumerate(steps):
        texts = [" ".join(numbers.choice(WORDS, int(numbers.integers(1, 7)))) for _ in range(count)]
        pngs = [picture(100 * number + step, (64, 64)) for step in range(count)]
        responses = [Response(text, tokens := policy.encode_response(text), torch.zeros(len(tokens))) for text in texts]
        contexts = step_contexts(f"task {number // 2}", pngs, texts, [response.tokens for response in responses])
        turns = [Turn(*turn) for turn in zip(pngs, required(policy.render(contexts)), responses, strict=True)]
        episode = episode_rows(
            turns,
            task_id=f"task-{number // 2}",
            instruction=f"task {number // 2}",
            group_id=number // 2,
            slot=number % 2,
            source=K.Source.on_policy,
            policy_version=0,
            reward=float(number % 2),
            stop=StopReason.finished,
            plan_free=True,
        )
        rows += row_list(episode)
    for row in rows:
        injected = number_of(row) == len(steps) - 1
        row[K.OFF_POLICY] = torch.tensor([injected])
        row[K.ADVANTAGE] = torch.full((1, 1), 1.0 if int(row[K.SLOT]) else -0.7)
    with torch.no_grad():
        for row in rows:
            (own,), _ = policy.response_log_probs([prompt_of(row)], [row[K.RESPONSE_TOKENS]])
            row[K.OLD_LOG_PROB] = own + torch.from_numpy(numbers.uniform(-0.5, 0.5, len(own))).float()
    return stack_rows(rows)


def number_of(row: TensorDictBase) -> int:
    """The episode's index in ``steps`` of :func:`made_episodes`."""
    return 2 * int(row[K.GROUP_ID]) + int(row[K.SLOT])


def prompt_of(row: TensorDictBase) -> Prompt:
    """The prompt of one row."""
    return Prompt(row[K.PROMPT_TOKENS], tuple(row[K.IMAGES]))


def required(prompts: Iterable[Prompt | None]) -> list[Prompt]:
    """The prompts, which must all fit the model."""
    found = list(prompts)
    fitting = [prompt for prompt in found if prompt is not None]
    assert len(fitting) == len(found)
    return fitting
