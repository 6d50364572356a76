"""Calls of a rollout service in another process: each screenshot is sent to it once, however many turns show it.

The SHA-256 of an image is in its place in what crosses; the token ids cross as compressed bytes. Every turn's whole
history would otherwise cross three times: to be rendered, as the prompt that comes back, and to be sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.scale.rollouts.rollout_service import RolloutClient
from bepa_torchrl.scale.wire.content import BlobStore, KnownBlobs
from bepa_torchrl.scale.wire.prompts import ImageNames, decode_prompt, encode_prompt
from osworld_gym.types import PromptContext

STORE_BYTES = 1 << 30  #: of the images that a service keeps; what it has dropped is sent again
_WHERE = "a rollout service"
NamedPrompt: TypeAlias = dict[str, Any]  #: of :func:`~bepa_torchrl.scale.wire.prompts.encode_prompt`


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
        """``prompts``: named ones or None, of contexts with hashes in place of their screenshots."""
        images, missing = self.images.collect((name for each in contexts for name in each.screenshots), new)
        if missing:
            return {"missing": missing}
        whole = [replace(each, screenshots=tuple(images[name] for name in each.screenshots)) for each in contexts]
        prompts, names = self._service.render(whole), ImageNames()
        return {"prompts": [None if prompt is None else encode_prompt(prompt, names) for prompt in prompts]}

    def sample_named(
        self, prompts: Sequence[NamedPrompt], keys: Sequence[tuple[int, ...]], temperature: float, new: Sequence[bytes]
    ) -> dict[str, Any]:
        """``responses``, and the ``version`` of the weights that sampled them."""
        images, missing = self.images.collect((name for each in prompts for name in each["images"]), new)
        if missing:
            return {"missing": missing}
        responses, version = self._service.sample([decode_prompt(each, images) for each in prompts], keys, temperature)
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
        names = ImageNames()
        named = [replace(each, screenshots=tuple(names[image] for image in each.screenshots)) for each in contexts]
        images = names.blobs()
        answer = self._known.ask(images, lambda new: self._calls.render_named(named, new), _WHERE)
        return [None if prompt is None else decode_prompt(prompt, images) for prompt in answer["prompts"]]

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        """Responses, and the version of the weights that sampled them. Raises as the service does."""
        names = ImageNames()
        named = [encode_prompt(prompt, names) for prompt in prompts]
        answer = self._known.ask(
            names.blobs(), lambda new: self._calls.sample_named(named, list(keys), temperature, new), _WHERE
        )
        return answer["responses"], answer["version"]
