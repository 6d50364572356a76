"""RolloutService: one policy for many workers. It batches what waits; weights change between batches only."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.distributed.waiting import waiting_threads
from bepa_torchrl.policies.base import RolloutPolicy
from osworld_gym.types import PromptContext

_STOP_SECONDS = 30.0


@dataclass(slots=True)
class _Request:
    """Rows for one call of the policy.

    Args:
        kind: name of the policy's method, with the temperature; requests of equal kind share a call.
        rows: arguments per row.
    """

    kind: tuple[str, float]
    rows: list[tuple[Any, ...]]
    result: Future[tuple[list[Any], int]] = field(default_factory=Future)


@dataclass(slots=True)
class _Weights:
    weights: dict[str, Tensor]
    version: int
    result: Future[None] = field(default_factory=Future)


class RolloutClient(Protocol):
    """How a worker reaches a rollout service, in this process or in another."""

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """As :meth:`bepa_torchrl.policies.base.RolloutPolicy.render`."""

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        """Responses, and the version of the weights that sampled them."""


class RolloutService:
    """Answers many callers by one thread, which alone uses the policy.

    Args:
        policy: acts; nothing else may use it.
        max_rows: rows per call of the policy.
        deadline: seconds until a caller gets TimeoutError.
    """

    def __init__(self, policy: RolloutPolicy, *, max_rows: int = 64, deadline: float = 300.0) -> None:
        self._policy, self._max_rows, self._deadline = policy, max_rows, deadline
        self._requests: queue.SimpleQueue[_Request | _Weights | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="rollout service", daemon=True)
        self._thread.start()

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context. Raises TimeoutError, or as the policy does."""
        return self._ask(_Request(("render", 0.0), [(context,) for context in contexts]))[0]

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        """Responses and the weights' version. Raises TimeoutError, or as the policy does."""
        return self._ask(_Request(("sample", temperature), list(zip(prompts, keys, strict=True))))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Loads weights before the next batch. Raises TimeoutError, or as the policy does."""
        request = _Weights(dict(weights), version)
        self._requests.put(request)
        request.result.result(self._deadline)

    def version(self) -> int:
        """Optimiser steps of the weights that are loaded."""
        return self._policy.version

    def describe(self) -> dict[str, Any]:
        """What this service does and waits for, as JSON-compatible values."""
        return {"version": self.version(), "requests": self._requests.qsize(), "threads": waiting_threads()}

    def close(self) -> None:
        """Ends the thread after the requests that wait."""
        self._requests.put(None)
        self._thread.join(_STOP_SECONDS)

    def _ask(self, request: _Request) -> tuple[list[Any], int]:
        self._requests.put(request)
        return request.result.result(self._deadline)

    # --- the serving thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        waiting: list[_Request] = []
        while True:
            item = self._requests.get()
            while item is not None:
                if isinstance(item, _Weights):
                    self._answer(waiting)
                    waiting = []
                    self._load(item)
                else:
                    waiting.append(item)
                try:
                    item = self._requests.get_nowait()
                except queue.Empty:
                    break
            self._answer(waiting)
            waiting = []
            if item is None:
                return

    def _load(self, request: _Weights) -> None:
        try:
            self._policy.load_weights(request.weights.items(), version=request.version)
        except Exception as error:  # noqa: BLE001  raised in the caller
            request.result.set_exception(error)
        else:
            request.result.set_result(None)

    def _answer(self, requests: list[_Request]) -> None:
        for kind in dict.fromkeys(request.kind for request in requests):
            same = [request for request in requests if request.kind == kind]
            try:
                rows = [row for request in same for row in request.rows]
                answers: list[Any] = []
                for start in range(0, len(rows), self._max_rows):
                    answers += self._call(kind, rows[start : start + self._max_rows])
            except Exception as error:  # noqa: BLE001  raised in the callers
                for request in same:
                    request.result.set_exception(error)
                continue
            for request in same:
                request.result.set_result((answers[: len(request.rows)], self._policy.version))
                answers = answers[len(request.rows) :]

    def _call(self, kind: tuple[str, float], rows: list[tuple[Any, ...]]) -> list[Any]:
        method, temperature = kind
        if method == "render":
            return list(self._policy.render([context for (context,) in rows]))
        return list(
            self._policy.sample([prompt for prompt, _ in rows], [key for _, key in rows], temperature=temperature)
        )


class ServedPolicy:
    """A :class:`~bepa_torchrl.policies.base.RolloutPolicy` whose responses come from a service.

    ``versions`` has the version of each sampled response, in order, since the weights may change between two turns.
    """

    def __init__(self, service: RolloutClient) -> None:
        self._service = service
        self.versions: list[int] = []

    @property
    def version(self) -> int:
        """Of the last response; 0 before the first."""
        return self.versions[-1] if self.versions else 0

    @version.setter
    def version(self, _: int) -> None:
        raise AttributeError("the version is that of the service's weights")

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return self._service.render(contexts)

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        responses, version = self._service.sample(prompts, keys, temperature)
        self.versions += [version] * len(responses)
        return responses

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Raises TypeError: weights are loaded into the service."""
        raise TypeError(
            f"load version {version} into the service, not into a worker's policy ({len(dict(weights))} weights)"
        )
