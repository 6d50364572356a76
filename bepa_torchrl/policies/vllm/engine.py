"""A vLLM engine in its own process, with blocking calls that all have a deadline.

``AsyncLLM`` runs on an event loop in a thread of this process; the model is in a process that AsyncLLM starts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from bepa_torchrl.policies.vllm.errors import EngineError, WeightSyncError
from bepa_torchrl.policies.vllm.plugin import OWNER

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One row: a finished engine input (:mod:`.inputs`) and its sampling parameters."""

    prompt: Any
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One row's sampled tokens.

    Args:
        tokens: int64 ``[L]``.
        log_probs: float32 ``[L]``, nats, as the logits processor set them.
        prompt_tokens: number of tokens of the prompt.
        cached_tokens: how many of them were in the prefix cache.
    """

    tokens: Tensor
    log_probs: Tensor
    prompt_tokens: int
    cached_tokens: int


class EngineExited(EngineError):
    """The engine's process exited, or gave no output for too long.

    Args:
        finished: outputs of the rows that were complete, by row.
    """

    def __init__(self, message: str, finished: Mapping[int, EngineOutput]) -> None:
        super().__init__(message)
        self.finished = dict(finished)


class Engine:
    """One vLLM engine that can be started again after its process exited.

    Args:
        arguments: of vLLM's ``AsyncEngineArgs``, without the model.
        start_timeout: seconds until a start that has not finished is an error.
        stall_timeout: seconds without a finished row, or for one weight reload, until the engine counts as exited.
    """

    def __init__(
        self, arguments: Mapping[str, Any], *, start_timeout: float = 600.0, stall_timeout: float = 600.0
    ) -> None:
        self.arguments = dict(arguments)
        self.start_timeout, self.stall_timeout = start_timeout, stall_timeout
        self._llm: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._processes: list[Any] = []
        self._numbers = itertools.count()

    @property
    def running(self) -> bool:
        """Whether the engine was started and has not exited."""
        return self._llm is not None and not self._llm.errored

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes that the engine was started with (their own children are not listed)."""
        return [process.pid for process in self._processes]

    def start(self, model: Path) -> None:
        """Starts the engine on a checkpoint folder.

        Raises:
            EngineError: vLLM refuses the checkpoint or the arguments, or does not start in time.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm engine", daemon=True)
        self._thread.start()
        before = set(multiprocessing.active_children())

        async def make() -> Any:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), **self.arguments))

        try:
            with engine_environment(compiled=not self.arguments.get("enforce_eager", False)):
                self._llm = self._call(make(), self.start_timeout)
        except Exception as error:
            self._processes = list(set(multiprocessing.active_children()) - before)
            self.stop()
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            raise EngineError(f"vLLM did not start on {model}: {reason}; its own log has the details") from error
        self._processes = list(set(multiprocessing.active_children()) - before)

    def stop(self) -> None:
        """Ends the engine and its processes; does nothing if it is not running."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown(timeout=5.0)
        for process in self._processes:
            process.join(timeout=5.0)
            if process.is_alive():
                process.kill()
                process.join(timeout=5.0)
        self._processes = []
        if self._loop is not None and self._thread is not None:
            with suppress(FutureTimeoutError):
                self._call(_cancel_tasks(), 5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5.0)
            if not self._thread.is_alive():
                self._loop.close()
        self._loop = self._thread = None

    def generate(self, requests: Sequence[EngineRequest]) -> list[EngineOutput]:
        """One output per request, in order.

        Raises:
            EngineExited: the engine exited or stalled; has the outputs of the finished rows.
            ValueError: vLLM refuses a request.
        """
        if not self.running:
            raise EngineExited("the engine is not running", {})
        return self._call(self._generate(requests), None)

    def reload(self, model: Path) -> None:
        """Replaces the weights by those of a folder's safetensors files, and drops what was computed with the old ones.

        No request may be in flight.

        Raises:
            WeightSyncError: the engine refuses the weights or does not answer in time.
        """
        try:
            self._call(self._reload(model), self.stall_timeout)
        except FutureTimeoutError as error:
            raise WeightSyncError(f"the engine did not load {model} in {self.stall_timeout:g} s") from error
        except Exception as error:
            raise WeightSyncError(f"the engine did not load {model}: {error}") from error

    async def _reload(self, model: Path) -> None:
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
        await self._reset_caches()

    async def _reset_caches(self) -> None:
        """Drops image features and keys and values of the old weights, which would be used silently."""
        await self._llm.reset_mm_cache()
        await self._llm.reset_encoder_cache()
        if not await self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache was not reset; is a request in flight?")

    async def _generate(self, requests: Sequence[EngineRequest]) -> list[EngineOutput]:
        tasks = [asyncio.create_task(self._row(request)) for request in requests]
        waiting: set[asyncio.Task[EngineOutput]] = set(tasks)
        problem: BaseException | str | None = None
        while waiting and problem is None:
            done, waiting = await asyncio.wait(waiting, timeout=self.stall_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                problem = f"no row finished in {self.stall_timeout:g} s"
            problem = problem or next((task.exception() for task in done if task.exception() is not None), None)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if problem is None:
            return [task.result() for task in tasks]
        if isinstance(problem, BaseException) and not isinstance(problem, EngineDeadError | EngineGenerateError):
            raise problem
        finished = {
            row: task.result()
            for row, task in enumerate(tasks)
            if task.done() and not task.cancelled() and task.exception() is None
        }
        reason = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        raise EngineExited(f"vLLM's engine exited: {reason}", finished)

    async def _row(self, request: EngineRequest) -> EngineOutput:
        final = None
        async for output in self._llm.generate(request.prompt, request.params, f"row-{next(self._numbers)}"):
            final = output
        if final is None:
            raise EngineDeadError()
        (sampled,) = final.outputs
        tokens = list(sampled.token_ids)
        log_probs = [entry[token].logprob for entry, token in zip(sampled.logprobs or (), tokens, strict=True)]
        return EngineOutput(
            torch.tensor(tokens, dtype=torch.int64),
            torch.tensor(log_probs, dtype=torch.float32),
            len(final.prompt_token_ids or ()),
            final.num_cached_tokens or 0,
        )

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Runs a coroutine on the engine's loop. None: the coroutine has its own deadline."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            future.cancel()
            raise


async def _cancel_tasks() -> None:
    """Ends the tasks that AsyncLLM left on the loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def engine_environment(*, compiled: bool) -> Iterator[None]:
    """Variables that vLLM reads when an engine starts; a user's own values are kept.

    Args:
        compiled: whether the model is compiled. Without it vLLM would still compile helpers, a minute of g++ on a CPU.
    """
    defaults = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" takes every core, next to training
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if not compiled:
        defaults["TORCHDYNAMO_DISABLE"] = "1"
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    added[OWNER] = str(os.getpid())
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
