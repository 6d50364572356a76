"""Final success of several runs by the settings in which they differ. Paper, main table and sensitivity tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from bepa_torchrl.analysis.figures.files import Row
from bepa_torchrl.experiment.run_folder import leaves

#: settings that say where, when and with which seed a run was trained, not how
_SAME = ("seed", "name", "runs", "storage", "resume", "compare", "threads", "processes", "record.", "storage_wait")
#: ``overall``: all evaluated tasks, training and held-out
SETS = ("train", "held_out", "expert_only", "overall")
Trained = tuple[str, Mapping[str, Any], Mapping[str, float | None]]  #: suite, settings, success by task set


def sensitivity_rows(trained: Sequence[Trained]) -> list[Row]:
    """A row per suite and combination of the settings that differ: number of runs, mean and standard deviation.

    Runs of different suites are in different rows. The standard deviation is the sample's; None with one run. Success
    is in [0, 1].
    """
    settings = [dict(leaves(each)) for _, each, _ in trained]
    keys = [key for key in dict.fromkeys(k for each in settings for k in each) if _differs(key, settings)]
    groups: dict[tuple[str, ...], list[Mapping[str, float | None]]] = {}
    for (suite, _, success), own in zip(trained, settings, strict=True):
        groups.setdefault((suite, *(str(own.get(key)) for key in keys)), []).append(success)
    rows: list[Row] = []
    for (suite, *values), successes in groups.items():
        row: dict[str, Any] = {"suite": suite, **dict(zip(keys, values, strict=True)), "runs": len(successes)}
        for name in SETS:
            rates = [rate for success in successes if (rate := success.get(name)) is not None]
            row[f"{name}_mean"] = mean(rates) if rates else None
            row[f"{name}_std"] = stdev(rates) if len(rates) > 1 else None
        rows.append(row)
    return rows


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    same = any(key == name or (name.endswith(".") and key.startswith(name)) for name in _SAME)
    return not same and len({str(each.get(key)) for each in settings}) > 1
