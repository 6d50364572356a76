"""How far a judge agrees with people, and the success rate with its errors taken out.

The corrected rate is Rogan and Gladen's (1978): with the share q of tasks that the judge calls successes, and on the
labelled tasks the judge's sensitivity s and specificity c, it is (q + c - 1) / (s + c - 1), within [0, 1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bepa_torchrl.evaluation.statistics import LEVEL, RESAMPLES

#: a label says that nobody could do the task as it was, so that it has no result
NOT_EXECUTABLE = 2
_LABELS = {0: False, 1: True, NOT_EXECUTABLE: None}


def read_labels(path: Path) -> dict[str, bool | None]:
    """Human labels by task id: whether the task was completed; None: it could not be executed.

    The file is a JSON object with 0 (failure), 1 (success), 2 (not executable), true or false by task id.

    Raises:
        ValueError: it is missing, or something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--labels: {path} cannot be read ({error}); expected JSON, task id: 0, 1 or 2") from None
    if not isinstance(data, dict):
        raise ValueError(f"--labels: {path}: expected an object, task id: 0, 1 or 2, got {type(data).__name__}")
    wrong = next((key for key, value in data.items() if not isinstance(value, int) or value not in _LABELS), None)
    if wrong is not None:
        raise ValueError(f"--labels: {path}: {wrong}: expected 0, 1, 2, true or false, got {data[wrong]!r}")
    return {key: _LABELS[int(value)] for key, value in data.items()}


def agreement(judged: Mapping[str, bool], labels: Mapping[str, bool | None]) -> dict[str, Any]:
    """The judge against the labels, on the tasks that have both.

    Args:
        judged: the judge's verdicts by task id, without the tasks that have none.
        labels: those of people; tasks that could not be executed are left out.

    Returns:
        ``tasks`` (with both), ``agreement``, ``false_positive_rate`` (of the tasks that people call failures),
        ``false_negative_rate`` (of their successes), ``judge_rate`` and ``human_rate`` on these tasks, ``all_judged``
        and ``rate`` (the judge's, over all its tasks), ``corrected`` and its ``interval`` (a bootstrap over all judged
        tasks). A value is None if nothing determines it, such as the corrected rate of a judge that is no better than
        chance.
    """
    counts = _counts(judged, labels)
    (tn, fn), (fp, tp) = counts[:, :2]
    both = int(tn + fn + fp + tp)
    low_high = _interval(counts)
    corrected = float(corrected_rate(counts[None])[0])
    return {
        "tasks": both,
        "agreement": _share(tp + tn, both),
        "false_positive_rate": _share(fp, fp + tn),
        "false_negative_rate": _share(fn, fn + tp),
        "judge_rate": _share(fp + tp, both),
        "human_rate": _share(fn + tp, both),
        "all_judged": len(judged),
        "rate": _share(counts[1].sum(), counts.sum()),
        "corrected": None if np.isnan(corrected) else corrected,
        "interval": None if np.isnan(corrected) else low_high,
    }


def corrected_rate(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Rogan and Gladen's rate of tables of counts; NaN where it is not defined.

    Args:
        counts: ``[B, 2, 3]``: the judge's failures and successes, by label failure, success and none.

    Returns:
        ``[B]``, in [0, 1].
    """
    (tn, fn), (fp, tp) = (counts[:, row, :2].T.astype(np.float64) for row in (0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = counts[:, 1].sum(axis=1) / counts.sum(axis=(1, 2))
        informed = tp / (tp + fn) + tn / (tn + fp) - 1
        corrected = (rate + tn / (tn + fp) - 1) / informed
    clipped: NDArray[np.float64] = np.where(informed > 0, np.clip(corrected, 0.0, 1.0), np.nan)
    return clipped


def _counts(judged: Mapping[str, bool], labels: Mapping[str, bool | None]) -> NDArray[np.int64]:
    """The table ``[2, 3]`` of counts, as :func:`corrected_rate` reads it."""
    counts = np.zeros((2, 3), dtype=np.int64)
    for task, verdict in judged.items():
        label = labels.get(task)
        counts[int(verdict), 2 if label is None else int(label)] += 1
    return counts


def _interval(counts: NDArray[np.int64], *, seed: int = 0) -> list[float] | None:
    """Percentiles of the corrected rate over resamples of all judged tasks, each with its label.

    Drawing tasks with replacement is a multinomial draw of the table. Resamples without a defined rate are left out;
    None if that is more than one in twenty, since the others are no fair sample then.
    """
    total = int(counts.sum())
    if not total:
        return None
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(total, (counts / total).ravel(), size=RESAMPLES).reshape(-1, *counts.shape)
    rates = corrected_rate(drawn)
    rates = rates[~np.isnan(rates)]
    if len(rates) < 0.95 * RESAMPLES:
        return None
    low, high = np.quantile(rates, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return [float(low), float(high)]


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
