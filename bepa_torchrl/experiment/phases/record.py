"""The line before the training that says how large the record can become."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from bepa_torchrl.experiment.record_size import estimated_bytes, size_text
from bepa_torchrl.experiment.settings import Settings

_SAMPLE = 100  #: screenshots whose mean size is taken


def record_estimate(config: Settings, folder: Path, tasks: int) -> str:
    """An upper bound for the record of each method of a run, and its limit, as one line.

    Args:
        config: the run's settings.
        folder: of the run; its prepared expert traces have screenshots of the size that episodes have.
        tasks: number of training tasks.
    """
    images = [path.stat().st_size for path in islice((folder / "prepared").rglob("*.png"), _SAMPLE)]
    image = sum(images) / len(images) if images and config.record.images else 0.0
    size = estimated_bytes(
        iterations=config.train.iterations,
        every=config.record.every,
        groups=config.collect.groups,
        group_size=config.collect.group_size,
        tasks=tasks,
        steps=config.env.max_steps,
        tokens=config.policy.max_new_tokens,
        image=image,
    )
    shots = f"screenshots of {image / 1e3:.0f} kB" if image else "no screenshots"
    limit = config.record.limit_gb
    capped = "no limit" if limit is None else f"above {size_text(limit * 1e9)} the oldest episodes lose their steps"
    return f"record: at most {size_text(size)} per method ({shots}); {capped}"
