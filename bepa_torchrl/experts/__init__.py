"""Expert traces: recording and reading them, plans (φ), conversion to the policy's format, self-rollouts (LEVEL-1).

The names are imported on first use: reading logs needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.experts.conversion import Converted, convert, convert_trace
    from bepa_torchrl.experts.manifest import Manifest, check_disjoint, expert_only, split_pool, task_hashes
    from bepa_torchrl.experts.plan import plan_from_trace, plan_with_model
    from bepa_torchrl.experts.raw_text import raw_pairs, worker_messages
    from bepa_torchrl.experts.readers.check import Checked, check_sources
    from bepa_torchrl.experts.readers.registry import READERS, find_reader
    from bepa_torchrl.experts.recorder import record_expert
    from bepa_torchrl.experts.rows import plan_free_rows, trace_rows
    from bepa_torchrl.experts.self_rollout import SelfRollout, SelfRolloutSet, self_roll
    from bepa_torchrl.experts.sources import read_source, split_source, successful_traces
    from bepa_torchrl.experts.trace import ExpertTrace, TraceError, load_trace, load_traces, save_trace, save_traces

__all__ = [
    "READERS",
    "Checked",
    "Converted",
    "ExpertTrace",
    "Manifest",
    "SelfRollout",
    "SelfRolloutSet",
    "TraceError",
    "check_disjoint",
    "check_sources",
    "convert",
    "convert_trace",
    "expert_only",
    "find_reader",
    "load_trace",
    "load_traces",
    "plan_free_rows",
    "plan_from_trace",
    "plan_with_model",
    "raw_pairs",
    "read_source",
    "record_expert",
    "save_trace",
    "save_traces",
    "self_roll",
    "split_pool",
    "split_source",
    "successful_traces",
    "task_hashes",
    "trace_rows",
    "worker_messages",
]

__getattr__ = lazy_names(
    __name__,
    {
        "conversion": ("Converted", "convert", "convert_trace"),
        "manifest": ("Manifest", "check_disjoint", "expert_only", "split_pool", "task_hashes"),
        "plan": ("plan_from_trace", "plan_with_model"),
        "raw_text": ("raw_pairs", "worker_messages"),
        "readers.check": ("Checked", "check_sources"),
        "readers.registry": ("READERS", "find_reader"),
        "recorder": ("record_expert",),
        "rows": ("plan_free_rows", "trace_rows"),
        "self_rollout": ("SelfRollout", "SelfRolloutSet", "self_roll"),
        "sources": ("read_source", "split_source", "successful_traces"),
        "trace": ("ExpertTrace", "TraceError", "load_trace", "load_traces", "save_trace", "save_traces"),
    },
)
