"""Builds the training rows of ``keys.py`` from an episode, and splits a batch of rows into episodes and groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from osworld_gym.types import PromptContext, StopReason


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of an episode: the screenshot (PNG bytes), the prompt and the response."""

    screenshot: bytes
    prompt: Prompt
    response: Response


def episode_rows(
    turns: Sequence[Turn],
    *,
    task_id: str,
    instruction: str,
    group_id: int,
    slot: int,
    source: K.Source,
    policy_version: int,
    reward: float,
    stop: StopReason,
    plan_free: bool,
) -> TensorDictBase:
    """The rows of one finished episode, a lazy stack ``[S]`` with every key of ``keys.py`` but the advantage's.

    With ``plan_free`` (no plan in the prompts) OLD_LOG_PROB is the log-prob as sampled. Otherwise the training prompt
    differs from the sampling prompt, and OLD_LOG_PROB is NaN until
    :class:`~bepa_torchrl.rollout.old_log_prob.OldLogProb` fills it.

    Raises:
        ValueError: ``turns`` is empty.
    """
    if not turns:
        raise ValueError("an episode without a step has no rows")
    same: dict[Any, Any] = {
        K.TASK_ID: NonTensorData(task_id),
        K.INSTRUCTION: NonTensorData(instruction),
        K.SOURCE: NonTensorData(source.value),
        K.STOP_REASON: NonTensorData(stop.value),
    }
    rows = []
    for step, turn in enumerate(turns):
        sampled = turn.response.log_probs.to(torch.float32)
        own = {
            K.GROUP_ID: torch.tensor(group_id),
            K.SLOT: torch.tensor(slot),
            K.STEP: torch.tensor(step),
            K.N_STEPS: torch.tensor(len(turns)),
            K.POLICY_VERSION: torch.tensor(policy_version),
            K.PROMPT_TOKENS: turn.prompt.tokens,
            K.RESPONSE_TOKENS: turn.response.tokens,
            K.ROLLOUT_LOG_PROB: sampled,
            K.OLD_LOG_PROB: sampled.clone() if plan_free else torch.full_like(sampled, torch.nan),
            K.RETURN: torch.tensor([reward], dtype=torch.float32),
            K.OFF_POLICY: torch.tensor([False]),
            K.SCREENSHOT: NonTensorData(turn.screenshot),
            K.RESPONSE: NonTensorData(turn.response.text),
            K.IMAGES: NonTensorData(turn.prompt.images),
        }
        rows.append(TensorDict(same | own, batch_size=[]))
    return stack_rows(rows)


def row_list(rows: TensorDictBase) -> list[TensorDictBase]:
    """The rows of a batch ``[R]`` as a list; the same objects when it is a lazy stack.

    Raises:
        ValueError: another number of batch dimensions.
    """
    if rows.batch_dims != 1:
        raise ValueError(
            f"expected rows [R], got batch size {list(rows.batch_size)}; GroupRows makes rows of a collector's batch, "
            "stack_rows([row]) a batch of a single row"
        )
    if not len(rows):
        return []
    if isinstance(rows, LazyStackedTensorDict):
        return list(rows.tensordicts)
    return list(rows.unbind(0))


def stack_rows(rows: Iterable[TensorDictBase]) -> TensorDictBase:
    """A lazy stack ``[R]`` of rows (ragged tokens stay ragged); an empty tensordict ``[0]`` of no rows."""
    members = list(rows)
    return cast(TensorDictBase, lazy_stack(members)) if members else TensorDict(batch_size=[0])


def mark_untrained(rows: Sequence[TensorDictBase], untrained: int) -> None:
    """Sets TRAINED ``[1]`` of an episode's rows, in step order: False for the first ``untrained`` ones."""
    for step, row in enumerate(rows):
        row.set(K.TRAINED, torch.tensor([step >= untrained]))


def is_trained(row: TensorDictBase) -> bool:
    """Whether a row has a loss: all but replayed ones, and those before a hand-over (TRAINED)."""
    return K.TRAINED not in row or bool(row.get(K.TRAINED))


def trained_rows(rows: TensorDictBase) -> TensorDictBase:
    """The rows of ``[R]`` that have a loss; the same object if all have."""
    kept = [row for row in row_list(rows) if is_trained(row)]
    return rows if len(kept) == len(rows) else stack_rows(kept)


def int_entry(row: TensorDictBase, key: str) -> int:
    """An integer entry of one row as an ``int``."""
    return int(cast(Tensor, row.get(key)))


@dataclass(slots=True)
class EpisodeRows:
    """The rows of one episode inside a batch, in step order."""

    group_id: int
    slot: int
    rows: list[TensorDictBase]

    @property
    def task_id(self) -> str:
        return cast(str, self.rows[0][K.TASK_ID])

    @property
    def reward(self) -> float:
        """R(tau), 0.0 or 1.0."""
        return float(cast(Tensor, self.rows[0].get(K.RETURN)))

    @property
    def valid(self) -> bool:
        """False when the infrastructure failed: such an episode has no return."""
        return bool(self.rows[0][K.STOP_REASON] != StopReason.env_error.value)

    @property
    def tokens(self) -> int:
        """Response tokens of the episode, |tau|."""
        return sum(cast(Tensor, row.get(K.RESPONSE_TOKENS)).shape[-1] for row in self.rows)


def episodes_of(batch: TensorDictBase) -> list[EpisodeRows]:
    """The episodes of a batch ``[R]``, sorted by group, slot and step; the rows may be in any order."""
    episodes: dict[tuple[int, int], list[TensorDictBase]] = {}
    for row in row_list(batch):
        episodes.setdefault((int_entry(row, K.GROUP_ID), int_entry(row, K.SLOT)), []).append(row)
    return [
        EpisodeRows(group, slot, sorted(episodes[group, slot], key=lambda row: int_entry(row, K.STEP)))
        for group, slot in sorted(episodes)
    ]


def groups_of(batch: TensorDictBase) -> Iterator[list[EpisodeRows]]:
    """The episodes of a batch ``[R]`` per group, sorted by group, slot and step; the rows may be in any order."""
    for _, members in groupby(episodes_of(batch), key=lambda episode: episode.group_id):
        yield list(members)


def contexts_of(rows: Sequence[TensorDictBase]) -> list[PromptContext]:
    """The prompt context at each of the S steps of an episode, without a plan.

    Args:
        rows: all rows of one episode, in step order.
    """
    screenshots = [cast(bytes, row[K.SCREENSHOT]) for row in rows]
    responses = [cast(str, row[K.RESPONSE]) for row in rows]
    tokens = [cast(Tensor, row.get(K.RESPONSE_TOKENS)) for row in rows]
    return step_contexts(cast(str, rows[0][K.INSTRUCTION]), screenshots, responses, tokens)


def step_contexts(
    instruction: str, screenshots: Sequence[bytes], responses: Sequence[str], tokens: Sequence[Tensor]
) -> list[PromptContext]:
    """The prompt context at each of the S steps of an episode, without a plan.

    Args:
        instruction: the task's.
        screenshots: PNG bytes before each response.
        responses: the texts.
        tokens: their token ids, int64 ``[L]`` each, end token included.
    """
    ids = [tuple(each.tolist()) for each in tokens]
    return [
        PromptContext(instruction, screenshots[: t + 1], responses[:t], response_tokens=ids[:t])
        for t in range(len(screenshots))
    ]
