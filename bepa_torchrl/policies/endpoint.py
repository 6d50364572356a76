"""A hosted model as a policy of an evaluation: chat messages to an OpenAI-compatible endpoint, responses as text.

It has no token ids and no log-probs, so that nothing can be trained on its episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.endpoint import ChatModel, RequestRefusedError, asked, image_part
from osworld_gym.action_text import action_text as protocol
from osworld_gym.types import PromptContext
from osworld_gym.uitars.format import add_box_tokens
from osworld_gym.uitars.history import check_history

_NO_TOKENS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class ChatPrompt(Prompt):
    """A prompt as an endpoint takes it. ``tokens`` is empty.

    Args:
        messages: the messages of the chat API, with the images as data URLs.
    """

    messages: tuple[dict[str, Any], ...]


class EndpointRenderer:
    """A :class:`bepa_torchrl.policies.base.PromptRenderer` whose prompts are chat messages.

    The endpoint applies its own chat template, and resizes the images. Past responses of UI-TARS get their box tokens
    back (:func:`osworld_gym.uitars.format.add_box_tokens`). The arguments are as of
    :class:`bepa_torchrl.policies.transformers.renderer.ChatRenderer`.

    Raises:
        ValueError: an unknown action text or history.
    """

    def __init__(self, action_text: str, *, preset: str, history: str, history_images: int | None) -> None:
        check_history(history, history_images)
        self.preset, self.history, self.history_images = preset, history, history_images
        self._build_messages = protocol(action_text).build_messages
        self._adds_box_tokens = action_text == "uitars"

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context, never None: only the endpoint knows how many tokens it has."""
        return [self._prompt(context) for context in contexts]

    def _prompt(self, context: PromptContext) -> ChatPrompt:
        if self._adds_box_tokens:
            context = replace(context, responses=tuple(map(add_box_tokens, context.responses)))
        built = self._build_messages(
            context, preset=self.preset, history=self.history, history_images=self.history_images
        )
        parts = [part for message in built for part in message["content"]]
        images = tuple(part["image"] for part in parts if part["type"] == "image")
        messages = ({"role": each["role"], "content": [_api_part(part) for part in each["content"]]} for each in built)
        return ChatPrompt(_NO_TOKENS, images, tuple(messages))


class EndpointSampler:
    """A :class:`bepa_torchrl.policies.base.Sampler` for evaluations; the responses have no tokens.

    A request that the endpoint refuses (too long, too many images, filtered) has an empty response, and its episode is
    named by :meth:`refusal`: it is no result of the policy. Any other failure ends the evaluation.

    Args:
        model: is asked, with its own temperature; it must not keep its answers.
        renderer: makes the prompts.
    """

    version = 0

    def __init__(self, model: ChatModel, renderer: EndpointRenderer) -> None:
        if model.cache is not None:
            raise ValueError("EndpointSampler: expected a model without a cache, which would repeat its responses")
        self.model, self.renderer = model, renderer
        self._refused: dict[tuple[int, ...], str] = {}

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """One response per prompt, in order.

        Args:
            prompts: the prompts of the renderer.
            keys: as of every sampler; the endpoint has no seeds, so that a sample cannot be repeated.
            temperature: that of the model; a reasoning model, which takes none, ignores it.

        Raises:
            EndpointError: the endpoint gives no answer, or refused every request so far.
            ValueError: another temperature.
        """
        endpoint = self.model.endpoint
        if not endpoint.reasoning and temperature != endpoint.temperature:
            raise ValueError(f"{endpoint.model}: expected temperature={endpoint.temperature:g}, got {temperature:g}")
        texts = dict(asked(range(len(prompts)), lambda n: self._ask(prompts[n], keys[n]), at_once=endpoint.at_once))
        return [Response(texts[n], _NO_TOKENS, torch.empty(0)) for n in range(len(prompts))]

    def refusal(self, key: tuple[int, ...]) -> str | None:
        """Why a request of the episode with this seed key was refused; None: none was."""
        return self._refused.get(key)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> NoReturn:  # noqa: ARG002
        """Raises RuntimeError: the weights are the endpoint's."""
        raise RuntimeError(f"{self.model.endpoint.model} is behind an endpoint, whose weights cannot be replaced")

    def _ask(self, prompt: Prompt, key: tuple[int, ...]) -> str:
        assert isinstance(prompt, ChatPrompt)
        try:
            return self.model.ask(prompt.messages, lambda text: text, what="response")
        except RequestRefusedError as error:
            if self.model.usage.requests == 0:
                raise  # the first request of all: rather a wrong option than this prompt
            self._refused[key[:-1]] = str(error)
            return ""


def _api_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a message's content as the API has it, without token ids."""
    return image_part(part["image"]) if part["type"] == "image" else {"type": "text", "text": part["text"]}
