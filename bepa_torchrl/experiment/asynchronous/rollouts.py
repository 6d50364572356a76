"""``bepa rollouts``: plays the rollouts of a run that is trained elsewhere, on desktops and GPUs of this cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bepa_torchrl.experiment.asynchronous.checks import check_one_engine
from bepa_torchrl.experiment.asynchronous.collector import SHARED_SECTIONS, ray_rollouts, sampling
from bepa_torchrl.experiment.asynchronous.rollout_side_settings import local_changes
from bepa_torchrl.experiment.config import (
    ConfigError,
    build_settings,
    check_rollout,
    load_config,
    settings_to_dict,
    with_changes,
)
from bepa_torchrl.experiment.factory import make_sampler, vector_maker
from bepa_torchrl.experiment.preflight import check_rollout_side
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.scale.rollouts.channel.errors import ProtocolError
from bepa_torchrl.scale.rollouts.channel.gateway import RolloutGateway
from bepa_torchrl.scale.rollouts.channel.plans import decode_plan
from bepa_torchrl.scale.rollouts.channel.rollout_side import play_in_threads
from osworld_gym.uitars.coords import ImageScaling


def play_run(
    address: tuple[str, int],
    token: bytes,
    overrides: Sequence[str],
    *,
    config_dir: Path | None,
    wait: float,
    note: Callable[[str], None],
) -> None:
    """Plays a run until it ends.

    Args:
        address: (host, port) at which the trainer listens.
        token: the shared secret.
        overrides: ``key=value`` of the settings that this side determines.
        config_dir: as of :func:`~bepa_torchrl.experiment.config.load_config`.
        wait: seconds without a connection after which the trainer is given up.
        note: gets a line when something changes.

    Raises:
        ConfigError: a setting that the trainer determines. ProtocolError: another token or version of the package.
        DesktopError, OSError: infrastructure; TrainerGoneError if there is no trainer.
    """
    changes = local_changes(overrides, config_dir)
    gateway = RolloutGateway(address, token, wait=wait, note=note)
    try:
        run = gateway.run()
        plan = decode_plan(run["plan"])
        settings, scaling = merged_settings(run["settings"], changes)
        check_one_engine(settings)
        check_rollout_side(settings)
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
    from bepa_torchrl.scale.rollouts.channel.ray_rollout_side import play_on_ray  # requires the extra ``ray``

    play_on_ray(address, token, plan, rollouts=ray_rollouts(settings, make_policy, make_vector), wait=wait, note=note)


def merged_settings(shared: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Settings, ImageScaling]:
    """The trainer's settings with this side's changes, and how the policy's image processor scales.

    Args:
        shared: as of :func:`~bepa_torchrl.experiment.asynchronous.collector.shared_settings`.
        changes: as of :func:`.local_settings.local_changes`.

    Raises:
        ProtocolError: the trainer's settings are not those of this version.
        ConfigError: they do not work together.
    """
    try:
        base = settings_to_dict(load_config())
        theirs = build_settings(base | {name: shared["settings"][name] for name in SHARED_SECTIONS})
        scaling = ImageScaling(**shared["image_scaling"])
    except (ConfigError, KeyError, TypeError) as error:
        raise ProtocolError(
            f"the trainer's settings cannot be read ({error}); install the same version of this package on both sides"
        ) from error
    # an engine behind a URL serves one program: the trainer's is not this side's
    settings = with_changes(theirs, {"policy.engine.url": None, "policy.engine.token_file": None} | dict(changes))
    check_rollout(settings)
    return settings, scaling
