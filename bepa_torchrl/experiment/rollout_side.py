"""``bepa rollouts``: plays the rollouts of a run that is trained elsewhere, on desktops and GPUs of this cluster.

Its settings are the trainer's, except for those of this side's machines. Only :func:`play_run` imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment.checks import ROLLOUT_SIDE
from bepa_torchrl.experiment.checks.unread import changes_are_read
from bepa_torchrl.experiment.config import (
    ConfigError,
    build_settings,
    check,
    given_names,
    load_config,
    settings_to_dict,
    with_changes,
)
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.scale.wire.errors import ProtocolError
from osworld_gym.uitars.coords import ImageScaling

#: what the rollout side gets of the trainer's settings
SHARED_SECTIONS = ("seed", "env", "policy", "algo", "collect", "train", "loss")
#: what it determines itself
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
    "policy.engine.max_rows",
    "policy.engine.devices",
    "policy.engine.arguments",
    "policy.engine.weights",
    "policy.engine.max_restarts",
    "policy.engine.timeout",
    "policy.engine.url",
    "policy.engine.token_file",
    "policy.engine.tls_ca",
    "cluster.address",
    "cluster.workers",
    "cluster.replicas",
    "cluster.gpus_per_replica",
    "cluster.replica_slack",
    "cluster.shrink_after",
    "threads",
)

_ENGINE_SERVER = ("policy.engine.url", "policy.engine.token_file", "policy.engine.tls_ca")


def local_changes(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """The values of a command line, by dotted key; another provider starts with no ``env.options`` of the trainer's.

    Raises:
        ConfigError: an unknown setting, or one that the trainer determines.
    """
    requested = settings_to_dict(load_config(overrides, config_dir=config_dir, checks=()))  # the trainer's are missing
    given = set(given_names(overrides))
    allowed = {key: local for key in given for local in LOCAL if key == local or key.startswith(f"{local}.")}
    refused = sorted(given - allowed.keys())
    if refused:
        raise ConfigError(f"{refused[0]} is determined by the trainer; set it there. Here are set: {', '.join(LOCAL)}")
    keys = {*allowed.values(), *(("env.options",) if "env.provider" in given else ())}
    changes: dict[str, Any] = {}
    for key in sorted(keys):
        value: Any = requested
        for name in key.split("."):
            value = value[name]
        changes[key] = value
    return changes


def shared_settings(settings: Settings, scaling: ImageScaling) -> dict[str, Any]:
    """What the rollout side must know in addition to the plan, as JSON values."""
    known = settings_to_dict(settings)
    return {"settings": {name: known[name] for name in SHARED_SECTIONS}, "image_scaling": asdict(scaling)}


def merged_settings(shared: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Settings, ImageScaling]:
    """The trainer's settings with this side's changes, and how the policy's image processor scales.

    Args:
        shared: as of :func:`shared_settings`.
        changes: as of :func:`local_changes`.

    Raises:
        ProtocolError: the trainer's settings are not those of this version.
    """
    try:
        theirs = build_settings({name: shared["settings"][name] for name in SHARED_SECTIONS})
        scaling = ImageScaling(**shared["image_scaling"])
    except (ConfigError, KeyError, TypeError) as error:
        raise ProtocolError(
            f"the trainer's settings cannot be read ({error}); install the same version of this package on both sides"
        ) from error
    # an engine behind a URL serves one program: the trainer's is not this side's, nor are its GPUs
    own: dict[str, Any] = dict.fromkeys((*_ENGINE_SERVER, "policy.engine.devices"))
    if changes.get("policy.engine.url") is not None:  # nor is what an engine of the trainer's machine is started with
        own |= {"policy.engine.arguments": {}, "policy.engine.weights": "auto"}
    settings = with_changes(theirs, own | dict(changes))
    return settings, scaling


def play_run(
    access: Access,
    changes: Mapping[str, Any],
    *,
    wait: float,
    note: Callable[[str], None],
) -> None:
    """Plays a run until it ends.

    Args:
        access: to the trainer.
        changes: values of the settings that this side determines, of :func:`local_changes`.
        wait: seconds without a connection after which the trainer is given up.
        note: gets a line when something changes.

    Raises:
        ConfigError: the settings contradict each other, or one is not read. ProtocolError: another token or version of
            the package.
        DesktopError, OSError: infrastructure; TrainerGoneError if there is no trainer.
    """
    import torch  # large packages, after what can be checked without them

    from bepa_torchrl.experiment.async_collector import ray_rollouts, sampling
    from bepa_torchrl.experiment.factory import make_sampler, vector_maker
    from bepa_torchrl.scale.rollouts.remote.gateway import RolloutGateway
    from bepa_torchrl.scale.rollouts.remote.plans import decode_plan
    from bepa_torchrl.scale.rollouts.remote.rollout_side import play_in_threads

    gateway = RolloutGateway(access, wait=wait, note=note)
    try:
        run = gateway.run()
        plan = decode_plan(run["plan"])
        settings, scaling = merged_settings(run["settings"], changes)
        check(settings, (*ROLLOUT_SIDE, partial(changes_are_read, keys=changes)))
        make_policy, make_vector = partial(make_sampler, settings), vector_maker(settings, scaling)
        note(f"plays {len(plan.tasks)} tasks on {settings.env.desktops} desktops ({settings.env.provider})")
        if settings.cluster.address is None:
            torch.set_num_threads(settings.threads)
            play_in_threads(
                gateway,
                plan,
                sampler=make_policy(),
                make_vector=make_vector,
                desktops=settings.env.desktops,
                note=note,
                **sampling(settings),
            )
            return
    finally:
        gateway.close()
    from bepa_torchrl.scale.rollouts.remote.ray_rollout_side import play_on_ray  # requires the extra ``ray``

    play_on_ray(access, plan, rollouts=ray_rollouts(settings, make_policy, make_vector), wait=wait, note=note)
