"""What an engine has done between two reports, and the sum over several engines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from bepa_torchrl.scale.engine.engine_interface import EngineOutput

_TOKENS, _HITS, _ERROR = "engine/prompt_tokens", "engine/prefix_cache_hit_rate", "engine/probe_error_max"


class EngineMetrics:
    """Counts since the last :meth:`drain`, which another thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._prompt_tokens = self._cached_tokens = self._response_tokens = 0
        self._restarts = self._retried = 0
        self._sync_seconds = self._probe_error = 0.0

    def sampled(self, output: EngineOutput) -> None:
        """Counts a finished row."""
        with self._lock:
            self._prompt_tokens += output.prompt_tokens
            self._cached_tokens += output.cached_tokens
            self._response_tokens += len(output.tokens)

    def exited(self, unfinished: int) -> None:
        """Counts rows that are sampled again, since the engine exited."""
        with self._lock:
            self._retried += unfinished

    def restarted(self) -> None:
        """Counts a restart."""
        with self._lock:
            self._restarts += 1

    def synced(self, seconds: float) -> None:
        """Counts the seconds of a weight sync."""
        with self._lock:
            self._sync_seconds += seconds

    def verified(self, errors: Sequence[float]) -> None:
        """Keeps the largest of the probe's mean differences of log-probs, nats, one per kind of prompt."""
        with self._lock:
            self._probe_error = max(self._probe_error, *errors)

    def drain(self) -> dict[str, float]:
        """The metrics of ``docs/vllm.md``, which begin again."""
        with self._lock:
            metrics = {
                _TOKENS: float(self._prompt_tokens),
                _HITS: self._cached_tokens / max(1, self._prompt_tokens),
                "engine/response_tokens": float(self._response_tokens),
                "engine/restarts": float(self._restarts),
                "engine/turns_retried": float(self._retried),
                "engine/sync_seconds": self._sync_seconds,
                _ERROR: self._probe_error,
            }
            self._start()
        return metrics


def merged(engines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several engines: sums; the hit rate over all prompt tokens; the largest error of a probe.

    Args:
        engines: as of :meth:`EngineMetrics.drain`; those of other samplers are empty, and left out.
    """
    nonempty = [metrics for metrics in engines if metrics]
    if not nonempty:
        return {}
    total = {name: sum(metrics[name] for metrics in nonempty) for name in nonempty[0]}
    hits = sum(metrics[_HITS] * metrics[_TOKENS] for metrics in nonempty) / max(1.0, total[_TOKENS])
    return total | {_HITS: hits, _ERROR: max(metrics[_ERROR] for metrics in nonempty)}
