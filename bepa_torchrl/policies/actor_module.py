"""Wraps a sampler as a TensorDict module for stock TorchRL collectors; keeps the history of every episode.

:mod:`bepa_torchrl.rollout.group_rows` turns the collector's batches into training rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from bepa_torchrl.data import keys
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.policies.tensordict_io import screenshots
from osworld_gym.types import PromptContext

#: written by :func:`act` in addition to the action
ACTING_KEYS = (
    keys.PROMPT_TOKENS,
    keys.IMAGES,
    keys.RESPONSE_TOKENS,
    keys.ROLLOUT_LOG_PROB,
    keys.POLICY_VERSION,
    keys.CONTEXT_FULL,
)

#: of a finished row, and of one whose prompt does not fit
NO_RESPONSE = Response("", torch.empty(0, dtype=torch.int64), torch.empty(0))


@dataclass(slots=True)
class History:
    """History of a running episode: its screenshots, the current one last, and the responses to the earlier ones."""

    screenshots: list[bytes] = field(default_factory=list)
    responses: list[str] = field(default_factory=list)
    response_tokens: list[tuple[int, ...]] = field(default_factory=list)

    def context(self, instruction: str) -> PromptContext:
        """The prompt context of the next response."""
        return PromptContext(
            instruction,
            tuple(self.screenshots),
            tuple(self.responses),
            response_tokens=tuple(self.response_tokens),
        )


class EpisodeHistories:
    """Histories of running episodes, by (group_id, slot), or by row if the environment has no such keys.

    The end of an episode is not reported here, so the least recently used histories are dropped beyond ``least``
    episodes, or eight times the largest batch if that is more.

    Args:
        least: minimum number of histories kept.
    """

    def __init__(self, least: int = 256) -> None:
        self.least = least
        self._limit = least
        self._known: OrderedDict[Hashable, History] = OrderedDict()

    def observe(self, episode: Hashable, screenshot: bytes, *, first: bool, step: int | None) -> History:
        """The episode's history with the current screenshot added; a new one at its first step.

        Args:
            first: whether this is the episode's first step.
            step: number of earlier responses, if the environment counts them.

        Raises:
            RuntimeError: earlier steps of the episode were not observed.
        """
        history = History() if first else self._known.get(episode)
        if history is None or (step is not None and step != len(history.responses)):
            seen = 0 if history is None else len(history.responses)
            raise RuntimeError(
                f"episode {episode} is at step {step}, but this policy has seen {seen} of its steps; "
                "reset the environment, call one policy at every step of an episode, and give each environment that it "
                "serves its own seed"
            )
        history.screenshots.append(screenshot)
        self._known[episode] = history
        self._known.move_to_end(episode)
        return history

    def respond(self, episode: Hashable, response: Response) -> None:
        """Adds the response to the current screenshot."""
        history = self._known[episode]
        history.responses.append(response.text)
        history.response_tokens.append(tuple(response.tokens.tolist()))

    def make_room(self, rows: int) -> None:
        """Drops the least recently used histories before a batch of ``rows``."""
        self._limit = max(self._limit, 8 * rows)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)


class ActingModule(TensorDictModuleBase):
    """Makes any :class:`Sampler` usable in a stock collector, see :func:`act`.

    Args:
        policy: samples; its renderer makes the prompts.
        seed: sampling seed.
        temperature: sampling temperature; 0 is greedy.
        action_key: entry in which the response text is stored.
    """

    def __init__(self, policy: Sampler, *, seed: int = 0, temperature: float = 1.0, action_key: str = "action") -> None:
        super().__init__()
        self.in_keys = [keys.INSTRUCTION, keys.SCREENSHOT]
        self.out_keys = [action_key, *ACTING_KEYS]
        self.policy, self.seed, self.temperature = policy, seed, temperature
        self.histories = EpisodeHistories()
        self._calls = 0
        self._action_key = action_key

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds one response per row to ``tensordict``, see :func:`act`."""
        self._calls += 1
        return act(
            self.policy,
            tensordict,
            self.histories,
            seed=self.seed,
            call=self._calls,
            temperature=self.temperature,
            action_key=self._action_key,
        )


def act(
    policy: Sampler,
    tensordict: TensorDictBase,
    histories: EpisodeHistories,
    *,
    seed: int,
    call: int,
    temperature: float = 1.0,
    action_key: str = "action",
) -> TensorDictBase:
    """Adds a response to every row of an environment's batch of any shape.

    Reads ``instruction``, ``screenshot_png`` (bytes) or ``screenshot`` (uint8 ``[3, H, W]``), ``is_init``
    (``InitTracker``) or ``step_count``, and, if present, ``group_id``, ``slot`` and ``done``. Writes ``action_key``
    (str) and, for training, PROMPT_TOKENS, RESPONSE_TOKENS (int64), ROLLOUT_LOG_PROB (float32), each a tensor per row
    stored as a non-tensor entry, since lengths differ; IMAGES (tuple of bytes); POLICY_VERSION int64 ``[1]``;
    CONTEXT_FULL bool ``[1]``: the prompt does not fit the model.

    The seed key of a row is (seed, group_id, slot, step), so its sample depends on neither batch nor order; rows
    without a group use (seed, call, row). Finished rows and rows with CONTEXT_FULL get an empty response.

    Raises:
        ValueError: neither ``is_init`` nor ``step_count``; two rows with one group_id and slot, from environments with
            the same seed.
        RuntimeError: see :meth:`EpisodeHistories.observe`.
    """
    flat = tensordict.reshape(-1) if tensordict.batch_dims else tensordict.unsqueeze(0)
    running = [i for i, done in enumerate(_column(flat, "done") or [0] * len(flat)) if not done]
    pngs = screenshots(flat)
    histories.make_room(len(flat))
    contexts, seed_keys = [], []
    episodes, firsts, steps = _episodes(flat), _firsts(flat), _column(flat, "step_count")
    _check_distinct({i: episodes[i] for i in running})
    for i in running:
        step = None if steps is None else steps[i]
        history = histories.observe(episodes[i], pngs[i], first=firsts[i], step=step)
        contexts.append(history.context(flat[i][keys.INSTRUCTION]))
        grouped = episodes[i][0] != "row"
        seed_keys.append((seed, *episodes[i], len(history.responses)) if grouped else (seed, call, i))
    prompts = policy.renderer.render(contexts) if contexts else []
    fitting = [(i, p, key) for i, p, key in zip(running, prompts, seed_keys, strict=True) if p is not None]
    sampled = policy.sample([p for _, p, _ in fitting], [key for _, _, key in fitting], temperature=temperature)
    turns = {i: (prompt, response) for (i, prompt, _), response in zip(fitting, sampled, strict=True)}
    full = set(running) - set(turns)
    for i in running:
        histories.respond(episodes[i], NO_RESPONSE if i in full else turns[i][1])
    out = _outputs([turns.get(i) for i in range(len(flat))], full, policy.version, action_key)
    return tensordict.update(out.reshape(tensordict.batch_size) if tensordict.batch_dims else out[0])


def _outputs(
    turns: Sequence[tuple[Prompt, Response] | None], full: set[int], version: int, action_key: str
) -> TensorDict:
    """The entries that :func:`act` adds, ``[B]``; None: no response."""
    nothing = (Prompt(NO_RESPONSE.tokens, ()), NO_RESPONSE)
    rows = [turn or nothing for turn in turns]
    out = TensorDict({}, batch_size=[len(rows)])
    out[action_key] = NonTensorStack(*[response.text for _, response in rows])
    out[keys.PROMPT_TOKENS] = NonTensorStack(*[prompt.tokens for prompt, _ in rows])
    out[keys.IMAGES] = NonTensorStack(*[prompt.images for prompt, _ in rows])
    out[keys.RESPONSE_TOKENS] = NonTensorStack(*[response.tokens for _, response in rows])
    out[keys.ROLLOUT_LOG_PROB] = NonTensorStack(*[response.log_probs for _, response in rows])
    out[keys.POLICY_VERSION] = torch.full((len(rows), 1), version)
    out[keys.CONTEXT_FULL] = torch.tensor([[i in full] for i in range(len(rows))])
    return out


def _column(flat: TensorDictBase, key: str) -> list[int] | None:
    """An integer or bool entry ``[B, 1]`` as a list, or None if it is missing."""
    values = flat.get(key, None)
    return None if values is None else [int(value) for value in cast(Tensor, values).reshape(-1).tolist()]


def _firsts(flat: TensorDictBase) -> list[bool]:
    inits, steps = _column(flat, "is_init"), _column(flat, "step_count")
    if inits is None and steps is None:
        raise ValueError(
            "the policy keeps each episode's history and requires the key 'is_init' or 'step_count', got neither: "
            "append InitTracker() or StepCounter() to the environment (OSWorldEnv writes step_count)"
        )
    zeros = [0] * len(flat)
    ones = [1] * len(flat)
    return [bool(init) or step == 0 for init, step in zip(inits or zeros, steps or ones, strict=True)]


def _episodes(flat: TensorDictBase) -> list[tuple[Any, int]]:
    """Per row (group_id, slot), or ("row", i) if the environment has no groups."""
    groups, slots = _column(flat, "group_id"), _column(flat, "slot")
    if groups is None or slots is None:
        return [("row", i) for i in range(len(flat))]
    return [(g, s) if g >= 0 else ("row", i) for i, (g, s) in enumerate(zip(groups, slots, strict=True))]


def _check_distinct(episodes: Mapping[int, tuple[Any, int]]) -> None:
    """Raises ValueError if two rows run the same episode."""
    rows: dict[tuple[Any, int], int] = {}
    for row, episode in episodes.items():
        if episode in rows:
            raise ValueError(
                f"expected rows of different episodes, got group_id {episode[0]} and slot {episode[1]} in rows "
                f"{rows[episode]} and {row}: two environments have the same seed; call set_seed(...) of the SerialEnv, "
                "ParallelEnv or collector, which gives each worker its own, or make each OSWorldEnv with another seed="
            )
        rows[episode] = row
