"""VLLMPolicy: samples with a vLLM engine, with the trainer's prompts and weights.

Tokens and log-probs equal those of :class:`bepa_torchrl.policies.transformers.policy.TransformersPolicy` for equal
weights, prompts and seed keys: prompts are its token ids and patches (:mod:`.inputs`), tokens are selected by the same
arithmetic (:mod:`.keyed_logits`).
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.vllm.engine import Engine, EngineExited, EngineOutput, EngineRequest
from bepa_torchrl.policies.vllm.errors import EngineError, engine_version
from bepa_torchrl.policies.vllm.inputs import EngineInputs
from bepa_torchrl.policies.vllm.keyed_logits import BLOCKED, MAX_TOKENS, request_args
from bepa_torchrl.policies.vllm.probe import (
    PROBE_KEYS,
    PROBE_TOKENS,
    ProbeResult,
    check_probe,
    check_same_weights,
    probe_prompts,
)
from bepa_torchrl.policies.vllm.weight_folder import complete_weights, write_checkpoint
from osworld_gym.types import PromptContext
from osworld_gym.uitars.coords import ImageScaling

_log = logging.getLogger(__name__)
_PROCESSOR = "bepa_torchrl.policies.vllm.keyed_logits:KeyedSampling"
_PROCESSOR_V2 = "bepa_torchrl.policies.vllm.keyed_logits_v2:KeyedSamplingV2"
#: maximum difference of log-probs between engine and trainer, nats
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}


class VLLMPolicy:
    """A :class:`bepa_torchrl.policies.base.RolloutPolicy` on vLLM's ``AsyncLLM``, which runs in its own process.

    The engine starts at the first :meth:`sync` or :meth:`sample`. If its process exits while it samples, it is started
    again with the same weights, and the rows that were not finished are sampled again; by their seed keys they get the
    same tokens.

    Args:
        trainer: the policy in training: renders prompts and has the weights.
        folder: folder for the engine's checkpoints, created if missing; None: a temporary one.
        kv_cache_gb: memory of the engine's key-value cache, 10^9 bytes.
        max_rows: maximum rows that the engine computes at once.
        max_restarts: maximum number of restarts after exits of the engine.
        tolerance: maximum difference of log-probs after a sync, nats; None: 1e-4 for float32, 5e-2 for half precision.
        start_timeout: seconds until a start that has not finished is an error.
        stall_timeout: seconds without a finished row until the engine counts as exited.
        arguments: further arguments of vLLM's ``AsyncEngineArgs``, which replace ours.

    Raises:
        EngineVersionError: vLLM is not installed or has an unsupported version.
        ValueError: ``max_prompt_tokens`` is less than the probe's length, or exceeds the model's positions.
    """

    def __init__(
        self,
        trainer: TransformersPolicy,
        *,
        folder: Path | None = None,
        kv_cache_gb: float = 4.0,
        max_rows: int = 128,
        max_restarts: int = 3,
        tolerance: float | None = None,
        start_timeout: float = 600.0,
        stall_timeout: float = 600.0,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        engine_version()
        self.trainer = trainer
        self.version = trainer.version
        self.dtype: torch.dtype = trainer.model.dtype
        self.tolerance = TOLERANCES[self.dtype] if tolerance is None else tolerance
        self.max_new_tokens = trainer.sampler.max_new_tokens
        self.max_restarts = max_restarts
        self.shapes = {name: tuple(weight.shape) for name, weight in trainer.named_weights()}
        self.inputs = EngineInputs(trainer.processor.patcher, trainer.processor.image_token_id, dtype=self.dtype)
        self.engine = Engine(
            engine_arguments(trainer, kv_cache_gb=kv_cache_gb, max_rows=max_rows) | (arguments or {}),
            start_timeout=start_timeout,
            stall_timeout=stall_timeout,
        )
        window, positions = self.engine.arguments["max_model_len"], _positions(trainer)
        if window > positions:
            raise ValueError(
                f"policy.rollout=vllm: policy.max_prompt_tokens + policy.max_new_tokens = {window}, the model has "
                f"{positions} positions; lower policy.max_prompt_tokens to {positions - self.max_new_tokens}"
            )
        self._own_folder = folder is None
        self._folder = Path(tempfile.mkdtemp(prefix="bepa-vllm-")) if folder is None else folder
        self._model: Path | None = None  # checkpoint of the engine's current weights
        self._writes = 0
        self._probes = probe_prompts(trainer.processor)
        longest = max(len(prompt.tokens) for prompt in self._probes)
        if longest > trainer.max_prompt_tokens:
            raise ValueError(f"policy.rollout=vllm requires policy.max_prompt_tokens >= {longest}, for its probe")
        self._verified: ProbeResult | None = None
        self.restarts = 0
        self._metrics = _EngineMetrics()

    # --- rollouts -----------------------------------------------------------------------------------------------

    @property
    def image_scaling(self) -> ImageScaling:
        """The trainer's: size limits of the image processor."""
        return self.trainer.image_scaling

    def encode_response(self, text: str) -> Tensor:
        """int64 ``[L]``: tokens of a text that was not sampled, end token included."""
        return self.trainer.encode_response(text)

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context; None if it has more than ``max_prompt_tokens``."""
        return self.trainer.render(contexts)

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """One response per prompt; ``keys[i]`` is the seed key of row i (see :class:`RolloutPolicy`).

        Raises:
            ValueError: a negative temperature, or not one key per prompt.
            EngineError: the engine exited more than ``max_restarts`` times.
        """
        if temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        if len(keys) != len(prompts):
            raise ValueError(f"expected one key per prompt, got {len(keys)} keys for {len(prompts)} prompts")
        if not prompts:
            return []
        if self._model is None:
            self.sync()
        return self._sample(prompts, keys, temperature, self.max_new_tokens)

    def _sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float, max_tokens: int
    ) -> list[Response]:
        requests = [
            EngineRequest(self.inputs(prompt), self._params(key, temperature, max_tokens))
            for prompt, key in zip(prompts, keys, strict=True)
        ]
        outputs: dict[int, EngineOutput] = {}
        while len(outputs) < len(requests):
            rows = [row for row in range(len(requests)) if row not in outputs]
            try:
                found = dict(enumerate(self.engine.generate([requests[row] for row in rows])))
            except EngineExited as error:
                found = error.finished
                self._metrics.retried += len(rows) - len(found)
                self._restart(error)
            outputs |= {rows[i]: output for i, output in found.items()}
        for output in outputs.values():
            self._metrics.add(output)
        texts = self.trainer.processor.decode_responses([outputs[i].tokens.tolist() for i in range(len(requests))])
        return [Response(text, outputs[i].tokens, outputs[i].log_probs) for i, text in enumerate(texts)]

    def _params(self, key: tuple[int, ...], temperature: float, max_tokens: int) -> SamplingParams:
        """The engine is greedy: the logits processor leaves one token per row."""
        return SamplingParams(
            temperature=0.0,
            logprobs=0,
            max_tokens=max_tokens,
            detokenize=False,
            ignore_eos=True,  # ends are those of stop_token_ids
            stop_token_ids=sorted(self.trainer.sampler.end_token_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=request_args(key, temperature),
        )

    def _restart(self, error: EngineExited) -> None:
        """Starts the engine again with its current weights. Raises EngineError after ``max_restarts``."""
        self.engine.stop()
        if self.restarts >= self.max_restarts:
            raise EngineError(f"{error}; it was restarted {self.restarts} times (max_restarts)") from error
        self.restarts += 1
        self._metrics.restarts += 1
        assert self._model is not None
        _log.warning("%s; starting it again with the weights of version %d", error, self.version)
        self.engine.start(self._model)
        if self._verified is not None:
            check_same_weights(self._probe(), self._verified.sampled, tolerance=self.tolerance)

    # --- weights ------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Gives the engine the trainer's weights, if it has others, and verifies that it uses them.

        Weights are considered equal if their versions are.

        Raises:
            WeightSyncError: the engine refuses the weights, does not answer in time, or its log-probs of a fixed probe
                do not change, or differ from the trainer's.
            EngineError: the engine does not start.
        """
        if self._verified is not None and self._verified.version == self.version == self.trainer.version:
            return
        started = perf_counter()
        self.load_weights(self.trainer.named_weights(), version=self.trainer.version)
        self.verify()
        self._metrics.sync_seconds += perf_counter() - started

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces the engine's weights, drops its caches, and sets ``version``.

        Raises:
            ValueError: a weight is missing, unknown or of another shape; nothing is changed.
            WeightSyncError: the engine refuses the weights or does not answer in time.
        """
        complete = complete_weights(weights, self.shapes)
        self._writes += 1
        new = write_checkpoint(
            self._folder / f"weights-{self._writes}",
            complete,
            model=self.trainer.model,
            tokenizer=self.trainer.processor.tokenizer,
            image_processor=self.trainer.processor.patcher.processor,
            dtype=self.dtype,
        )
        if self.engine.running:
            self.engine.reload(new)
        else:
            self.engine.stop()
            self.engine.start(new)
        old, self._model, self.version = self._model, new, version
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    def verify(self) -> None:
        """Compares the engine's log-probs of a fixed probe with the trainer's, and with those before.

        Raises:
            WeightSyncError: they differ from the trainer's, or did not change.
        """
        sampled = self._probe()
        with torch.no_grad():
            scored, _ = self.trainer.response_log_probs(self._probes, [response.tokens for response in sampled])
        result = ProbeResult(self.version, tuple(sampled), tuple(values.cpu() for values in scored))
        check_probe(result, self._verified, tolerance=self.tolerance)
        self._metrics.probe_error = max(self._metrics.probe_error, *result.errors())
        self._verified = result

    def _probe(self) -> list[Response]:
        """The engine's responses to the probe. An exit is an error here, since it may be the sync's fault."""
        temperature, tokens = self.trainer.temperature or 1.0, min(PROBE_TOKENS, self.max_new_tokens)
        requests = [
            EngineRequest(self.inputs(prompt), self._params(key, temperature, tokens))
            for prompt, key in zip(self._probes, PROBE_KEYS, strict=False)
        ]
        outputs = self.engine.generate(requests)
        return [Response("", output.tokens, output.log_probs) for output in outputs]

    # --- metrics, end -------------------------------------------------------------------------------------------

    def drain_metrics(self) -> dict[str, float]:
        """Metrics since the last call; see ``docs/vllm.md``."""
        metrics, self._metrics = self._metrics.read(), _EngineMetrics()
        return metrics

    def close(self) -> None:
        """Ends the engine and removes its checkpoints."""
        self.engine.stop()
        if self._model is not None:
            shutil.rmtree(self._model, ignore_errors=True)
            self._model = None
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class _EngineMetrics:
    """Counts between two calls of ``drain_metrics``."""

    def __init__(self) -> None:
        self.prompt_tokens = self.cached_tokens = self.response_tokens = 0
        self.restarts = self.retried = 0
        self.sync_seconds = self.probe_error = 0.0

    def add(self, output: EngineOutput) -> None:
        self.prompt_tokens += output.prompt_tokens
        self.cached_tokens += output.cached_tokens
        self.response_tokens += len(output.tokens)

    def read(self) -> dict[str, float]:
        return {
            "engine/prompt_tokens": float(self.prompt_tokens),
            "engine/prefix_cache_hit_rate": self.cached_tokens / max(1, self.prompt_tokens),
            "engine/response_tokens": float(self.response_tokens),
            "engine/restarts": float(self.restarts),
            "engine/turns_retried": float(self.retried),
            "engine/sync_seconds": self.sync_seconds,
            "engine/probe_error_max": self.probe_error,
        }


def engine_arguments(trainer: TransformersPolicy, *, kv_cache_gb: float, max_rows: int) -> dict[str, Any]:
    """Arguments of ``AsyncEngineArgs`` that fit the trainer's model, prompts and sampling."""
    on_cpu = trainer.device.type == "cpu"
    arguments = {
        "dtype": str(trainer.model.dtype).removeprefix("torch."),
        "max_model_len": trainer.max_prompt_tokens + trainer.sampler.max_new_tokens,
        "max_num_seqs": max_rows,
        "kv_cache_memory_bytes": int(kv_cache_gb * 1e9),
        "enable_prefix_caching": True,
        "enforce_eager": on_cpu,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logits",  # the logits processor's values: log-probs at the sampling temperature
        "logits_processors": [_PROCESSOR if on_cpu else processor_for_gpu()],
        "additional_config": {BLOCKED: trainer.sampler.blocked_ids, MAX_TOKENS: trainer.sampler.max_new_tokens},
        "limit_mm_per_prompt": {"image": 999, "video": 0},
        "skip_mm_profiling": True,
        "mm_processor_cache_gb": 0,
        "disable_log_stats": True,
    }
    if engine_version().release >= (0, 28):  # patches are normalised by us: the engine would normalise them again
        arguments["mm_device_do_normalize"] = False
    return arguments


def _positions(trainer: TransformersPolicy) -> int:
    """The longest sequence of the model."""
    return int(trainer.model.config.get_text_config().max_position_embeddings)


def processor_for_gpu() -> str:
    """The logits processor for the model runner that vLLM uses on a GPU: V2 from 0.29 on, unless disabled."""
    v2 = engine_version().release >= (0, 29) and os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "1") != "0"
    return _PROCESSOR_V2 if v2 else _PROCESSOR
