"""Checks of the settings of asynchronous rollouts against each other. Imports no torch."""

from __future__ import annotations

from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.settings import CollectSettings, Settings


def check_synchronous(collect: CollectSettings) -> None:
    """Raises ConfigError for settings of ``collect.mode=async`` in a run without it; names only what was set."""
    if collect.mode == "async":
        return
    given = {"max_staleness": (collect.max_staleness, 0), "order": (collect.order, "admission")}
    wrong = [f"collect.{name}={value}" for name, (value, without) in given.items() if value != without]
    if wrong:
        raise ConfigError(f"{' and '.join(wrong)}: read with collect.mode=async only; set it, or leave this out")


def check_cluster(settings: Settings) -> None:
    """Checks the settings of ``cluster`` against the others. Raises ConfigError: they do not work together."""
    cluster = settings.cluster
    for name, value in (("address", cluster.address), ("listen", cluster.listen)):
        if value is not None and settings.collect.mode == "sync":
            raise ConfigError(f"cluster.{name}={value} requires collect.mode=async; set it")
    if cluster.listen is not None and any(name != settings.algo.name for name in settings.compare):
        raise ConfigError(
            f"cluster.listen={cluster.listen} requires compare=[], since one training process listens there; got "
            f"compare={list(settings.compare)}; set compare=[]"
        )
    if settings.collect.mode == "async":
        check_one_engine(settings)
        if _has_url(settings) and settings.expert.reroll_every:
            raise ConfigError(
                "expert.reroll_every plays episodes next to the rollouts of collect.mode=async, and "
                "policy.engine.url is one engine; set expert.reroll_every=0, or leave policy.engine.url out"
            )


def check_one_engine(settings: Settings) -> None:
    """Raises ConfigError if several rollout services would share the engine of ``policy.engine.url``."""
    cluster = settings.cluster
    if _has_url(settings) and cluster.address is not None and cluster.replicas > 1:
        raise ConfigError(
            f"policy.engine.url={settings.policy.engine.url} is one engine, got cluster.replicas={cluster.replicas}; "
            "set cluster.replicas=1, or leave policy.engine.url out: each service then starts its own engine"
        )


def _has_url(settings: Settings) -> bool:
    return settings.policy.rollout == "vllm" and settings.policy.engine.url is not None
