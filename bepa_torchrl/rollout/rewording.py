"""New words for the same actions: a refresh of the cache in one of its two parts, as a control. Not in the paper.

A refresh by the policy's newer success changes two things, the actions and the words around them. With ``wording``
the cached trace keeps its screens and actions, and gets the thoughts that the current policy has there without a plan.
With ``actions`` the newer success enters with its screens and actions, and with the thoughts that the current policy
has there with the expert's plan in the prompt, as LEVEL-1's were thought. docs/definitions.md, "Refresh in parts".
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from PIL import Image
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Response
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.data.step_rows import row_list, stack_rows, step_contexts
from bepa_torchrl.policies.base import ModelSampler
from osworld_gym.action_text import action_text
from osworld_gym.counts import check_count
from osworld_gym.errors import ParseError
from osworld_gym.types import Action, Point, PromptContext
from osworld_gym.uitars.coords import ImageScaling

PARTS = ("wording", "actions")
NEAR = 0.02  #: of the screen's width and height: the largest distance of two points that mean the same


@dataclass(slots=True)
class _Draft:
    """A trace whose responses are being written again, step by step."""

    rows: list[TensorDictBase]
    key: int
    plan: str | None
    texts: list[str] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    reworded: int = 0

    @property
    def screenshots(self) -> list[bytes]:
        return [cast(bytes, row[K.SCREENSHOT]) for row in self.rows]

    def context(self) -> PromptContext:
        """Of the next step: the responses so far are the new ones."""
        step = len(self.texts)
        return PromptContext(
            cast(str, self.rows[0][K.INSTRUCTION]),
            self.screenshots[: step + 1],
            tuple(self.texts),
            plan=self.plan,
            response_tokens=[tuple(each.tolist()) for each in self.tokens],
        )


class Rewording:
    """Writes the thoughts of traces again with the current policy; actions and screens stay.

    Step by step, ``tries`` responses are sampled at the trace's screen, after the trace's own new responses. The first
    that acts as the trace does (:func:`same_actions`) gives its thought: so a thought belongs to its action, and is
    distributed as the policy's thoughts before such an action. The new response is that thought and the trace's parsed
    actions, written by the protocol's ``format_response``. If none acts so, or the trace's response cannot be parsed,
    the step's response stays as it is. A trace without a new thought, or that no longer fits the model's context, stays
    as a whole, its policy version included.

    Args:
        policy: samples; its version is that of the new rows.
        part: ``wording`` (prompts without a plan) or ``actions`` (with the expert's plan where there is one).
        protocol: name of the policy's text protocol, see :data:`osworld_gym.action_text.ACTION_TEXTS`.
        seed: the run's seed. The responses depend on it, on the key of the trace, the step and the weights only.
        plans: task id → the expert's plan, for ``actions``.
        tries: responses sampled at each step.
        temperature: the temperature of the sampling.

    Raises:
        ValueError: an unknown ``part`` or ``protocol``, or ``tries`` below 1.
    """

    def __init__(
        self,
        policy: ModelSampler,
        part: str,
        *,
        protocol: str,
        seed: int,
        plans: Mapping[str, str] | None = None,
        tries: int = 4,
        temperature: float = 1.0,
    ) -> None:
        if part not in PARTS:
            raise ValueError(f"part must be one of {', '.join(PARTS)}; got {part!r}")
        check_count("tries", tries)
        self.policy, self.part, self.tries, self.temperature = policy, part, tries, temperature
        self._text, self._seed = action_text(protocol), derive_seed(seed, Stream.REWORDING)
        self._plans = dict(plans or {}) if part == "actions" else {}

    def __call__(self, traces: Mapping[int, TensorDictBase]) -> dict[int, tuple[TensorDictBase, float]]:
        """Each trace with its new thoughts, and the share of its steps that have one, in [0, 1].

        Args:
            traces: key → rows ``[S]`` of a success. The rows are not changed. A key must not come back in a run:
                the id of the group that refreshes.

        Returns:
            Per key rows ``[S]`` as they were, but for response, prompt (without a plan) and POLICY_VERSION; both
            log-probs are NaN, since the policy did not sample these responses as they stand.
        """
        drafts = []
        for key, trace in traces.items():
            rows = row_list(trace)
            drafts.append(_Draft(rows, key, self._plans.get(cast(str, rows[0][K.TASK_ID]))))
        while active := [draft for draft in drafts if len(draft.texts) < len(draft.rows)]:
            self._step(active)
        return {draft.key: self._finished(traces[draft.key], draft) for draft in drafts}

    def _step(self, drafts: Sequence[_Draft]) -> None:
        """Writes the next response of each draft."""
        prompts = self.policy.renderer.render([draft.context() for draft in drafts])
        fitting = [(draft, prompt) for draft, prompt in zip(drafts, prompts, strict=True) if prompt is not None]
        asked = [pair for pair in fitting for _ in range(self.tries)]
        keys = [
            (self._seed, draft.key, len(draft.texts), number) for draft, _ in fitting for number in range(self.tries)
        ]
        found = self.policy.sample([prompt for _, prompt in asked], keys, temperature=self.temperature)
        offered: dict[int, list[Response]] = {draft.key: [] for draft in drafts}
        for (draft, _), response in zip(asked, found, strict=True):
            offered[draft.key].append(response)
        for draft in drafts:
            row = draft.rows[len(draft.texts)]
            text = self._reworded(row, offered[draft.key])
            draft.reworded += text is not None
            old = cast(Tensor, row.get(K.RESPONSE_TOKENS))
            draft.tokens.append(old if text is None else self.policy.renderer.encode_response(text))
            draft.texts.append(cast(str, row[K.RESPONSE]) if text is None else text)

    def _reworded(self, row: TensorDictBase, offered: Sequence[Response]) -> str | None:
        """The step's new response; None: it stays."""
        actions = self._actions(cast(str, row[K.RESPONSE]))
        if actions is None:
            return None
        size = _size(cast(bytes, row[K.SCREENSHOT]))
        for response in offered:
            other = self._actions(response.text)
            if other is not None and same_actions(actions, other, self.policy.renderer.image_scaling, size):
                try:
                    return self._text.format_response(self._text.thought_of(response.text), actions)
                except ValueError:  # the protocol reads these actions and has no form for them
                    return None
        return None

    def _actions(self, text: str) -> tuple[Action, ...] | None:
        try:
            return self._text.parse(text).actions
        except ParseError:
            return None

    def _finished(self, trace: TensorDictBase, draft: _Draft) -> tuple[TensorDictBase, float]:
        """The rows with the draft's responses, and the share of new thoughts; or the trace itself, and 0."""
        if not draft.reworded:
            return trace, 0.0
        contexts = step_contexts(cast(str, draft.rows[0][K.INSTRUCTION]), draft.screenshots, draft.texts, draft.tokens)
        prompts = self.policy.renderer.render(contexts)
        new = []
        for row, prompt, text, tokens in zip(draft.rows, prompts, draft.texts, draft.tokens, strict=True):
            if prompt is None:
                return trace, 0.0
            fresh = row.clone(recurse=False)
            fresh.set(K.PROMPT_TOKENS, prompt.tokens)
            fresh.set_non_tensor(K.IMAGES, prompt.images)
            fresh.set(K.RESPONSE_TOKENS, tokens)
            fresh.set_non_tensor(K.RESPONSE, text)
            unknown = torch.full((tokens.shape[-1],), torch.nan, dtype=torch.float32)
            fresh.set(K.ROLLOUT_LOG_PROB, unknown)
            fresh.set(K.OLD_LOG_PROB, unknown.clone())
            fresh.set(K.POLICY_VERSION, torch.tensor(self.policy.version))
            new.append(fresh)
        return stack_rows(new), draft.reworded / len(draft.rows)


def same_actions(
    one: Sequence[Action], other: Sequence[Action], scaling: ImageScaling, screen_size: tuple[int, int]
) -> bool:
    """Whether two responses act alike: equal actions, but for points up to :data:`NEAR` of the screen apart.

    Args:
        one, other: parsed actions, points in the model's coordinates.
        scaling: from those to the screen's.
        screen_size: (width, height) in pixels.
    """
    if len(one) != len(other):
        return False
    return all(
        (a.kind, a.key, a.content, a.direction, a.clicks) == (b.kind, b.key, b.content, b.direction, b.clicks)
        and _near(a.start, b.start, scaling, screen_size)
        and _near(a.end, b.end, scaling, screen_size)
        for a, b in zip(one, other, strict=True)
    )


def _near(one: Point | None, other: Point | None, scaling: ImageScaling, size: tuple[int, int]) -> bool:
    if one is None or other is None:
        return one is other
    points = zip(scaling.to_screen(one, size), scaling.to_screen(other, size), size, strict=True)
    return all(abs(a - b) <= NEAR * extent for a, b, extent in points)


def _size(png: bytes) -> tuple[int, int]:
    """(width, height) in pixels."""
    with Image.open(io.BytesIO(png)) as image:
        return image.size
