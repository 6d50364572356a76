"""RolloutService: one policy for many workers. Weights change only while nothing is sampled.

Most policies are used by one thread, which batches what waits. An engine that forms its own batches
(:attr:`~bepa_torchrl.policies.base.EngineSampler.concurrent`) is called by every caller at once, so that a turn does
not wait for the turns of others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, PromptRenderer, Sampler
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.rollouts.gate import Gate
from bepa_torchrl.scale.rollouts.thread_dump import waiting_threads
from osworld_gym.types import PromptContext

ANSWER_SECONDS = 300.0  #: deadline of a call, unless another is given
_STOP_SECONDS = 30.0
_CLOSED = "the rollout service is closed"


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
        """As :meth:`bepa_torchrl.policies.base.PromptRenderer.render`."""

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        """Responses, and the version of the weights that sampled them."""


class RolloutService:
    """Answers many callers: by one thread, which alone uses the policy, or by theirs if the policy is concurrent.

    Args:
        policy: acts; nothing else may use it. An engine's is closed with the service.
        max_rows: rows per call of the policy, unless it is concurrent: then an engine has a bound of its own.
        deadline: seconds until a caller gets TimeoutError; loading waits as long for running calls of an engine.
        require_weights: whether nothing is sampled before the first :meth:`load_weights`.
    """

    def __init__(
        self,
        policy: Sampler,
        *,
        max_rows: int = 64,
        deadline: float = ANSWER_SECONDS,
        require_weights: bool = False,
    ) -> None:
        self._policy, self._max_rows, self._deadline = policy, max_rows, deadline
        self._concurrent = isinstance(policy, EngineSampler) and policy.concurrent
        self._gate = Gate(_CLOSED)
        self._loaded = threading.Event()
        if not require_weights:
            self._loaded.set()
        self._failure: Exception | None = None
        self._counting = threading.Lock()
        self._sampling = self._answered = (
            0  #: rows that are sampled or wait; and that were sampled since the last count
        )
        self._closing, self._closed = threading.Lock(), False
        self._requests: queue.SimpleQueue[_Request | _Weights | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="rollout service", daemon=True)
        self._thread.start()

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context. Raises TimeoutError, or as the policy does."""
        return self._ask(_Request(("render", 0.0), [(context,) for context in contexts]))[0]

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        """Responses and the weights' version.

        Raises:
            TimeoutError: no weights were loaded in time, or the policy's thread gave no answer in time; a call of a
                concurrent policy has the policy's own deadlines.
            EngineError: the last weights could not be loaded, or the engine has failed: ask another service.
            RuntimeError: the service is closed; or as the policy does.
        """
        with self._counted(len(prompts)):
            return self._sample(prompts, keys, temperature)

    def _sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        if not self._loaded.wait(self._deadline):
            raise TimeoutError(f"no weights were loaded in {self._deadline:g} s; has the trainer ended?")
        if not self._concurrent:
            return self._ask(_Request(("sample", temperature), list(zip(prompts, keys, strict=True))))
        with self._gate.passing(self._deadline):
            self._check_usable()
            try:
                return self._policy.sample(prompts, keys, temperature=temperature), self._policy.version
            except EngineError as error:
                self._failure = error
                raise

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Loads weights when nothing is sampled, and returns when whatever is sampled next uses them.

        After an error nothing is sampled until other weights were loaded: the policy may have either.

        Raises:
            TimeoutError: not in time. RuntimeError: the policy has another version afterwards. Or as the policy does,
                which verifies an engine's weights.
        """
        request = _Weights(dict(weights), version)
        self._put(request)
        request.result.result(2 * self._deadline if self._concurrent else self._deadline)

    @contextmanager
    def _counted(self, rows: int) -> Iterator[None]:
        with self._counting:
            self._sampling += rows
        try:
            yield
            with self._counting:
                self._answered += rows
        finally:
            with self._counting:
                self._sampling -= rows

    def requests(self) -> int | None:
        """Rows that are sampled or wait for it; None: none can be sampled before other weights are loaded."""
        return self._sampling if self._loaded.is_set() and self._failure is None else None

    def drain_answered(self) -> int:
        """Rows that were sampled since the last call."""
        with self._counting:
            answered, self._answered = self._answered, 0
        return answered

    def failure(self) -> str | None:
        """Why nothing is sampled any more; None: nothing is wrong."""
        return None if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"

    def version(self) -> int:
        """Optimiser steps of the weights that are loaded."""
        return self._policy.version

    def engine_metrics(self) -> dict[str, float]:
        """The engine's metrics since the last call; empty without an engine."""
        return self._policy.drain_metrics() if isinstance(self._policy, EngineSampler) else {}

    def describe(self) -> dict[str, Any]:
        """What this service does and waits for, as JSON-compatible values."""
        state = {"version": self.version(), "requests": self._requests.qsize(), "failure": self.failure()}
        return state | {"threads": waiting_threads()}

    def close(self) -> None:
        """Ends the thread after the requests that wait, then the policy's engine, if it has one."""
        with self._closing:
            self._closed = True
            self._requests.put(None)
        self._thread.join(_STOP_SECONDS)
        self._gate.end(_STOP_SECONDS)  # calls that have not ended by then end with the engine
        if isinstance(self._policy, EngineSampler):
            self._policy.close()

    def _check_usable(self) -> None:
        """Is called when no weights can be loaded any more before the sampling. Raises EngineError after a failure."""
        if self._failure is not None:
            raise EngineError(f"the rollout service has failed: {self._failure}") from self._failure

    def _ask(self, request: _Request) -> tuple[list[Any], int]:
        self._put(request)
        return request.result.result(self._deadline)

    def _put(self, request: _Request | _Weights) -> None:
        with self._closing:
            if self._closed:
                raise RuntimeError(_CLOSED)
            self._requests.put(request)

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
            with self._gate.closed(self._deadline):
                self._policy.load_weights(request.weights.items(), version=request.version)
                if self._policy.version != request.version:
                    raise RuntimeError(f"version {request.version} was loaded, the policy has {self._policy.version}")
        except Exception as error:  # noqa: BLE001  raised in the caller
            self._failure = error
            self._loaded.set()
            request.result.set_exception(error)
        else:
            self._failure = None
            self._loaded.set()
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
                if isinstance(error, EngineError):
                    self._failure = self._failure or error
                for request in same:
                    request.result.set_exception(error)
                continue
            for request in same:
                request.result.set_result((answers[: len(request.rows)], self._policy.version))
                answers = answers[len(request.rows) :]

    def _call(self, kind: tuple[str, float], rows: list[tuple[Any, ...]]) -> list[Any]:
        method, temperature = kind
        if method == "render":
            return list(self._policy.renderer.render([context for (context,) in rows]))
        self._check_usable()
        return list(
            self._policy.sample([prompt for prompt, _ in rows], [key for _, key in rows], temperature=temperature)
        )


class ServedSampler:
    """A :class:`~bepa_torchrl.policies.base.Sampler` whose responses come from a service.

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

    @property
    def renderer(self) -> PromptRenderer:
        """The service, which renders too, so that a worker needs no tokenizer."""
        return self._service

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
