"""Checks that a run's desktop, checkpoint and tasks are available, before anything is written. Imports no torch."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from bepa_torchrl.checkpoints import SHIPPED, checkpoint_folder
from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.settings import ClusterSettings, EngineSettings, EnvSettings, Settings
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.extras import require_extra
from osworld_gym.folders import osworld_root
from osworld_gym.tasks.suites.registry import SUITES, suite_folder

#: provider → the extra of this package that installs its Python packages
_EXTRAS = {"local": "guest", "container": "container", "vm": "container"}


def check_environment(settings: Settings, *, torchrun: bool = False) -> None:
    """Checks what a run requires from this machine, the cheapest check first.

    Args:
        settings: of the run.
        torchrun: whether torchrun may have started the program.

    Raises:
        ConfigError: ``train.ranks`` and another setting do not work together; the engine's cache is too small to start;
            ``OSWORLD_ROOT`` or the checkpoint is
            missing or incomplete; torchrun has started a program that is not for it.
        EngineVersionError: ``policy.rollout=vllm`` without a supported version of vLLM.
        EngineError: no ``bepa engine`` answers at ``policy.engine.url``, or it refuses the token.
        MissingExtraError: ``cluster.address``, ``policy.lora`` or 8-bit Adam without their packages.
        OSError: ``cluster.token_file`` cannot be read.
        TaskError: an unknown suite.
        ValueError: an unknown provider or provider option.
        DesktopError: no Ray cluster at ``cluster.address``, or the provider cannot be used on this machine; the
            message names what is missing and the fix.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and not torchrun:
        raise ConfigError("bepa train is the only command that torchrun may start; run this one without it, once")
    _check_ranks(settings)
    if settings.policy.lora.rank is not None:
        require_extra("lora", "policy.lora")
    if settings.optimizer.kind == "adamw_8bit":
        require_extra("adam8bit", "optimizer.kind=adamw_8bit")
    if settings.env.suite not in SUITES:
        suite_folder(Path(settings.env.suite))
    _check_osworld(settings.env.suite)
    check_checkpoint(settings.policy.checkpoint)
    if settings.policy.rollout == "vllm":
        _check_engine(settings.policy.engine)
        check_engine_cache(settings)
    _check_cluster(settings.cluster)
    _check_desktop(settings.env)


def check_rollout_side(settings: Settings) -> None:
    """Checks what ``bepa rollouts`` requires from this machine; raises as :func:`check_environment`.

    The desktops, checkpoint and engine of a Ray cluster are on its nodes, and are checked there.
    """
    _check_cluster(settings.cluster)
    if settings.cluster.address is None:
        if settings.policy.rollout == "vllm":
            _check_engine(settings.policy.engine)
        check_checkpoint(settings.policy.checkpoint)
        _check_desktop(settings.env)


def _check_cluster(cluster: ClusterSettings) -> None:
    """Checks for Ray, and for the address and the token of the channel.

    Raises:
        MissingExtraError, ValueError, OSError, DesktopError: see :func:`check_environment`.
    """
    if cluster.address is not None:
        from bepa_torchrl.scale.rollouts.ray_address import check_head

        require_extra("ray", "cluster.address")
        check_head(cluster.address)
    if cluster.listen is None:
        return
    from bepa_torchrl.scale.rollouts.channel.handshake import parse_address, read_token

    try:
        parse_address(cluster.listen)
    except ValueError as error:
        raise ConfigError(f"cluster.listen: {error}") from error
    read_token(None if cluster.token_file is None else Path(cluster.token_file))


def _check_engine(engine: EngineSettings) -> None:
    """Checks for vLLM here, or for the ``bepa engine`` at ``policy.engine.url``.

    Raises:
        ValueError: no vLLM, no URL or no token. EngineError: the server does not answer, or refuses the token.
    """
    from bepa_torchrl.scale.engine.errors import engine_version
    from bepa_torchrl.scale.engine.http_engine.client import EngineClient

    if engine.url is None:
        engine_version()
    else:
        EngineClient(engine.url, engine_token(engine)).state()


def check_engine_cache(settings: Settings) -> None:
    """Checks that the engine's key-value cache holds a prompt and response of the maximum length.

    vLLM refuses to start otherwise, after it has loaded the weights. Of a checkpoint whose configuration is not on this
    machine nothing is known, and nothing is checked.

    Raises:
        ConfigError: it does not.
    """
    from bepa_torchrl.sizing.known_models import folder_model, known_model
    from bepa_torchrl.sizing.memory import kv_bytes
    from bepa_torchrl.sizing.model import model_shape

    policy = settings.policy
    folder = Path(checkpoint_folder(policy.checkpoint)).expanduser()
    try:
        files = folder_model(folder) if folder.is_dir() else known_model(policy.checkpoint)
        text = model_shape(files.config).text
    except ValueError:
        return
    window = policy.max_prompt_tokens + policy.max_new_tokens
    ranks = int(policy.engine.arguments.get("tensor_parallel_size", 1))  # each has its share of the heads
    needed = window * kv_bytes(text, 4 if policy.dtype == "float32" else 2) / ranks / 1e9
    if needed > policy.engine.kv_cache_gb:
        raise ConfigError(
            f"policy.engine.kv_cache_gb={policy.engine.kv_cache_gb:g}: a prompt and response of the maximum length "
            f"({window:,} tokens) need {needed:.3g} GB, with less vLLM does not start; "
            f"set policy.engine.kv_cache_gb={math.ceil(needed * 10) / 10:g} or more, or a smaller "
            "policy.max_prompt_tokens"
        )


def engine_token(engine: EngineSettings) -> bytes:
    """The token of ``policy.engine.url``. Raises ValueError if there is none, OSError if it cannot be read."""
    from bepa_torchrl.scale.rollouts.channel.handshake import ENGINE_TOKEN, read_token

    path = None if engine.token_file is None else Path(engine.token_file)
    return read_token(path, variable=ENGINE_TOKEN)


def _check_ranks(settings: Settings) -> None:
    """Checks that the other settings work on several ranks.

    Raises:
        ConfigError: one does not.
    """
    ranks, policy = settings.train.ranks, settings.policy
    if ranks == 1:
        return
    if settings.collect.mode != "sync":
        raise ConfigError(
            f"train.ranks={ranks} and collect.mode={settings.collect.mode} do not work together; "
            "set collect.mode=sync, or train.ranks=1"
        )
    if policy.device not in ("cpu", "cuda"):
        raise ConfigError(
            f"train.ranks={ranks} takes the GPUs cuda:0 to cuda:{ranks - 1}, got policy.device={policy.device}; "
            "set policy.device=cuda (CUDA_VISIBLE_DEVICES chooses the GPUs), or policy.device=cpu"
        )


def _check_osworld(suite: str) -> None:
    """Checks for OSWorld's checkout if the run uses its tasks."""
    if suite != "osworld":
        return
    root = osworld_root()
    fix = "fix: export OSWORLD_ROOT=FOLDER, or env.suite=FOLDER, with a checkout of github.com/xlang-ai/OSWorld"
    if root is None:
        raise ConfigError(f"env.suite=osworld requires OSWORLD_ROOT, the folder of an OSWorld checkout; {fix}")
    if not any((folder / "examples").is_dir() for folder in (root, root / "evaluation_examples")):
        problem = "no evaluation_examples/examples in it" if root.is_dir() else "no such folder"
        raise ConfigError(f"OSWORLD_ROOT={root}: expected the folder of an OSWorld checkout, {problem}; {fix}")


def check_checkpoint(checkpoint: str) -> None:
    """Checks the files of a checkpoint folder. A Hugging Face repository is checked when the policy is loaded."""
    if checkpoint in SHIPPED:
        try:
            checkpoint_folder(checkpoint)
        except FileNotFoundError as error:
            raise ConfigError(str(error)) from error
        return
    folder = Path(checkpoint).expanduser()
    if not folder.is_dir():
        if checkpoint.count("/") == 1 and not checkpoint.startswith((".", "~", os.sep)):
            return  # a repository: owner/name
        raise ConfigError(
            f"policy.checkpoint={checkpoint}: expected a checkpoint folder, no such folder; "
            "fix: policy.checkpoint=FOLDER, or a Hugging Face repository OWNER/NAME"
        )
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.checkpoint={checkpoint}: expected a config.json: {error}; fix: name the folder of a checkpoint"
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"policy.checkpoint={checkpoint}: expected weights in *.safetensors, found none; "
            "fix: download the whole checkpoint"
        )


def _check_desktop(env: EnvSettings) -> None:
    """Creates and closes a desktop without starting it."""
    try:
        make_desktop(env.provider, **env.options).close()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(env.provider)
        if extra is None:
            raise
        raise DesktopError(
            FailureReason.never_ready,
            f"env.provider={env.provider} requires the Python package {error.name}; "
            f"fix: pip install 'osworld-gym[{extra}]'",
        ) from error
    except DesktopError as error:
        message = str(error).removeprefix(f"{error.reason.value}: ")
        raise DesktopError(error.reason, f"env.provider={env.provider} cannot be used here: {message}") from error
