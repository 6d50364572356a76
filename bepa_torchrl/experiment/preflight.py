"""What a run requires from this machine: its desktop, checkpoint, tasks, engine, cluster. Imports no torch.

Each function is a check of :mod:`bepa_torchrl.experiment.checks`; what fails in the infrastructure is raised.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.checkpoints import SHIPPED, checkpoint_folder
from bepa_torchrl.checkpoints.hub import OFFLINE, is_cached, is_offline, is_repository, not_cached
from bepa_torchrl.experiment.settings import EngineSettings, Settings
from bepa_torchrl.experiment.started_by import by_ray, cluster_address, is_rank
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.extras import require_extra
from osworld_gym.folders import osworld_root
from osworld_gym.tasks.providers import REMOTE_MACHINES
from osworld_gym.tasks.suites.registry import OSWORLD, SUITES, is_web_file, suite_folder

if TYPE_CHECKING:
    from bepa_torchrl.scale.wire.access import Access

TLS_SETTINGS = ("cluster.tls_certificate", "cluster.tls_key")
#: provider → the extra of this package that installs its Python packages
_EXTRAS = {"local": "guest", "container": "container", "vm": "container"}
Check = Callable[[Settings], str | None]


def extras(settings: Settings) -> None:
    """The optional packages are installed. Raises MissingExtraError otherwise."""
    if settings.policy.lora.rank is not None:
        require_extra("lora", "policy.lora")
    if settings.optimizer.kind == "adamw_8bit":
        require_extra("adam8bit", "optimizer.kind=adamw_8bit")
    if settings.cluster.address is not None:
        require_extra("ray", "cluster.address")
    if settings.judge.model is not None:
        require_extra("endpoint", "judge.model")


def suite(settings: Settings) -> str | None:
    """The suite exists, and OSWorld's checkout if the run uses its tasks. Raises TaskError: an unknown suite."""
    name = settings.env.suite
    if name not in SUITES and is_web_file(name):
        return web_network(settings) if Path(name).expanduser().is_file() else f"env.suite={name}: no such file"
    if name not in SUITES:
        suite_folder(Path(name))
    if name != "osworld":
        return None
    root = osworld_root()
    fix = "fix: export OSWORLD_ROOT=FOLDER, or env.suite=FOLDER, with a checkout of github.com/xlang-ai/OSWorld"
    if root is None:
        return f"env.suite=osworld requires OSWORLD_ROOT, the folder of an OSWorld checkout; {fix}"
    if any((folder / "examples").is_dir() for folder in (root, root / "evaluation_examples")):
        return None
    problem = "no evaluation_examples/examples in it" if root.is_dir() else "no such folder"
    return f"OSWORLD_ROOT={root}: expected the folder of an OSWorld checkout, {problem}; {fix}"


def web_network(settings: Settings) -> str | None:
    """The desktops have a network that the user allows, for tasks on web sites."""
    env = settings.env
    if env.provider in REMOTE_MACHINES or env.options.get("proxy") is not None:
        return None
    return (
        f"env.suite={env.suite}: its tasks are on web sites, and desktops of env.provider={env.provider} have no "
        "network unless you allow it; set env.provider=local env.options.proxy=HOST:PORT, an HTTP proxy, their only "
        "way out"
    )


def judge(settings: Settings) -> str | None:
    """``judge.*`` names a judge that can be asked."""
    options = settings.judge
    if options.model is None:
        return None
    if options.url is None and not os.environ.get("OPENAI_API_KEY"):
        return f"judge.model={options.model} is OpenAI's: set OPENAI_API_KEY, or judge.url=http://HOST:PORT/v1"
    return None


def task_lists(settings: Settings) -> str | None:
    """The files of ``env.train_split`` and ``env.held_out_split`` exist, if they are files."""
    for key, name in (("train_split", settings.env.train_split), ("held_out_split", settings.env.held_out_split)):
        if name is None or not name.endswith(".json") or Path(name).expanduser().exists():
            continue
        folder = Path(name).parent
        out = "FOLDER" if folder.expanduser().exists() else folder
        split = " --split test" if settings.env.suite == OSWORLD else ""
        return (
            f"env.{key}={name}: expected a list of tasks, no such file; fix: name a list, or write train.json "
            f"and held_out.json with this run's settings: bepa experts split agent_s2:LOGS{split} --out {out}"
        )
    return None


def checkpoint(settings: Settings) -> str | None:
    """The checkpoint's folder is complete. A repository of the hub may be downloaded when the policy is loaded."""
    name = settings.policy.checkpoint
    if name in SHIPPED:
        try:
            checkpoint_folder(name)
        except FileNotFoundError as error:
            return str(error)
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if is_repository(name) and folder.parent != Path(settings.runs).expanduser():
            if not is_offline() or is_cached(name):
                return None
            return f"policy.checkpoint={name}: {not_cached(name, OFFLINE)}"
        return (
            f"policy.checkpoint={name}: expected a checkpoint folder, no such folder; "
            "fix: policy.checkpoint=FOLDER, or a Hugging Face repository OWNER/NAME"
        )
    problem = _config_problem(folder / "config.json")
    if problem is not None:
        return f"policy.checkpoint={name}: expected a config.json, {problem}; fix: name the folder of a checkpoint"
    if not any(folder.glob("*.safetensors")):
        return (
            f"policy.checkpoint={name}: expected weights in *.safetensors, found none; "
            "fix: download the whole checkpoint"
        )
    return None


def _config_problem(path: Path) -> str | None:
    """What is wrong with a model's ``config.json``; None: it is a JSON object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "found none"
    except (OSError, ValueError) as error:
        return f"found one that cannot be read ({getattr(error, 'strerror', None) or error})"
    return None if isinstance(config, dict) else f"found one that is a {type(config).__name__}, not a JSON object"


def engine(settings: Settings) -> None:
    """This machine has vLLM, or a ``bepa engine`` answers at ``policy.engine.url``.

    Raises:
        EngineVersionError: no supported version of vLLM. ValueError: no URL or no token. EngineError: the server does
            not answer, or refuses the token.
    """
    options = settings.policy.engine
    if settings.policy.rollout != "vllm":
        return
    from bepa_torchrl.scale.engine.errors import engine_version

    if options.url is None:
        engine_version()
        return
    require_extra("wire", "policy.engine.url")
    from bepa_torchrl.scale.engine.http.client import EngineClient, EngineUnreachableError

    try:
        EngineClient(engine_access(options)).state()
    except EngineUnreachableError as error:
        raise EngineUnreachableError(f"{error}; start `bepa engine` there, or correct policy.engine.url") from error


def engine_cache(settings: Settings) -> str | None:
    """The engine's key-value cache holds a prompt and response of the maximum length.

    Otherwise vLLM would refuse to start after it has loaded the weights. A checkpoint whose configuration is not on
    this machine is not checked.
    """
    policy = settings.policy
    if policy.rollout != "vllm":
        return None
    from bepa_torchrl.sizing.known_models import folder_model, known_model
    from bepa_torchrl.sizing.memory import kv_bytes
    from bepa_torchrl.sizing.model import model_shape

    folder = Path(checkpoint_folder(policy.checkpoint)).expanduser()
    try:
        files = folder_model(folder) if folder.is_dir() else known_model(policy.checkpoint)
        text = model_shape(files.config).text
    except ValueError:
        return None
    window = policy.max_prompt_tokens + policy.max_new_tokens
    workers = int(policy.engine.arguments.get("tensor_parallel_size", 1))
    needed = window * kv_bytes(text, 4 if policy.dtype == "float32" else 2, workers) / 1e9
    if needed <= policy.engine.kv_cache_gb:
        return None
    return (
        f"policy.engine.kv_cache_gb={policy.engine.kv_cache_gb:g}: a prompt and response of the maximum length "
        f"({window:,} tokens) need {needed:.3g} GB, with less vLLM does not start; "
        f"set policy.engine.kv_cache_gb={math.ceil(needed * 10) / 10:g} or more, or a smaller "
        "policy.max_prompt_tokens"
    )


def cluster(settings: Settings) -> str | None:
    """Ray's head answers at ``cluster.address``; ``cluster.listen`` is a free address of this machine, and has a token.

    Raises:
        MissingExtraError: no Ray. DesktopError: no cluster at the address. ValueError: no token. OSError: the address
            is in use, or another machine's.
    """
    options = settings.cluster
    address = cluster_address(settings)
    if address is not None:
        from bepa_torchrl.scale.rollouts.ray_address import check_head

        require_extra("ray", "cluster.address")
        check_head(address)
    if options.listen is None:
        return None
    from bepa_torchrl.scale.wire.access import listening_socket, parse_address, read_tls, read_token

    try:
        listens = parse_address(options.listen)
    except ValueError as error:
        return f"cluster.listen: {error}"
    require_extra("wire", "cluster.listen")
    read_token(None if options.token_file is None else Path(options.token_file))
    read_tls(options.tls_certificate, options.tls_key, TLS_SETTINGS)
    listening_socket(listens, "cluster.listen").close()
    return None


def desktop(settings: Settings) -> None:
    """A desktop can be made; it is closed without being started.

    Raises:
        ValueError: an unknown provider or option. DesktopError: the provider cannot be used on this machine; the
            message names what is missing and the fix.
    """
    env = settings.env
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


def gpus(settings: Settings) -> str | None:
    """This machine has a GPU for each of its ranks. Imports torch."""
    if settings.train.ranks == 1 or settings.policy.device == "cpu":
        return None
    import torch

    local = os.environ.get("LOCAL_WORLD_SIZE") if is_rank() else None
    ranks, count = settings.train.ranks if local is None else int(local), torch.cuda.device_count()
    if count >= ranks:
        return None
    where = f"train.ranks={ranks}" if local is None else f"torchrun --nproc-per-node={ranks}"
    if by_ray():
        return f"Ray has placed {ranks} ranks here, and torch sees {count} GPUs; check the node's driver and CUDA"
    return f"{where} requires {ranks} GPUs, this machine has {count}; lower it"


def without_ray(check: Check) -> Check:
    """The check, made only where rollouts are played by this process: a Ray cluster's nodes check for themselves."""
    return lambda settings: check(settings) if settings.cluster.address is None else None


def engine_access(engine: EngineSettings) -> Access:
    """How ``policy.engine.url`` is reached.

    Raises:
        ValueError: no URL, no token or no certificates, or a file that cannot be read.
    """
    from bepa_torchrl.scale.wire.access import ENGINE_TOKEN, Access, check_url, read_ca, read_token

    token, ca = (None if name is None else Path(name) for name in (engine.token_file, engine.tls_ca))
    return Access(
        check_url(str(engine.url), "policy.engine.url"),
        read_token(token, variable=ENGINE_TOKEN),
        read_ca(ca, "policy.engine.tls_ca"),
    )
