"""The trace cache: one successful trace per task, refreshed by the policy's own successes."""

from bepa_torchrl.cache.buffer import TaskTraceCache
from bepa_torchrl.cache.metadata import TraceMetadata
from bepa_torchrl.cache.rules import RULES, draw
from bepa_torchrl.cache.writer import CacheFullError

__all__ = ["RULES", "CacheFullError", "TaskTraceCache", "TraceMetadata", "draw"]
