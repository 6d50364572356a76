"""Between a worker and a rollout service each screenshot crosses once; answers are those of the service itself."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.scale.rollouts.named_images import NamedService, NamingClient
from bepa_torchrl.scale.wire.errors import ProtocolError
from osworld_gym.types import PromptContext

SIZE, TURNS = 20_000, 6
SHOTS = tuple(bytes([number]) * SIZE for number in range(TURNS))


class Policy:
    """Renders a token per screenshot; its response is as long as the prompt."""

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return [
            Prompt(torch.full((len(each.screenshots),), 151655), each.screenshots) if each.screenshots else None
            for each in contexts
        ]

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        lengths = [sum(image[0] for image in each.images) for each in prompts]
        texts = [f"{key} {temperature} {length}" for key, length in zip(keys, lengths, strict=True)]
        return [Response(text, torch.arange(2), torch.zeros(2)) for text in texts], 7


class Pickled:
    """The calls of a service as Ray sends them; counts their bytes."""

    def __init__(self, service: NamedService) -> None:
        self.service, self.bytes = service, 0
        self.before: Callable[[], None] = lambda: None

    def _call(self, method: str, *arguments: Any) -> dict[str, Any]:
        self.before()
        sent = pickle.dumps(arguments)
        answer = pickle.dumps(getattr(self.service, method)(*pickle.loads(sent)))
        self.bytes += len(sent) + len(answer)
        found: dict[str, Any] = pickle.loads(answer)
        return found

    def render_named(self, *arguments: Any) -> dict[str, Any]:
        return self._call("render_named", *arguments)

    def sample_named(self, *arguments: Any) -> dict[str, Any]:
        return self._call("sample_named", *arguments)


def context(turn: int) -> PromptContext:
    return PromptContext("open the lamp", SHOTS[:turn], ("a",) * (turn - 1), None, ())


def play(client: NamingClient) -> list[str]:
    """An episode; every prompt has the context's own objects."""
    texts = []
    for turn in range(1, TURNS + 1):
        (prompt,) = client.render([context(turn)])
        assert prompt is not None
        assert all(one is other for one, other in zip(prompt.images, SHOTS[:turn], strict=True))
        assert torch.equal(prompt.tokens, torch.full((turn,), 151655))
        (response,), version = client.sample([prompt], [(1, turn)], 0.5)
        assert version == 7
        texts.append(response.text)
    return texts


EXPECTED = [f"(1, {turn}) 0.5 {sum(range(turn))}" for turn in range(1, TURNS + 1)]


def test_each_screenshot_crosses_once() -> None:
    calls = Pickled(NamedService(Policy()))
    assert play(NamingClient(calls)) == EXPECTED
    history = SIZE * sum(range(1, TURNS + 1))
    assert SIZE * TURNS < calls.bytes < SIZE * (TURNS + 1)
    assert calls.bytes < 3 * history / 8
    assert NamingClient(calls).render([PromptContext("", (), (), None, ())]) == [None]  # it does not fit


def test_a_service_that_has_dropped_or_lost_its_images_gets_them_again() -> None:
    calls = Pickled(NamedService(Policy()))
    client = NamingClient(calls)
    assert play(client) == EXPECTED
    calls.before = calls.service.images.clear  # started again before each call
    assert play(client) == EXPECTED
    calls.before = lambda: None
    calls.service = NamedService(Policy(), limit=2 * SIZE)
    assert play(client) == EXPECTED


def test_many_threads_share_a_client() -> None:
    client, found = NamingClient(Pickled(NamedService(Policy()))), list[list[str]]()
    threads = [threading.Thread(target=lambda: found.append(play(client))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert found == [EXPECTED] * 6


def test_what_is_not_understood_is_refused() -> None:
    class Forgetful:
        def render_named(self, *_: Any) -> dict[str, Any]:
            return {"missing": [b"x"]}

        sample_named = render_named

    with pytest.raises(ProtocolError, match="a rollout service does not keep the content that it is sent"):
        NamingClient(Forgetful()).render([context(1)])
    with pytest.raises(ProtocolError, match="expected an array of <i8"):
        NamedService(Policy()).sample_named([{"tokens": b"damaged", "images": []}], [(0,)], 0.5, [])
