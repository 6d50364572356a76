"""The paper's formulas as pure tensor functions, without tensordicts, keys or state; the losses call these.

Shape letters, here and in the names: G rollouts of a group, E episodes, R rows (one row is one step), B rows of a
batch, T padded response positions (left-padded, see ``mask_BT``), V vocabulary.
"""

from bepa_torchrl.functional.advantage import (
    ADVANTAGE_KINDS,
    STD_RULES,
    group_advantage,
    leave_one_out_advantage,
    maxrl_advantage,
)
from bepa_torchrl.functional.aggregation import AGGREGATIONS, UNITS, row_denominators
from bepa_torchrl.functional.anchor import anchor_rows, term_weights
from bepa_torchrl.functional.divergence import jensen_shannon, probability_histogram, tail_mass
from bepa_torchrl.functional.ratio import (
    CORRECTION_LEVELS,
    MAX_LOG_RATIO,
    RATIOS,
    log_ratio,
    per_step,
    ratio,
    response_mean,
    truncated_importance,
)
from bepa_torchrl.functional.regularization import gated_distillation, k3_divergence
from bepa_torchrl.functional.statistics import (
    approximate_kl,
    clip_fraction,
    effective_sample_size,
    masked_max,
    masked_mean,
    token_entropy,
)
from bepa_torchrl.functional.supervised import cross_entropy
from bepa_torchrl.functional.surrogate import (
    clip_binds,
    clipped_surrogate,
    luffy_shaping,
    shaped_surrogate,
    surrogate,
)

__all__ = [
    "ADVANTAGE_KINDS",
    "AGGREGATIONS",
    "CORRECTION_LEVELS",
    "MAX_LOG_RATIO",
    "RATIOS",
    "STD_RULES",
    "UNITS",
    "anchor_rows",
    "approximate_kl",
    "clip_binds",
    "clip_fraction",
    "clipped_surrogate",
    "cross_entropy",
    "effective_sample_size",
    "gated_distillation",
    "group_advantage",
    "jensen_shannon",
    "k3_divergence",
    "leave_one_out_advantage",
    "log_ratio",
    "luffy_shaping",
    "masked_max",
    "masked_mean",
    "maxrl_advantage",
    "per_step",
    "probability_histogram",
    "ratio",
    "response_mean",
    "row_denominators",
    "shaped_surrogate",
    "surrogate",
    "tail_mass",
    "term_weights",
    "token_entropy",
    "truncated_importance",
]
