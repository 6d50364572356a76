"""Metrics of a run through Ray's exporter, which Prometheus scrapes on every node; requires the extra ``ray``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray.util.metrics import Gauge

_GAUGES: dict[str, Gauge] = {}  # Ray keeps a metric until its process ends; of one name there may be one


def export(samples: Iterable[tuple[str, str, Mapping[str, str], float]]) -> None:
    """Sets gauges, which Ray exports with the prefix ``ray_``.

    Args:
        samples: name, help text, labels, value; the samples of one name have the same label names.
    """
    for name, text, labels, value in samples:
        if name not in _GAUGES:
            _GAUGES[name] = Gauge(name, description=text, tag_keys=tuple(labels))
        _GAUGES[name].set(value, tags=dict(labels))
