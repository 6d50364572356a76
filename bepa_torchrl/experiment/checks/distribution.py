"""Checks of asynchronous rollouts, ranks and engines of several machines. Imports no torch."""

from __future__ import annotations

from bepa_torchrl.experiment.checks.check import has_url
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import by_torchrun, is_rank


def synchronous(settings: Settings) -> str | None:
    """A run whose rollouts are synchronous plays them itself."""
    cluster = settings.cluster
    if settings.collect.mode == "async":
        return None
    for name, value in (("address", cluster.address), ("listen", cluster.listen)):
        if value is not None and not (name == "address" and cluster.trainer == "ray"):
            return f"cluster.{name}={value} requires collect.mode=async; set it"
    return None


def one_method_listens(settings: Settings) -> str | None:
    """A run with ``cluster.listen`` has one method."""
    listen, compare = settings.cluster.listen, settings.compare
    if listen is None or all(name == settings.algo.name for name in compare):
        return None
    return (
        f"cluster.listen={listen} requires compare=[], since one training process listens there; got "
        f"compare={list(compare)}; set compare=[]"
    )


def desktops_of_workers(settings: Settings) -> str | None:
    """Each worker has a desktop."""
    workers, desktops = settings.cluster.workers, settings.env.desktops
    if settings.cluster.address is None or workers is None or workers <= desktops:
        return None
    return f"cluster.workers={workers} is more than env.desktops={desktops}, which they share; lower it"


def desktops_of_nodes(settings: Settings) -> str | None:
    """Methods that train at the same time do not each have the desktops of Ray's nodes; a begun run goes on."""
    methods = list(dict.fromkeys((settings.algo.name, *settings.compare)))
    cluster = settings.cluster
    by_node = cluster.address is not None and cluster.workers is None and settings.collect.mode == "async"
    if not by_node or settings.processes == 1 or len(methods) == 1 or settings.resume:
        return None
    return (
        "cluster.workers=null starts as many desktops on a node as its resource says, for each of the methods that "
        f"train at the same time, got processes={settings.processes} for {', '.join(methods)}; set processes=1, or "
        "compare=[]"
    )


def one_engine(settings: Settings) -> str | None:
    """Several rollout services do not share the engine of ``policy.engine.url``."""
    cluster = settings.cluster
    if not has_url(settings) or cluster.address is None or cluster.replicas == 1:
        return None
    return (
        f"policy.engine.url={settings.policy.engine.url} is one engine, got cluster.replicas={cluster.replicas}; "
        "set cluster.replicas=1, or leave policy.engine.url out: each service then starts its own engine"
    )


def engine_of_one_method(settings: Settings) -> str | None:
    """Methods that train at the same time do not share the engine of ``policy.engine.url``."""
    methods = list(dict.fromkeys((settings.algo.name, *settings.compare)))
    if not has_url(settings) or settings.processes == 1 or len(methods) == 1:
        return None
    return (
        f"policy.engine.url={settings.policy.engine.url} is one engine with the weights of one method, got "
        f"processes={settings.processes} for {', '.join(methods)}; set processes=1, or compare=[]"
    )


def engine_elsewhere(settings: Settings) -> str | None:
    """What an engine of this machine has is not set with ``policy.engine.url``."""
    engine = settings.policy.engine
    if not has_url(settings):
        return None
    given = [
        f"{name}={value}" for name, value in (("devices", engine.devices), ("arguments", engine.arguments)) if value
    ]
    if engine.weights in ("ipc", "nccl"):
        return (
            f"policy.engine.weights={engine.weights} is for an engine of this machine, that of policy.engine.url gets "
            "its weights as files, by HTTP; leave it out"
        )
    if engine.tls_ca is not None and not str(engine.url).lower().startswith("https://") and not settings.resume:
        return (
            f"policy.engine.tls_ca is for https, got policy.engine.url={engine.url}, without TLS; set "
            "policy.engine.url=https://HOST:PORT, or leave policy.engine.tls_ca out"
        )
    if given:
        return f"policy.engine.{given[0]}: the engine of policy.engine.url has those of its `bepa engine`; leave it out"
    return None


def engine_loads_the_policy(settings: Settings) -> str | None:
    """``policy.engine.arguments`` does not name a model: the engine loads what is trained."""
    engine = settings.policy.engine
    if "model" not in engine.arguments:
        return None
    return (
        f"policy.engine.arguments.model={engine.arguments['model']}: the engine loads the policy; leave it "
        "out, policy.checkpoint names the policy"
    )


def engine_while_rerolling(settings: Settings) -> str | None:
    """Self-rollouts during training do not use the engine of the rollouts."""
    if settings.collect.mode == "sync" or not has_url(settings) or not settings.expert.reroll_every:
        return None
    return (
        "expert.reroll_every plays episodes next to the rollouts of collect.mode=async, and "
        "policy.engine.url is one engine; set expert.reroll_every=0, or leave policy.engine.url out"
    )


def gpus_of_services(settings: Settings) -> str | None:
    """Rollout services on Ray have GPUs that Ray has given to them, if their policy computes on one.

    Without, an actor of Ray's sees all GPUs of its node, the trainer's too, and may be on a node that has none. A run
    that has begun goes on.
    """
    cluster, device = settings.cluster, settings.policy.device
    on_ray = settings.collect.mode == "async" and cluster.address is not None and cluster.listen is None
    if not on_ray or not device.startswith("cuda") or settings.resume:
        return None
    if not cluster.gpus_per_replica:
        return (
            f"cluster.address={cluster.address} with policy.device={device} requires GPUs for the copies of the policy "
            "that sample, got cluster.gpus_per_replica=0; set cluster.gpus_per_replica=1"
        )
    devices = settings.policy.engine.devices
    if devices is not None:
        return (
            f"policy.engine.devices={devices} would be the GPU of every copy of the policy that samples, and Ray gives "
            "each its own (cluster.gpus_per_replica); leave it out"
        )
    if device.partition(":")[2] in ("", "0"):
        return None
    return (
        f"policy.device={device}: the GPU that Ray gives to a copy of the policy is cuda:0 there; set "
        "policy.device=cuda (CUDA_VISIBLE_DEVICES chooses the trainer's GPU)"
    )


def ranks(settings: Settings) -> str | None:
    """The other settings work on several ranks."""
    count, device = settings.train.ranks, settings.policy.device
    if count == 1 and settings.cluster.trainer == "here":
        return None
    if device not in ("cpu", "cuda"):
        return (
            f"train.ranks={count} takes the GPUs cuda:0 to cuda:{count - 1}, got policy.device={device}; "
            "set policy.device=cuda (CUDA_VISIBLE_DEVICES chooses the GPUs), or policy.device=cpu"
        )
    return None


def ranks_on_ray(settings: Settings) -> str | None:
    """``cluster.trainer=ray`` has a cluster, and the trainer uses what Ray gives it."""
    cluster, engine = settings.cluster, settings.policy.engine
    if cluster.trainer == "here":
        return None
    if by_torchrun():
        return "cluster.trainer=ray: Ray places the ranks, and torchrun has started this process; use one of them"
    if cluster.address is None:
        return "cluster.trainer=ray requires a cluster; set cluster.address=HEAD:6379, auto or local"
    if cluster.address.startswith("ray://"):
        return (
            f"cluster.address={cluster.address}: with cluster.trainer=ray, bepa train is started on a node of the "
            "cluster; set cluster.address=auto there"
        )
    if engine.devices is not None:
        return (
            f"policy.engine.devices={engine.devices} is not known to Ray, which gives the ranks of cluster.trainer=ray "
            "their GPUs; leave it out"
        )
    return None


def ranks_train_one_method(settings: Settings) -> str | None:
    """Several methods do not use ranks that have been placed at the same time."""
    methods = {settings.algo.name, *settings.compare}
    on_ray = settings.cluster.trainer == "ray"
    if not (is_rank() or on_ray) or settings.train.ranks == 1 or settings.processes == 1 or len(methods) == 1:
        return None
    whose = "the ranks of cluster.trainer=ray" if on_ray else "torchrun's processes"
    return f"processes={settings.processes}: {whose} train one method at a time; set processes=1"


def restarts(settings: Settings) -> str | None:
    """Torchrun, which has started the processes, starts them again itself."""
    if not by_torchrun() or not settings.restarts:
        return None
    return (
        f"restarts={settings.restarts}: torchrun starts its processes again itself; set restarts=0, and "
        f"torchrun's --max-restarts={settings.restarts}, with name=NAME"
    )


def not_by_torchrun(_: Settings) -> str | None:
    """Torchrun has not started this program, which is not for it."""
    if not is_rank():
        return None
    return "bepa train is the only command that torchrun may start; run this one without it, once"
