"""Calls of a rollout service in another process: each screenshot is sent to it once, however many turns show it.

The SHA-256 of an image is in its place in what crosses; the token ids cross as compressed bytes. Every turn's whole
history would otherwise cross three times: to be rendered, as the prompt that comes back, and to be sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.scale.rollouts.rollout_service import RolloutClient
from bepa_torchrl.scale.wire.content import BlobStore, KnownBlobs, content_hash, pack_array, unpack_array
from osworld_gym.types import PromptContext

STORE_BYTES = 1 << 30  #: of the images that a service keeps; what it has dropped is sent again
_TOKENS, _WHERE = "<i8", "a rollout service"


@dataclass(frozen=True, slots=True)
class NamedPrompt:
    """A prompt with compressed token ids, and the hashes of its images in their order."""

    tokens: bytes
    images: tuple[bytes, ...]

    @classmethod
    def of(cls, prompt: Prompt) -> NamedPrompt:
        """What crosses of a prompt."""
        return cls(pack_array(prompt.tokens.numpy(), _TOKENS), tuple(map(content_hash, prompt.images)))

    def whole(self, images: Mapping[bytes, bytes]) -> Prompt:
        """The prompt; ``images`` by hash. Raises ProtocolError or KeyError: not of :meth:`of`, or without an image."""
        tokens = torch.from_numpy(unpack_array(self.tokens, _TOKENS))
        return Prompt(tokens, tuple(images[name] for name in self.images))


class NamedCalls(Protocol):
    """The calls of :class:`NamedService`, each with the content that it may lack."""

    def render_named(self, contexts: Sequence[PromptContext], new: Sequence[bytes]) -> dict[str, Any]: ...
    def sample_named(
        self, prompts: Sequence[NamedPrompt], keys: Sequence[tuple[int, ...]], temperature: float, new: Sequence[bytes]
    ) -> dict[str, Any]: ...


class NamedService:
    """Answers :class:`NamingClient` in the service's process: ``{"missing": hashes}`` if it lacks an image.

    Args:
        service: the rollout service.
        limit: bytes of images that are kept; the least recently used are dropped.
    """

    def __init__(self, service: RolloutClient, limit: int = STORE_BYTES) -> None:
        self._service, self.images = service, BlobStore(limit)

    def render_named(self, contexts: Sequence[PromptContext], new: Sequence[bytes]) -> dict[str, Any]:
        """``prompts``: :class:`NamedPrompt` or None, of contexts with hashes in place of their screenshots."""
        images, missing = self.images.collect((name for each in contexts for name in each.screenshots), new)
        if missing:
            return {"missing": missing}
        whole = [replace(each, screenshots=tuple(images[name] for name in each.screenshots)) for each in contexts]
        prompts = self._service.render(whole)
        return {"prompts": [None if prompt is None else NamedPrompt.of(prompt) for prompt in prompts]}

    def sample_named(
        self, prompts: Sequence[NamedPrompt], keys: Sequence[tuple[int, ...]], temperature: float, new: Sequence[bytes]
    ) -> dict[str, Any]:
        """``responses``, and the ``version`` of the weights that sampled them."""
        images, missing = self.images.collect((name for each in prompts for name in each.images), new)
        if missing:
            return {"missing": missing}
        responses, version = self._service.sample([each.whole(images) for each in prompts], keys, temperature)
        return {"responses": responses, "version": version}


class NamingClient:
    """A :class:`~bepa_torchrl.scale.rollouts.rollout_service.RolloutClient` of one service, for many threads.

    Args:
        calls: how the service is reached.
    """

    def __init__(self, calls: NamedCalls) -> None:
        self._calls, self._known = calls, KnownBlobs()

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context, whose images are the context's objects. Raises as the service does."""
        images = {content_hash(image): image for each in contexts for image in each.screenshots}
        named = [replace(each, screenshots=tuple(map(content_hash, each.screenshots))) for each in contexts]
        answer = self._known.ask(images, lambda new: self._calls.render_named(named, new), _WHERE)
        return [None if prompt is None else prompt.whole(images) for prompt in answer["prompts"]]

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        """Responses, and the version of the weights that sampled them. Raises as the service does."""
        images = {content_hash(image): image for prompt in prompts for image in prompt.images}
        named = [NamedPrompt.of(prompt) for prompt in prompts]
        answer = self._known.ask(
            images, lambda new: self._calls.sample_named(named, list(keys), temperature, new), _WHERE
        )
        return answer["responses"], answer["version"]
