"""The settings that ``bepa rollouts`` determines itself; all others are the trainer's. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment.config import ConfigError, load_config, settings_to_dict
from bepa_torchrl.experiment.resume import key_of

LOCAL = (
    "import",
    "env.provider",
    "env.options",
    "env.desktops",
    "env.deadline",
    "policy.checkpoint",
    "policy.dtype",
    "policy.device",
    "policy.attn",
    "policy.max_rows",
    "policy.max_batch_tokens",
    "policy.rollout",
    "policy.engine.kv_cache_gb",
    "policy.engine.max_restarts",
    "policy.engine.timeout",
    "policy.engine.url",
    "policy.engine.token_file",
    "cluster.address",
    "cluster.workers",
    "cluster.replicas",
    "cluster.gpus_per_replica",
    "cluster.shrink_after",
    "threads",
)


def local_changes(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """The values of a command line, by dotted key; another provider starts with no ``env.options`` of the trainer's.

    Raises:
        ConfigError: an unknown setting, or one that the trainer determines.
    """
    # which old log-probs are used is the trainer's setting; with the default an engine would be refused here
    requested = settings_to_dict(load_config(["train.old_log_probs=all", *overrides], config_dir=config_dir))
    given = {key_of(override) for override in overrides}
    found = {key: local for key in given for local in LOCAL if key == local or key.startswith(f"{local}.")}
    refused = sorted(given - found.keys())
    if refused:
        raise ConfigError(f"{refused[0]} is determined by the trainer; set it there. Here are set: {', '.join(LOCAL)}")
    keys = {*found.values(), *(("env.options",) if "env.provider" in given else ())}
    changes: dict[str, Any] = {}
    for key in sorted(keys):
        value: Any = requested
        for name in key.split("."):
            value = value[name]
        changes[key] = value
    return changes
