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
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from bepa_torchrl.policies.allocator import chosen_here
from bepa_torchrl.policies.transformers.image_patches import ImagePatcher
from bepa_torchrl.scale.engine.arguments import engine_arguments
from bepa_torchrl.scale.engine.engine_interface import EngineExited, EngineOutput, EngineRow, EngineSpec
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.inputs import EngineInputs
from bepa_torchrl.scale.engine.keyed_logits import request_args
from bepa_torchrl.scale.engine.plugin import OWNER
from bepa_torchrl.scale.engine.sockets import close_sockets, end_context
from bepa_torchrl.scale.engine.weight_sync.choice import Transfer
from bepa_torchrl.scale.engine.weight_sync.stream import WeightStream
from bepa_torchrl.scale.engine.weight_sync.transfer import EngineTransfer, pickled_handles, transfer_arguments

_log = logging.getLogger(__name__)
T = TypeVar("T")
_DEVICES = "CUDA_VISIBLE_DEVICES"
_ALIVE = 1.0  #: seconds between two checks whether the loop of a call still runs


class Engine:
    """A :class:`~bepa_torchrl.scale.engine.engine_interface.RowEngine` that starts again after its process exited.

    Args:
        spec: the specification of the policy.
        on_cpu: whether the engine runs on the CPU.
        arguments: further arguments of vLLM's ``AsyncEngineArgs``, which replace ours.
        devices: CUDA_VISIBLE_DEVICES of its processes; None: that of this process.
        transfer: how :meth:`receive` gets weights; ``folder``: it does not.
        device: of the weights that it gets.
        patcher: prepares screenshots, with a cache that others use, too; None: one without, of the model's folder.
        start_timeout: seconds until a start that has not finished is an error.
        stall_timeout: seconds without a finished row of a call, or for one weight sync, until the engine counts as
            exited.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        on_cpu: bool,
        arguments: Mapping[str, Any] | None = None,
        devices: str | None = None,
        transfer: Transfer = "folder",
        device: torch.device | None = None,
        patcher: ImagePatcher | None = None,
        start_timeout: float = 600.0,
        stall_timeout: float = 600.0,
    ) -> None:
        self.spec = spec
        sent = {} if transfer == "folder" else transfer_arguments(transfer)
        self.arguments = engine_arguments(spec, on_cpu=on_cpu) | sent | dict(arguments or {})
        self._kind, self._device = transfer, device
        self._transfer: EngineTransfer | None = None
        self.starts = 0
        self._running = ExitStack()  #: what lasts as long as the engine runs
        self.devices = devices
        self._patcher = patcher
        self._inputs: EngineInputs | None = None
        self.start_timeout, self.stall_timeout = start_timeout, stall_timeout
        self._llm: Any = None
        self._lock = (
            threading.Lock()
        )  # held while a row is converted or submitted, and when the engine is marked stopped
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._processes: list[Any] = []
        self._numbers = itertools.count()
        self._adapter: LoRARequest | None = None
        self._adapter_ids = itertools.count(1)  #: none is ever used for two adapters, not by another process either

    @property
    def concurrent(self) -> bool:
        """Several threads may call :meth:`generate` at once."""
        return True

    @property
    def running(self) -> bool:
        """Whether the engine was started and has not exited."""
        llm = self._llm  # it notices the end of a process later, and rows sent meanwhile can abort libzmq (issue 3442)
        return llm is not None and not llm.errored and all(process.is_alive() for process in self._processes)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes that the engine was started with (their own children are not listed)."""
        return [process.pid for process in self._processes]

    @property
    def adapter_id(self) -> int | None:
        """The id of the adapters that rows get; None: the engine has its weights alone."""
        return None if self._adapter is None else self._adapter.lora_int_id

    def start(self, model: Path) -> None:
        """Starts the engine on a checkpoint folder, without adapters.

        Raises:
            EngineError: vLLM refuses the checkpoint or the arguments, or does not start in time.
        """
        if self._inputs is None:
            processor = Qwen2VLImageProcessorPil.from_pretrained(model)
            dtype: torch.dtype = getattr(torch, self.spec.dtype)
            patcher = ImagePatcher(processor) if self._patcher is None else self._patcher
            self._inputs = EngineInputs(patcher, self.spec.image_token_id, dtype=dtype)
        self._adapter = None
        self._running.enter_context(pickled_handles(self._kind))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm engine", daemon=True)
        self._thread.start()
        before = set(multiprocessing.active_children())

        async def make() -> Any:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), **self.arguments))

        try:
            with engine_environment(compiled=not self.arguments.get("enforce_eager", False), devices=self.devices):
                self._llm = self._call(make(), self.start_timeout)
        except Exception as error:
            self._processes = list(set(multiprocessing.active_children()) - before)
            self.stop()
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            raise EngineError(f"vLLM did not start on {model}: {reason}; its own log has the details") from error
        self._processes = list(set(multiprocessing.active_children()) - before)
        self.starts += 1
        if self._kind != "folder":
            assert self._device is not None
            call = partial(self._call, timeout=self.stall_timeout)
            options: dict[str, Any] = {"device": self._device, "timeout": self.stall_timeout}
            self._transfer = EngineTransfer(self._kind, self._llm, call, **options)

    def stop(self) -> None:
        """Ends the engine and its processes, and calls of :meth:`generate`; does nothing if it is not running."""
        with self._lock:
            llm, self._llm = self._llm, None
        transfer, self._transfer = self._transfer, None
        if transfer is not None and llm is not None and not llm.errored:
            transfer.close()
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
                if llm is not None:
                    self._call(close_sockets(llm.engine_core), 5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5.0)
            if not self._thread.is_alive():
                self._loop.close()
        if llm is not None and not end_context(llm.engine_core, 5.0):
            _log.warning("sockets of the ended engine are still open; a thread waits for them")
        self._loop = self._thread = None
        self._running.close()

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        """One output per row, in order.

        Raises:
            EngineExited: the engine exited, stalled or was stopped; has the outputs of the finished rows.
            ValueError: vLLM refuses a row, or its image tokens and images do not match.
        """
        with self._lock:
            if not self.running:
                raise EngineExited("the engine is not running")
            assert self._inputs is not None
            assert self._loop is not None
            requests = [(self._inputs(row.prompt), self._params(row)) for row in rows]
            thread = self._thread
            future = asyncio.run_coroutine_threadsafe(self._generate(self._llm, requests, self._adapter), self._loop)
        while not wait([future], _ALIVE).done:  # the coroutine has its own deadline, as long as its loop runs
            if thread is None or not thread.is_alive():
                raise EngineExited("the engine was stopped")
        try:
            return future.result()
        except CancelledError as error:
            raise EngineExited("the engine was stopped") from error

    def _params(self, row: EngineRow) -> SamplingParams:
        """The engine is greedy: the logits processor leaves one token per row."""
        return SamplingParams(
            temperature=0.0,
            logprobs=0,
            max_tokens=row.max_tokens,
            detokenize=False,
            ignore_eos=True,  # ends are those of stop_token_ids
            stop_token_ids=sorted(self.spec.end_token_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=request_args(row.key, row.temperature),
        )

    def reload(self, model: Path) -> None:
        """Replaces the weights by those of a folder's safetensors files, and drops what was computed with the old ones.

        No request may be in flight. Adapters are removed.

        Raises:
            WeightSyncError: the engine refuses the weights or does not answer in time.
        """
        self._sync(self._reload(model), model)

    def receive(self, stream: WeightStream) -> None:
        """Replaces the weights by those of a stream, by vLLM's own transfer, and drops what belongs to the old ones.

        No request may be in flight. Adapters are removed.

        Raises:
            WeightSyncError: the engine did not get them in time, or refuses them; it was stopped, since it may have
                some of them.
        """
        transfer = self._transfer
        if transfer is None:
            raise WeightSyncError("the engine is not running, or was not started to get weights by a transfer")
        try:
            self._call(self._remove_adapters(), self.stall_timeout)
            transfer.send(stream)
            self._call(self._reset_caches(), self.stall_timeout)
        except Exception as error:
            self._transfer = None  # its other end may wait for ever: it is not closed, but ended with the processes
            self.stop()
            late = f"not in {self.stall_timeout:g} s" if isinstance(error, FutureTimeoutError) else error
            raise WeightSyncError(f"the engine did not get weights by {self._kind}: {late}") from error

    def sleep(self, level: Literal[1, 2]) -> None:
        """Gives the GPU's memory up (:class:`~bepa_torchrl.scale.engine.engine_interface.SleepingEngine`).

        vLLM stops its scheduler and drops its caches first. The engine must have been started with
        ``enable_sleep_mode``, which vLLM refuses on a CPU.

        Raises:
            EngineError: it does not answer in time, or cannot.
        """
        self._rest(self._llm.sleep(level), f"sleep (level {level})")

    def wake(self, part: Literal["weights", "kv_cache"]) -> None:
        """Takes the memory of a part again; vLLM's scheduler goes on when both parts are there.

        Raises:
            EngineError: it does not answer in time, or cannot.
        """
        self._rest(self._llm.wake_up([part]), f"wake up ({part})")

    def _rest(self, coroutine: Coroutine[Any, Any, object], what: str) -> None:
        try:
            self._call(coroutine, self.stall_timeout)
        except FutureTimeoutError as error:
            raise EngineError(f"the engine did not {what} in {self.stall_timeout:g} s") from error
        except Exception as error:
            raise EngineError(f"the engine cannot {what}: {error}") from error

    def use_adapter(self, folder: Path) -> None:
        """Adds a folder's LoRA adapters to the weights, under a new id; removes those that were added before.

        Blocks of the prefix cache belong to an id, so that those of other versions are never used; they are dropped
        when their space is needed. No request may be in flight.

        Raises:
            WeightSyncError: the engine refuses the adapters or does not answer in time.
        """
        self._sync(self._use_adapter(folder), folder)

    def _sync(self, coroutine: Coroutine[Any, Any, None], source: Path) -> None:
        try:
            self._call(coroutine, self.stall_timeout)
        except FutureTimeoutError as error:
            raise WeightSyncError(f"the engine did not load {source} in {self.stall_timeout:g} s") from error
        except Exception as error:
            raise WeightSyncError(f"the engine did not load {source}: {error}") from error

    async def _reload(self, model: Path) -> None:
        await self._remove_adapters()
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
        await self._reset_caches()

    async def _use_adapter(self, folder: Path) -> None:
        await self._remove_adapters()
        number = next(self._adapter_ids)
        adapter = LoRARequest(f"adapter-{number}", number, str(folder))
        if not await self._llm.add_lora(adapter):
            raise RuntimeError(f"adapters were not added under the id {number}")
        self._adapter = adapter

    async def _remove_adapters(self) -> None:
        self._adapter = None
        if not self.spec.lora_rank:
            return
        for number in await self._llm.list_loras():
            await self._llm.remove_lora(number)
        if left := await self._llm.list_loras():
            raise RuntimeError(f"adapters were not removed: ids {left}")

    async def _reset_caches(self) -> None:
        """Drops image features and keys and values of the old weights, which would be used silently."""
        await self._llm.reset_mm_cache()
        await self._llm.reset_encoder_cache()
        if not await self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache was not reset; is a request in flight?")

    async def _generate(
        self, llm: Any, requests: Sequence[tuple[Any, SamplingParams]], adapter: LoRARequest | None
    ) -> list[EngineOutput]:
        tasks = [asyncio.create_task(self._row(llm, prompt, params, adapter)) for prompt, params in requests]
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

    async def _row(self, llm: Any, prompt: Any, params: SamplingParams, adapter: LoRARequest | None) -> EngineOutput:
        final = None
        async for output in llm.generate(prompt, params, f"row-{next(self._numbers)}", lora_request=adapter):
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

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Runs a coroutine on the engine's loop."""
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
def engine_environment(*, compiled: bool, devices: str | None = None) -> Iterator[None]:
    """Variables that vLLM and its processes read when an engine starts; a user's own values are kept.

    Args:
        compiled: whether the model is compiled. Without it vLLM would still compile helpers, a minute of g++ on a CPU.
        devices: CUDA_VISIBLE_DEVICES, which replaces that of this process: this process has initialised CUDA already.
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
    removed = {name: os.environ.pop(name) for name in chosen_here(os.environ)}
    added[OWNER] = str(os.getpid())
    if devices is not None:
        added[_DEVICES] = devices
    before = os.environ.get(_DEVICES)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update(removed)
        if before is not None:
            os.environ[_DEVICES] = before
