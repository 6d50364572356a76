"""Rollout services as Ray actors: one that exits is started again, by Ray, and gets the current weights."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from torch import Tensor

from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.rollout.weight_sync import on_cpu
from bepa_torchrl.scale.rollouts.named_images import NamedPrompt, NamedService
from bepa_torchrl.scale.rollouts.ray_cluster import (
    CALLERS,
    CONTROL,
    CONTROLS,
    ActorClient,
    check_version,
    control,
    described,
)
from bepa_torchrl.scale.rollouts.rollout_service import ANSWER_SECONDS, RolloutService
from osworld_gym import __version__
from osworld_gym.errors import DesktopError
from osworld_gym.types import PromptContext

_log = logging.getLogger(__name__)
_START_SECONDS = 300.0  #: until a service's process has started and has made its policy
_STOP_SECONDS = 60.0  #: for a health check that is under way
_CLOSE_SECONDS = 120.0  #: for running calls, and the end of the policies' engines
_METRICS_SECONDS = 5.0


class _Service(RolloutService):
    """A rollout service that makes its policy in the actor's process and samples only after weights were loaded.

    A service that Ray has started again begins with the weights of ``make_policy``; it must not sample with them. All
    desktops' calls then wait in it for the weights, so that everything else has threads of its own.
    """

    def __init__(self, version: str, make_policy: Callable[[], Sampler], max_rows: int, answer_seconds: float) -> None:
        check_version(version)
        super().__init__(make_policy(), max_rows=max_rows, deadline=answer_seconds, require_weights=True)
        self._named = NamedService(self)

    def render_named(self, contexts: Sequence[PromptContext], new: Sequence[bytes]) -> dict[str, Any]:
        return self._named.render_named(contexts, new)

    def sample_named(
        self, prompts: Sequence[NamedPrompt], keys: Sequence[tuple[int, ...]], temperature: float, new: Sequence[bytes]
    ) -> dict[str, Any]:
        return self._named.sample_named(prompts, keys, temperature, new)

    @control
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        super().load_weights(weights, version)

    @control
    def engine_metrics(self) -> dict[str, float]:
        return super().engine_metrics()

    @control
    def requests(self) -> int | None:
        return super().requests()

    @control
    def drain_answered(self) -> int:
        return super().drain_answered()

    @control
    def describe(self) -> dict[str, Any]:
        return super().describe()

    @control
    def close(self) -> None:
        super().close()

    @control
    def state(self) -> tuple[int, bool, str | None]:
        """The actor's process id, whether it has weights, and why it samples nothing any more."""
        return os.getpid(), self._loaded.is_set(), self.failure()


class ServicePool:
    """A fixed number of rollout services with equal weights.

    Calls of a service that is being started again wait for it; an episode gets the same responses as without the
    restart, since they depend on the weights and the seed keys only.

    Args:
        make_policy: makes a policy that samples, in a service's process.
        replicas: number of services.
        max_rows: rows per call of a policy.
        answer_seconds: within which a policy answers a call.
        check_every: seconds between two health checks.
        resources: Ray's, per service, for example ``num_gpus=1``.
    """

    def __init__(
        self,
        make_policy: Callable[[], Sampler],
        *,
        replicas: int,
        max_rows: int = 64,
        answer_seconds: float = ANSWER_SECONDS,
        check_every: float = 2.0,
        **resources: Any,
    ) -> None:
        options = {"max_concurrency": CALLERS, "max_restarts": -1, "max_task_retries": -1, **resources}
        service: Any = ray.remote(concurrency_groups={CONTROL: CONTROLS})(_Service)
        actor = service.options(**options)
        arguments = (__version__, make_policy, max_rows, answer_seconds)
        self.actors: list[Any] = [actor.remote(*arguments) for _ in range(replicas)]
        #: deadline of a call from another process: a service may have to start first, and to load weights
        self.call_seconds = _START_SECONDS + 2 * answer_seconds
        self._current: tuple[Any, int] | None = None
        self._processes: dict[int, int] = {}
        self.restarts = 0
        self._lock = threading.Lock()  # weights are loaded by one thread at a time, so that older ones never come last
        self._stopping, self._check_every = threading.Event(), check_every
        self._thread = threading.Thread(target=self._watch, name="health of rollout services", daemon=True)
        self._thread.start()

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Loads weights into all services.

        Raises:
            DesktopError: a service has not loaded them in time, or cannot be started.
        """
        with self._lock:
            self._current = (ray.put(on_cpu(weights)), version)
            with ThreadPoolExecutor(len(self.actors)) as threads:
                list(threads.map(self._load, self.actors))

    def engine_metrics(self) -> list[dict[str, float]]:
        """Each engine's metrics since the last call; those of services that do not answer soon are left out."""
        return _answers([actor.engine_metrics.remote() for actor in self.actors], "metrics")

    def answered(self) -> list[int]:
        """Turns that each service has answered since the last call; those that do not answer soon are left out."""
        return _answers([actor.drain_answered.remote() for actor in self.actors], "counts of turns")

    def describe(self) -> dict[str, Any]:
        """What each service waits for."""
        return {f"service{number}": described(actor) for number, actor in enumerate(self.actors)}

    def stop(self) -> None:
        """Ends all services and the engines of their policies."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)
        ending = [actor.close.remote() for actor in self.actors]
        ray.wait(ending, num_returns=len(ending), timeout=_CLOSE_SECONDS)
        for actor in self.actors:
            ray.kill(actor)
        self._thread.join(_STOP_SECONDS)  # a call that still waited for a service ends with it

    def _load(self, actor: Any) -> None:
        assert self._current is not None
        ActorClient(actor, self.call_seconds, name="a rollout service").load_weights(*self._current)

    def _watch(self) -> None:
        asked: dict[int, Any] = {}
        while not self._stopping.wait(self._check_every):
            try:
                self._look(asked)
            except Exception:  # noqa: BLE001  without this thread a service that starts again would get no weights
                _log.exception("health of rollout services")

    def _look(self, asked: dict[int, Any]) -> None:
        """Asks every service that owes no answer, and reads the answers that are there."""
        for number, actor in enumerate(self.actors):
            if number not in asked:
                asked[number] = actor.state.remote()
        done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)
        for number in [number for number, ref in asked.items() if ref in done]:
            self._check(number, asked.pop(number))

    def _check(self, number: int, answer: Any) -> None:
        """Gives a service that was started again the current weights."""
        try:
            process, loaded, failure = ray.get(answer, timeout=_STOP_SECONDS)
            if self._processes.setdefault(number, process) != process:
                self._processes[number] = process
                self.restarts += 1
                _log.warning("rollout service %d was started again, in process %d", number, process)
            if failure is not None:
                _log.warning("rollout service %d is started again: %s", number, failure)
                ray.kill(self.actors[number], no_restart=False)
                return
            with self._lock:
                if not loaded and self._current is not None and not self._stopping.is_set():
                    self._load(self.actors[number])
        except (RayError, GetTimeoutError, DesktopError) as error:
            _log.warning("rollout service %d: %s", number, error)  # the next call of it raises


def _answers(asked: list[Any], what: str) -> list[Any]:
    """The answers that come soon."""
    done, late = ray.wait(asked, num_returns=len(asked), timeout=_METRICS_SECONDS)
    answers = []
    for answer in done:
        try:
            answers.append(ray.get(answer))
        except RayError as error:
            late.append(answer)
            _log.warning("no %s of a rollout service: %s", what, error)
    if late:
        _log.warning("the %s of %d of %d rollout services are missing", what, len(late), len(asked))
    return answers
