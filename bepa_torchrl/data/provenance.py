"""Provenance: the expert's run behind a trace that the policy did not sample alone; a row has it as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a self-rolled or converted trace is from; the policy's version is in its rows.

    Args:
        expert: name of the expert.
        origin: run or log folder of the expert's trace; empty if it was recorded for this run.
        plan: hash of the plan that the policy followed (:func:`bepa_torchrl.experts.plan.plan_hash`); None for a
            converted trace.
        attempt: 0-based attempt with this expert's plan; None for a converted trace.
        handover: steps that the policy acted without the plan before it got it; 0: it had it from the first step.
        trace: hash of the expert's trace (:attr:`bepa_torchrl.experts.trace.ExpertTrace.content_hash`); empty in caches
            of earlier versions.
        env_seed: seed of the desktop on which a self-rolled trace was played; None for a converted trace, and in caches
            of earlier versions.
    """

    expert: str
    origin: str = ""
    plan: str | None = None
    attempt: int | None = None
    handover: int = 0
    trace: str = ""
    env_seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def mark(rows: TensorDictBase, provenance: Provenance) -> TensorDictBase:
    """Sets the provenance of every row of a trace ``[S]``; returns the same rows."""
    text = json.dumps(provenance.to_json(), ensure_ascii=False)
    for row in row_list(rows):
        row.set_non_tensor(K.PROVENANCE, text)
    return rows


def provenance_of(row: TensorDictBase) -> Provenance | None:
    """The provenance of a row; None for the policy's own, and in caches of earlier versions."""
    text = cast(str, row[K.PROVENANCE]) if K.PROVENANCE in row else ""
    return Provenance(**json.loads(text)) if text else None
