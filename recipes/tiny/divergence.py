"""How far each set of traces is from the policy: tail mass and Jensen-Shannon divergence (paper, figure "histogram").

Every trace is scored token by token under the base policy, with prompts without a plan. The reference are the policy's
own rollouts of the same tasks, successes and failures. The sets:

- ``raw``: the expert's text as it wrote it; ``converted``: the same traces in the policy's format (D_conv);
- ``level1``: successful self-rollouts with the expert's plan (D_self);
- ``level2``: the cache after one round of rollouts: the policy's own success where it had one, else LEVEL-1's trace;
  both are pooled over several draws, since a single unlikely token of a lucky success changes their order;
- ``on_policy``: the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.divergence import token_log_probs
from bepa_torchrl.experts.conversion import convert
from bepa_torchrl.experts.raw_text import raw_pairs
from bepa_torchrl.experts.rows import trace_rows
from bepa_torchrl.experts.self_rollout import SelfRolloutSet
from bepa_torchrl.experts.trace import ExpertTrace
from bepa_torchrl.functional import jensen_shannon, probability_histogram, tail_mass
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.rollout.episodes import EpisodeResult

SETS = ("raw", "converted", "level1", "level2", "on_policy")


def trace_sets(
    policy: Policy,
    traces: Sequence[ExpertTrace],
    selfrolled: Sequence[SelfRolloutSet],
    rollouts: Sequence[EpisodeResult],
) -> dict[str, list[TensorDictBase]]:
    """The rows of every set; see the module's text.

    Args:
        policy: renders prompts and encodes the expert's text.
        traces: the expert's successful traces.
        selfrolled: D_self, once per draw.
        rollouts: the policy's episodes without a plan.
    """
    raw, converted = [], []
    for trace in traces:
        task = (trace.task_id, trace.instruction)
        raw += row_list(trace_rows(policy, *task, raw_pairs(trace), source=K.Source.raw_expert))
        converted += row_list(trace_rows(policy, *task, convert(trace, policy.renderer.image_scaling)))
    own: dict[str, list[TensorDictBase]] = {}
    for result in rollouts:
        if result.success and result.rows is not None:
            own.setdefault(result.job.task.id, []).append(result.rows)
    level1, level2 = [], []
    for draw, drawn in enumerate(selfrolled):
        for task_id, entry in drawn.entries.items():
            level1 += row_list(entry.rows)
            successes = own.get(task_id, [entry.rows])
            level2 += row_list(successes[draw % len(successes)])
    return {
        "raw": raw,
        "converted": converted,
        "level1": level1,
        "level2": level2,
        "on_policy": [row for result in rollouts if result.rows is not None for row in row_list(result.rows)],
    }


def divergence(policy: Policy, sets: Mapping[str, Sequence[TensorDictBase]]) -> dict[str, dict[str, float]]:
    """The distance of each set from ``on_policy``.

    Args:
        policy: the base policy.
        sets: from :func:`trace_sets`.

    Returns:
        Per set: ``tail`` (share of tokens with p < 0.2), ``js`` (to ``on_policy``, nats), ``nats`` (mean log-prob) and
        ``tokens`` (their number).
    """
    scored = {name: token_log_probs(policy, rows) for name, rows in sets.items()}
    reference = probability_histogram(scored["on_policy"])
    return {
        name: {
            "tail": round(float(tail_mass(log_probs)), 4),
            "js": round(float(jensen_shannon(probability_histogram(log_probs), reference)), 4),
            "nats": round(float(log_probs.mean()), 4),
            "tokens": float(log_probs.numel()),
        }
        for name, log_probs in scored.items()
    }
