"""VLLMSampler: samples with a vLLM engine, with the learner's weights and prompts of its renderer.

Tokens and log-probs equal those of :class:`bepa_torchrl.policies.transformers.policy.TransformersPolicy` for equal
weights, prompts and seed keys: prompts are its token ids and patches (:mod:`.inputs`), tokens are selected by the same
arithmetic (:mod:`.keyed_logits`).

The engine is in a process of this machine, or behind ``bepa engine`` on another one (:mod:`.http`), where this
module needs no vLLM.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.lora import adapter_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine.engine_interface import (
    EngineExited,
    EngineOutput,
    EngineRow,
    EngineSpec,
    ReceivingEngine,
    RowEngine,
)
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError, check_family, engine_version
from bepa_torchrl.scale.engine.http.client import EngineClient
from bepa_torchrl.scale.engine.http.remote import RemoteEngine
from bepa_torchrl.scale.engine.metrics import EngineMetrics
from bepa_torchrl.scale.engine.rest import Rest, check_sleep
from bepa_torchrl.scale.engine.weight_sync.adapters import AdapterSync, EngineAdapters, engine_adapters
from bepa_torchrl.scale.engine.weight_sync.choice import Ends, TransferSetting, choose_transfer, gpus_of
from bepa_torchrl.scale.engine.weight_sync.engine_weights import EngineWeights
from bepa_torchrl.scale.engine.weight_sync.folder import temporary_folder
from bepa_torchrl.scale.engine.weight_sync.probe import (
    PROBE_KEYS,
    PROBE_TOKENS,
    TOLERANCES,
    ProbeResult,
    check_probe,
    check_same_weights,
    probe_prompts,
)
from bepa_torchrl.scale.wire.access import Access

_log = logging.getLogger(__name__)


class VLLMSampler:
    """A :class:`bepa_torchrl.policies.base.EngineSampler` on vLLM's ``AsyncLLM``, in its own process or by HTTP.

    The engine starts at the first :meth:`sync` or :meth:`sample`. If its process exits while it samples, it is started
    again with the same weights, and the rows that were not finished are sampled again; by their seed keys they get the
    same tokens.

    Args:
        trainer: the policy in training, which has the weights and the renderer.
        own_weights: whether the weights are given by :meth:`load_weights` alone, as to the rollout services of
            asynchronous runs: they replace ``trainer``'s, too, which nothing else may use, and with which the engine is
            then compared. Nothing is sampled before.
        folder: folder for the engine's checkpoints, created if missing; None: a temporary one.
        kv_cache_gb: memory of the engine's key-value cache, 10^9 bytes.
        max_rows: maximum rows that the engine computes at once.
        max_restarts: maximum number of restarts after exits of the engine.
        tolerance: maximum mean absolute difference of log-probs after a sync, nats; None: 1e-4 for float32, 0.1 for
            half precision (:func:`.weight_sync.probe.check_probe`).
        start_timeout: seconds until a start that has not finished is an error.
        stall_timeout: seconds without a finished row until the engine counts as exited.
        adapters: how the trainer's LoRA adapters reach the engine: ``separate``, alone, added to weights that it keeps;
            ``merged``, with all weights; ``auto``, alone if :func:`.weight_sync.adapters.engine_adapters` allows.
        arguments: further arguments of vLLM's ``AsyncEngineArgs``, which replace ours; not with ``access``.
        devices: the GPUs that the engine's processes see, as CUDA_VISIBLE_DEVICES; not with ``access``. None: as here.
        weights: how all weights reach the engine at a sync (:func:`.weight_sync.choice.choose_transfer`).
        sleep: whether the engine gives the GPU's memory up from :meth:`rest` until it is needed again.
        access: to a ``bepa engine``; None: an engine in a process of this machine.

    Raises:
        EngineVersionError: vLLM is not installed or has an unsupported version; not with ``access``.
        ValueError: the trainer's ``max_prompt_tokens`` is less than the probe's length; an OpenCUA checkpoint; or
            ``adapters=separate``, but they cannot be sent alone; or ``weights`` or ``sleep`` is not possible.
    """

    def __init__(
        self,
        trainer: TransformersPolicy,
        *,
        own_weights: bool = False,
        folder: Path | None = None,
        kv_cache_gb: float = 4.0,
        max_rows: int = 128,
        max_restarts: int = 3,
        tolerance: float | None = None,
        start_timeout: float = 600.0,
        stall_timeout: float = 600.0,
        adapters: AdapterSync = "auto",
        arguments: dict[str, Any] | None = None,
        devices: str | None = None,
        weights: TransferSetting = "auto",
        sleep: bool = False,
        access: Access | None = None,
    ) -> None:
        check_family(trainer.model.config.model_type)
        self.trainer, self.renderer = trainer, trainer.renderer
        self.version = trainer.version
        self._own_weights, self._weights_auto = own_weights, weights == "auto"
        self.tolerance = TOLERANCES[trainer.model.dtype] if tolerance is None else tolerance
        self.max_new_tokens = trainer.sampler.max_new_tokens
        self.max_restarts = max_restarts
        self.adapters = engine_adapters(trainer.model, adapters)  #: sent alone; None: weights are sent whole
        if sleep:
            check_sleep(trainer.device, here=access is None)
        spec = engine_spec(trainer, kv_cache_gb=kv_cache_gb, max_rows=max_rows, adapters=self.adapters)
        timeouts = {"start_timeout": start_timeout, "stall_timeout": stall_timeout}
        self.engine: RowEngine
        self._rest: Rest | None
        receiver: ReceivingEngine | None = None
        if access is None:
            whole = self.adapters is None
            transfer = choose_transfer(weights, engine_ends(trainer, devices, arguments or {}, whole=whole))
            from bepa_torchrl.scale.engine.engine import Engine  # imports vLLM

            on_cpu = trainer.device.type == "cpu"
            patcher = trainer.renderer.processor.patcher  # has the renderer's screenshots
            if sleep:
                arguments = {"enable_sleep_mode": True} | (arguments or {})
            options: dict[str, Any] = {"on_cpu": on_cpu, "arguments": arguments, "devices": devices} | timeouts
            engine = Engine(spec, transfer=transfer, device=trainer.device, patcher=patcher, **options)
            self.engine, receiver = engine, None if transfer == "folder" else engine
            self._rest = Rest(engine, weights_stay=self.adapters is not None) if sleep else None
        elif arguments or devices is not None:
            names = ", ".join(arguments or ("devices",))
            raise ValueError(
                f"an engine by HTTP takes no further arguments of vLLM, got {names}; give them to its `bepa engine`"
            )
        else:
            choose_transfer(weights, Ends(None, (), here=False))
            self.engine, self._rest = RemoteEngine(EngineClient(access), spec, **timeouts), None
        self._folders = ExitStack()
        folder = self._folders.enter_context(temporary_folder()) if folder is None else folder
        self.weights = EngineWeights(self.engine, trainer, folder, receiver)  #: what the engine was given
        self._probes = probe_prompts(self.renderer.processor)
        longest = max(len(prompt.tokens) for prompt in self._probes)
        if longest > self.renderer.max_prompt_tokens:
            raise ValueError(f"policy.rollout=vllm requires policy.max_prompt_tokens >= {longest}, for its probe")
        self._verified: ProbeResult | None = None
        self.restarts = 0
        self._starts = 0  #: engines that were started again and are ready
        self._closed = False
        self._lifecycle = threading.RLock()  #: held while the engine starts, is verified, gets weights, or ends
        self._metrics = EngineMetrics()

    # --- rollouts -----------------------------------------------------------------------------------------------

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call :meth:`sample` at once, between two syncs."""
        return self.engine.concurrent

    @property
    def has_weights(self) -> bool:
        """Whether the engine was given weights."""
        return self.weights.given

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """One response per prompt; ``keys[i]`` is the seed key of row i (see :class:`Sampler`).

        Raises:
            ValueError: a negative temperature, or not one key per prompt.
            EngineError: the engine exited more than ``max_restarts`` times; or none of its own weights were loaded yet.
        """
        if temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        if len(keys) != len(prompts):
            raise ValueError(f"expected one key per prompt, got {len(keys)} keys for {len(prompts)} prompts")
        if not prompts:
            return []
        self._make_ready()
        return self._sample(prompts, keys, temperature, self.max_new_tokens)

    def _make_ready(self) -> None:
        """Gives the engine weights if it has none, or sleeps; one turn does, and those that come meanwhile wait."""
        with self._lifecycle:
            if not self.has_weights and self._own_weights:
                raise EngineError("no weights were loaded yet; call load_weights first")
            if not self.has_weights or (self._rest is not None and self._rest.asleep):
                self.sync()

    def _sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float, max_tokens: int
    ) -> list[Response]:
        rows = [EngineRow(p, tuple(key), temperature, max_tokens) for p, key in zip(prompts, keys, strict=True)]
        outputs: dict[int, EngineOutput] = {}
        while len(outputs) < len(rows):
            left = [number for number in range(len(rows)) if number not in outputs]
            with self._lifecycle:  # not with an engine that was started again and is not verified yet
                starts = self._starts
            try:
                finished = dict(enumerate(self.engine.generate([rows[number] for number in left])))
            except EngineExited as error:
                finished = error.finished
                self._metrics.exited(len(left) - len(finished))
                with self._lifecycle:
                    if self._starts == starts:  # not by another thread, whose rows were lost, too
                        self._restart(error)
            outputs |= {left[i]: output for i, output in finished.items()}
        for output in outputs.values():
            self._metrics.sampled(output)
        texts = self.renderer.decode_responses([outputs[i].tokens.tolist() for i in range(len(rows))])
        return [Response(text, outputs[i].tokens, outputs[i].log_probs) for i, text in enumerate(texts)]

    def _restart(self, error: EngineExited) -> None:
        """Starts the engine again with its current weights. Raises EngineError after ``max_restarts``, or the end."""
        self.engine.stop()
        self._check_open(error)
        self._count_restart(error)
        _log.warning("%s; starting it again with the weights of version %d", error, self.version)
        try:
            self.weights.start()
            if self._verified is not None:
                check_same_weights(self._probe(), self._verified.sampled, tolerance=self.tolerance)
            self._check_open(error)
        except BaseException:
            self.engine.stop()
            raise
        self._starts += 1

    def _count_restart(self, error: EngineExited) -> None:
        if self.restarts >= self.max_restarts:
            raise EngineError(f"{error}; it was restarted {self.restarts} times (max_restarts)") from error
        self.restarts += 1
        self._metrics.restarted()

    def _check_open(self, cause: Exception | None = None) -> None:
        if self._closed:
            raise EngineError("the policy is closed" if cause is None else f"{cause}; the policy is closed") from cause

    # --- weights ------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Gives the engine the trainer's weights, if it has others, and verifies that it uses them.

        Weights are considered equal if their versions are.

        Raises:
            WeightSyncError: the engine refuses the weights, does not answer in time, or its log-probs of a fixed probe
                do not change, or differ from the trainer's.
            EngineError: the engine does not start.
        """
        rest = self._rest
        if self._verified is not None and self._verified.version == self.version == self.trainer.version:
            if rest is None or not rest.asleep:
                return
            if rest.weights_stay and self.engine.running:
                with self._lifecycle:
                    rest.end()
                return
        self.load_and_verify()

    def rest(self) -> None:
        """Lets the engine give the GPU's memory up until the next :meth:`sync` or :meth:`sample`, if ``sleep``.

        No rows may be in flight.

        Raises:
            EngineError: it does not answer in time, or cannot.
        """
        if self._rest is not None and self.has_weights:
            with self._lifecycle:
                self._rest.begin()

    def load_and_verify(self) -> None:
        """Does what :meth:`sync` does, also if the trainer's weights have the version of the engine's."""
        started = perf_counter()
        with self._lifecycle:
            with nullcontext() if self._rest is None else self._rest.ending():
                self._give()
            self.verify()
        self._metrics.synced(perf_counter() - started)

    def _give(self) -> None:
        """Gives the engine the trainer's weights; the lifecycle's lock is held."""
        if self.adapters is not None:
            self._check_ready()
            self.weights.use_adapters(self.trainer)
        elif not (self.weights.can_send() and self._send()):
            weights = self.trainer.named_weights()
            if adapter_weights(self.trainer.model):  # merged ones are copies: not all of them on the device at once
                weights = ((name, weight.cpu()) for name, weight in weights)
            self._use(weights, self.trainer.version)
        self.version = self.trainer.version

    def _send(self) -> bool:
        """Sends the weights without a file; False if the choice was ours and the first attempt fails."""
        self._check_ready()
        try:
            self.weights.send(self.trainer)
        except WeightSyncError as error:
            if self.weights.sent or not self._weights_auto:
                raise
            _log.warning("%s; it gets them as files instead (policy.engine.weights=folder)", error)
            self.weights.keep_to_folders()
            return False
        return True

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces the engine's weights, drops its caches, and sets ``version``; it has no adapters then.

        With ``own_weights`` also by those of the same version, since a resumed run may have others, and the engine is
        verified to use them.

        Raises:
            ValueError: a weight is missing, unknown or of another shape; nothing is changed.
            WeightSyncError: the engine refuses the weights, does not answer in time, or does not use them afterwards.
            EngineError: the engine does not start.
        """
        if self._own_weights:
            self.trainer.load_weights(weights, version=version)
            self.load_and_verify()
        else:
            with self._lifecycle:
                self._use(weights, version)
                self._verified = None  # the probe was of other weights

    def _use(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        complete = self.weights.complete(weights)
        with self._lifecycle:
            self._check_ready()
            self.weights.use(complete, self.trainer)
            self.version = version

    def _check_ready(self) -> None:
        """Before a sync: counts a restart if the engine has exited. Raises EngineError after ``max_restarts``."""
        self._check_open()
        if self.has_weights and not self.engine.running:
            self._count_restart(EngineExited("the engine had exited before its weights were replaced"))

    def verify(self) -> None:
        """Compares the engine's log-probs of a fixed probe with the trainer's, and with those before.

        Raises:
            WeightSyncError: they differ from the trainer's, or did not change.
        """
        sampled = self._probe()
        with torch.no_grad():
            scored, _ = self.trainer.response_log_probs(self._probes, [response.tokens for response in sampled])
        result = ProbeResult(
            self.version, self.weights.fingerprint, tuple(sampled), tuple(values.cpu() for values in scored)
        )
        check_probe(result, self._verified, tolerance=self.tolerance)
        self._metrics.verified([values.mean for values in result.differences().values()])
        self._verified = result

    def _probe(self) -> list[Response]:
        """The engine's responses to the probe. An exit is an error here, since it may be the sync's fault."""
        temperature, tokens = self.trainer.temperature or 1.0, min(PROBE_TOKENS, self.max_new_tokens)
        rows = [EngineRow(p, key, temperature, tokens) for p, key in zip(self._probes, PROBE_KEYS, strict=True)]
        outputs = self.engine.generate(rows)
        return [Response("", output.tokens, output.log_probs) for output in outputs]

    # --- metrics, end -------------------------------------------------------------------------------------------

    def drain_metrics(self) -> dict[str, float]:
        """Metrics since the last call; see ``docs/vllm.md``."""
        return self._metrics.drain()

    def close(self) -> None:
        """Ends the engine and removes its checkpoints."""
        self._closed = True  # a start that is under way ends the engine itself
        with self._lifecycle:
            self._close()

    def _close(self) -> None:
        self.engine.stop()
        self.weights.remove()
        self._folders.close()


def engine_ends(trainer: TransformersPolicy, devices: str | None, arguments: Mapping[str, Any], *, whole: bool) -> Ends:
    """The ends of the weight syncs between the trainer and an engine that this process starts.

    Raises:
        EngineVersionError: vLLM is not installed or has an unsupported version.
    """
    version = engine_version()
    if trainer.device.type != "cuda":
        return Ends(None, (), whole=whole, vllm=version)
    index = torch.cuda.current_device() if trainer.device.index is None else trainer.device.index
    return Ends(*gpus_of(index, devices, arguments, os.environ), whole=whole, vllm=version)


def engine_spec(
    trainer: TransformersPolicy, *, kv_cache_gb: float, max_rows: int, adapters: EngineAdapters | None
) -> EngineSpec:
    """What an engine must know of the trainer's model, prompts and sampling."""
    return EngineSpec(
        dtype=str(trainer.model.dtype).removeprefix("torch."),
        window=trainer.renderer.max_prompt_tokens + trainer.sampler.max_new_tokens,
        max_rows=max_rows,
        max_new_tokens=trainer.sampler.max_new_tokens,
        kv_cache_gb=kv_cache_gb,
        image_token_id=trainer.renderer.processor.image_token_id,
        end_token_ids=tuple(sorted(trainer.sampler.end_token_ids)),
        blocked_ids=tuple(int(i) for i in trainer.sampler.blocked_ids),
        lora_rank=0 if adapters is None else adapters.rank,
        lora_targets=() if adapters is None else adapters.targets,
        head_dtype="" if trainer.head_dtype is None else str(trainer.head_dtype).removeprefix("torch."),
    )
