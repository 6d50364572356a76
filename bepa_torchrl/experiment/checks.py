"""The checks of a run's settings, in the order in which they are made. Imports no torch.

A check is a function of the settings that returns None, or what is wrong in one line: what was expected, what was
given, how to fix it. :func:`bepa_torchrl.experiment.config.check` makes an error of the first such line.

    SETTINGS       the settings alone; made by ``load_config``, before anything is read or written
    MACHINE        what a run requires from this machine; the cheapest first
    COMMAND        the same for the commands that torchrun may not start
    HOSTED         the same for a policy behind an endpoint, which has no checkpoint here
    DEVICES        what requires torch, after its import
    ROLLOUT_SIDE   what ``bepa rollouts`` requires
    task_checks()  the settings and the tasks of the run
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.experiment import preflight
from bepa_torchrl.experiment.gpus import engine_gpus
from bepa_torchrl.experiment.settings import (
    AdvantageSettings,
    AlgoSettings,
    CacheSettings,
    ClusterSettings,
    ExpertSettings,
    LossSettings,
    Settings,
)
from bepa_torchrl.experiment.started_by import by_torchrun, is_rank
from bepa_torchrl.methods import METHODS, LossKind, Method, SeedSource, method_named
from bepa_torchrl.rollout.injection import Injection
from osworld_gym.action_text import action_text, check_preset
from osworld_gym.tasks.evaluation.judging import is_judged
from osworld_gym.uitars.history import check_history

if TYPE_CHECKING:
    from bepa_torchrl.experiment.tasks import Tasks

Check = Callable[[Settings], str | None]


def first_problem(settings: Settings, checks: Iterable[Check]) -> str | None:
    """What the first check that fails says; None: all pass."""
    return next((problem for check in checks if (problem := check(settings)) is not None), None)


# --- methods and losses -------------------------------------------------------------------------------------------


def known_methods(settings: Settings) -> str | None:
    """``algo.name`` and the names in ``compare`` are methods; a file of ``algo/`` with another name is not enough."""
    for name in (settings.algo.name, *settings.compare):
        if name not in METHODS:
            return _raised(partial(method_named, name), "algo" if name == settings.algo.name else "compare")
    return None


def settings_of_one_method(settings: Settings) -> str | None:
    """``algo.preset`` and ``algo.gamma`` are set for LUFFY only, ``algo.gain`` for methods with prefixes."""
    algo = settings.algo
    default = AlgoSettings(name=algo.name)
    if algo.gain != default.gain and not _method(settings).prefix:
        return f"algo.gain is read by algo=prefix only, got algo={algo.name}; leave it out"
    if algo.name == "luffy" or (algo.preset, algo.gamma) == (default.preset, default.gamma):
        return None
    key = "preset" if algo.preset != default.preset else "gamma"
    return f"algo.{key} is read by algo=luffy only, got algo={algo.name}; leave it out"


def self_rollouts(settings: Settings) -> str | None:
    """One number of self-rollouts is given; ``reroll_*`` and ``handover_loss`` are set where they are read."""
    expert = settings.expert
    if expert.handover_loss == "after" and not expert.handover and settings.cache.seed is None:
        return "expert.handover_loss=after requires a hand-over; set expert.handover=M, or leave this out"
    if expert.reroll_every:
        if _method(settings).seed_source is SeedSource.self_rolled or settings.compare:
            return None
        return (
            f"expert.reroll_every={expert.reroll_every} is for methods that start from self-rollouts, such as bepa and "
            f"level1, got algo={settings.algo.name}; leave it out"
        )
    if expert.selfroll_budget is not None and expert.selfroll_attempts != ExpertSettings().selfroll_attempts:
        return "expert.selfroll_budget is used instead of expert.selfroll_attempts; leave one of them out"
    if expert.reroll_stale is not None:
        return "expert.reroll_stale is read where tasks are self-rolled again; set expert.reroll_every=N"
    return None


def ratio_of_responses(settings: Settings) -> str | None:
    """``loss.ratio=sequence`` is set with ``loss.unit=token``."""
    loss = settings.loss
    if loss.ratio == "token" or loss.unit == "token":
        return None
    return f"loss.ratio={loss.ratio} is for loss.unit=token, got loss.unit={loss.unit}; leave one of them out"


def terms_of_tokens(settings: Settings) -> str | None:
    """The loss's terms per token are not set with ``loss.unit=step``; no term is without reinforcement."""
    loss, method = settings.loss, _method(settings)
    for name in ("anchor", "kl_weight", "entropy_weight", "distill_weight"):
        weight = getattr(loss, name)
        if weight and loss.unit == "step" and name != "anchor":
            return f"loss.{name}={weight} is for loss.unit=token, got loss.unit=step; leave one of them out"
        if weight and not method.rl and not settings.compare:
            return f"loss.{name}={weight} is for methods that collect rollouts, got algo={method.name}; leave it out"
    if loss.distill_beta != LossSettings().distill_beta and not loss.distill_weight:
        return f"loss.distill_beta={loss.distill_beta} is read with loss.distill_weight only; set it, or leave this out"
    return None


def longest_episode(settings: Settings) -> str | None:
    """``loss.max_length`` is given with ``sum_norm``, and only then."""
    length = settings.loss.max_length
    released = settings.algo.name == "luffy" and settings.algo.preset == "released"
    aggregation = "algo.preset=released" if released else f"loss.aggregation={settings.loss.aggregation}"
    sums = released or settings.loss.aggregation == "sum_norm"
    if sums and length is None:
        return f"{aggregation} requires the longest episode in units; set loss.max_length=N"
    if not sums and length is not None:
        return f"loss.max_length={length} is read with loss.aggregation=sum_norm only, got {aggregation}"
    return None


def kind_of_advantage(settings: Settings) -> str | None:
    """``advantage.std`` and ``advantage.eps`` are set with GRPO's advantages only, which LUFFY's presets have, too.

    ``advantage.eps`` is added to a standard deviation, which ``advantage.std=none`` and LUFFY's preset ``released``
    lack.
    """
    advantage, algo = settings.advantage, settings.algo.name
    if advantage.kind == "grpo":
        released = algo == "luffy" and settings.algo.preset == "released"
        if advantage.eps == AdvantageSettings().eps or not (released or advantage.std == "none"):
            return None
        got = "algo.preset=released" if released else "advantage.std=none"
        return f"advantage.eps={advantage.eps} is added to a standard deviation, got {got}; leave one of them out"
    if algo == "luffy":
        return f"algo=luffy has the advantages of GRPO, got advantage.kind={advantage.kind}; leave it out"
    default = AdvantageSettings()
    for name, value, without in (("std", advantage.std, default.std), ("eps", advantage.eps, default.eps)):
        if value != without:
            return f"advantage.{name}={value} is read with advantage.kind=grpo only, got {advantage.kind}; leave it out"
    return None


def fixed_by_preset(settings: Settings) -> str | None:
    """What ``algo.preset`` fixes for LUFFY is not set to something else."""
    if _method(settings).loss is not LossKind.luffy:
        return None
    preset, advantage, loss = settings.algo.preset, settings.advantage, settings.loss
    released, plain = preset == "released", LossSettings()
    std = "none" if released else "population"
    fixed: list[tuple[str, object, tuple[object, ...]]] = [
        ("advantage.std", advantage.std, (AdvantageSettings().std, std))
    ]
    if released:
        fixed += [
            ("loss.aggregation", loss.aggregation, (plain.aggregation, "sum_norm")),
            ("loss.clip", loss.clip, (plain.clip,)),
            ("loss.dual_clip", loss.dual_clip, (plain.dual_clip,)),
        ]
    for name, value, allowed in fixed:
        if value not in allowed:
            return f"{name} is fixed by algo.preset={preset} of algo={settings.algo.name}, got {value}; leave it out"
    return None


def injected_weight(settings: Settings) -> str | None:
    """``cache.injected_weight=need`` is set where refreshes of the cache count the groups with a success."""
    method, cache = _method(settings), settings.cache
    if cache.injected_weight != "need" or method.injection is Injection.never:
        return None
    if method.injection is not Injection.on_failure or not method.refresh:
        return (
            "cache.injected_weight=need is for methods that refresh their cache and inject on failure, got "
            f"algo={method.name}; set cache.injected_weight=one, or algo=bepa"
        )
    if cache.min_successes > 1:
        return (
            "cache.injected_weight=need counts refreshes as groups with a success, which cache.min_successes="
            f"{cache.min_successes} leaves out; set one of them to its default"
        )
    return None


def part_of_refresh(settings: Settings) -> str | None:
    """``cache.refresh`` is another than ``trace`` where the sampler can write the one refreshed trace of a task."""
    method, cache, default = _method(settings), settings.cache, CacheSettings()
    if cache.refresh == "trace":
        if cache.reword_tries == default.reword_tries:
            return None
        return f"cache.reword_tries={cache.reword_tries} is read with cache.refresh=wording or actions only; set one"
    if not (method.refresh or settings.compare) or method.cache_rule == "all" or cache.rule == "all":
        return (
            f"cache.refresh={cache.refresh} is for methods that refresh one trace per task, got algo={method.name} and "
            f"cache.rule={cache.rule}; set algo=bepa and another rule, or cache.refresh=trace"
        )
    if settings.collect.mode == "async":
        return f"cache.refresh={cache.refresh} requires collect.mode=sync: the sampler writes traces between rollouts"
    if settings.policy.engine.sleep:
        return f"cache.refresh={cache.refresh} samples after the rollouts; set policy.engine.sleep=false"
    return None


def refreshing_groups(settings: Settings) -> str | None:
    """``cache.min_successes`` is set for methods that refresh their cache."""
    method, cache = _method(settings), settings.cache
    if cache.min_successes == CacheSettings().min_successes or method.refresh or settings.compare:
        return None
    return (
        f"cache.min_successes={cache.min_successes} is for methods that refresh their cache, got algo={method.name}; "
        "leave it out"
    )


def group_size(settings: Settings) -> str | None:
    """A group has at least two own rollouts."""
    size, method = settings.collect.group_size, _method(settings)
    smallest = method.on_policy_rollouts(size, has_trace=True)
    if smallest >= 2:
        return None
    return f"collect.group_size={size}: {method.name} requires at least {2 + size - smallest}"


def further_groups(settings: Settings) -> str | None:
    """``collect.dynamic`` is for rollouts, and does not leave out groups that the anchor is for."""
    dynamic, anchor, method = settings.collect.dynamic, settings.loss.anchor, _method(settings)
    if dynamic and not method.rl and not settings.compare:
        return f"collect.dynamic={dynamic} is for methods that collect rollouts, got algo={method.name}; leave it out"
    if not dynamic or not anchor:
        return None
    return f"collect.dynamic={dynamic} leaves out solved groups, which loss.anchor={anchor} is for; set one to 0"


def old_log_probs(settings: Settings) -> str | None:
    """Where something else than the policy samples, the trainer computes the old log-probs."""
    if settings.train.old_log_probs == "all":
        return None
    for key, given, without in (
        ("policy.rollout", settings.policy.rollout, "transformers"),
        ("loss.rollout_correction", settings.loss.rollout_correction, "off"),
    ):
        if given != without:
            return (
                f"{key}={given} requires the trainer's own old log-probs; set train.old_log_probs=all, "
                f"or {key}={without}"
            )
    return None


# --- policy -------------------------------------------------------------------------------------------------------


def token_budget(settings: Settings) -> str | None:
    """The longest possible row fits into a micro-batch.

    Not when a run is resumed: after running out of memory the budget may have to be lower than that.
    """
    policy, budget = settings.policy, settings.train.max_tokens
    longest = policy.max_prompt_tokens + policy.max_new_tokens
    if longest <= budget or settings.resume:
        return None
    return (
        f"train.max_tokens={budget} is less than the longest row, policy.max_prompt_tokens="
        f"{policy.max_prompt_tokens} + policy.max_new_tokens={policy.max_new_tokens}; "
        f"set train.max_tokens={longest} or lower policy.max_prompt_tokens"
    )


def known_action_text(settings: Settings) -> str | None:
    """``policy.action_text`` is an action text."""
    problem = _raised(lambda: action_text(settings.policy.action_text))
    return None if problem is None else f"policy.{problem}"


def preset(settings: Settings) -> str | None:
    """The action text has the preset."""
    return _raised(lambda: check_preset(settings.policy.action_text, settings.policy.preset), "policy.preset")


def history(settings: Settings) -> str | None:
    """The number of images goes with the history and the preset."""
    policy = settings.policy
    return _raised(lambda: check_history(policy.history, policy.history_images, preset=policy.preset), "policy.history")


def adapters(settings: Settings) -> str | None:
    """Saved or separate adapters require adapters, and rollout services get them merged."""
    policy = settings.policy
    if policy.lora.adapter is not None and policy.lora.rank is None:
        return "policy.lora.adapter requires adapters; set policy.lora.rank to that of the saved ones"
    if policy.rollout != "vllm" or policy.engine.adapters != "separate":
        return None
    if policy.lora.rank is None:
        return "policy.engine.adapters=separate requires adapters; set policy.lora.rank, or auto"
    if settings.collect.mode == "async":
        return (
            "policy.engine.adapters=separate requires collect.mode=sync, since rollout services get them merged; "
            "set auto"
        )
    return None


def sleeping_engine(settings: Settings) -> str | None:
    """An engine sleeps between the rollouts of lock-step training, beside a trainer of one rank, on its GPU."""
    policy = settings.policy
    if not policy.engine.sleep or policy.rollout != "vllm":
        return None
    if settings.collect.mode == "async":
        return "policy.engine.sleep=true requires collect.mode=sync: engines sample while the policy is trained"
    if settings.train.ranks > 1 or by_torchrun():
        return f"policy.engine.sleep=true requires train.ranks=1, got {settings.train.ranks} or torchrun"
    if policy.engine.url is not None:
        return "policy.engine.sleep=true requires an engine beside the trainer; leave policy.engine.url out"
    if policy.device == "cpu":
        return "policy.engine.sleep=true requires policy.device=cuda: vLLM gives up the memory of GPUs only"
    return None


# --- asynchronous rollouts, ranks ---------------------------------------------------------------------------------


def synchronous(settings: Settings) -> str | None:
    """Settings of ``collect.mode=async`` are not set in a run without it; only what was set is named."""
    collect, cluster = settings.collect, settings.cluster
    if collect.mode == "async":
        return None
    given = {"max_staleness": (collect.max_staleness, 0), "order": (collect.order, "admission")}
    wrong = [f"collect.{name}={value}" for name, (value, without) in given.items() if value != without]
    if wrong:
        return f"{' and '.join(wrong)}: read with collect.mode=async only; set it, or leave this out"
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


def one_engine(settings: Settings) -> str | None:
    """Several rollout services do not share the engine of ``policy.engine.url``."""
    cluster = settings.cluster
    if not _has_url(settings) or cluster.address is None or cluster.replicas == 1:
        return None
    return (
        f"policy.engine.url={settings.policy.engine.url} is one engine, got cluster.replicas={cluster.replicas}; "
        "set cluster.replicas=1, or leave policy.engine.url out: each service then starts its own engine"
    )


def engine_while_rerolling(settings: Settings) -> str | None:
    """Self-rollouts during training do not use the engine of the rollouts."""
    if settings.collect.mode == "sync" or not _has_url(settings) or not settings.expert.reroll_every:
        return None
    return (
        "expert.reroll_every plays episodes next to the rollouts of collect.mode=async, and "
        "policy.engine.url is one engine; set expert.reroll_every=0, or leave policy.engine.url out"
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
        default = ClusterSettings()
        for name in ("cpus_per_rank", "place_timeout"):
            if (value := getattr(cluster, name)) != getattr(default, name):
                return f"cluster.{name}={value:g} is read with cluster.trainer=ray only; set it, or leave this out"
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


# --- the tasks ----------------------------------------------------------------------------------------------------


def task_checks(tasks: Tasks, *, prepared: bool = False) -> tuple[Check, ...]:
    """The checks of a method's settings against the tasks.

    Args:
        tasks: tasks of the run.
        prepared: whether the run has its preparation already, and needs logs, plans and seeds no more.

    The checks raise TraceError if a source of traces is missing, or ``expert.plans`` or ``cache.seed`` cannot be used.
    """
    of_experts = (expert_sources, plans_to_distil, known_attempts)
    expert = () if prepared else tuple(partial(each, tasks=tasks) for each in of_experts)
    return (partial(judge_of_tasks, tasks=tasks), *expert, partial(enough_tasks, tasks=tasks))


def expert_sources(settings: Settings, tasks: Tasks) -> str | None:
    """The sources of expert traces can be used, and the method has one."""
    from bepa_torchrl.experiment.tasks import run_seed
    from bepa_torchrl.experts.plans import read_plans
    from bepa_torchrl.experts.sources import split_source

    method = _method(settings)
    sources = [split_source(source) for source in settings.expert.logs]
    if settings.expert.plans is not None:
        read_plans(Path(settings.expert.plans).expanduser())
    seed = run_seed(settings)
    if seed is not None:
        seed.check_tasks(tasks.suite, tasks.train, tasks.held_out, settings.policy.action_text)
    used = {source.value for source in (method.sft, method.seed_source) if source is not SeedSource.nothing}
    seeded = seed is not None and used == {seed.kind}
    if not used or seeded or sources or any(task.oracle is not None for task in tasks.train):
        return None
    return (
        f"algo={method.name} requires an expert, and none of the {len(tasks.train)} training tasks has an oracle; "
        "fix: expert.logs=[agent_s2:FOLDER], cache.seed=FOLDER, or algo=grpo"
    )


def plans_to_distil(settings: Settings, tasks: Tasks) -> str | None:
    """``loss.distill_weight`` has plans: of logs, or of the training tasks' oracles."""
    weight = settings.loss.distill_weight
    if not weight or settings.expert.logs or any(task.oracle is not None for task in tasks.train):
        return None
    return (
        f"loss.distill_weight={weight} requires an expert's plans, and none of the {len(tasks.train)} training tasks "
        "has an oracle; set expert.logs=[agent_s2:FOLDER], or loss.distill_weight=0"
    )


def known_attempts(settings: Settings, tasks: Tasks) -> str | None:
    """``expert.pass_k_file`` has ``expert.pass_k`` attempts at each task. Raises TraceError: it lacks a task."""
    from bepa_torchrl.experts.splitting import read_pass_k

    name, k = settings.expert.pass_k_file, settings.expert.pass_k
    if name is None:
        return None
    known, _ = read_pass_k(Path(name).expanduser(), (*tasks.train, *tasks.held_out))
    if known == k:
        return None
    return f"expert.pass_k_file={name} has {known} attempts per task, got expert.pass_k={k}; set expert.pass_k={known}"


def enough_tasks(settings: Settings, tasks: Tasks) -> str | None:
    """An iteration's groups have different tasks."""
    groups, count = settings.collect.groups, len(tasks.train)
    if not _method(settings).rl or groups <= count:
        return None
    return (
        f"collect.groups={groups} requires {groups} different training tasks, there are {count}; lower it or add tasks"
    )


def judge_of_tasks(settings: Settings, tasks: Tasks) -> str | None:
    """Tasks that a judge scores have one, and there is none for others."""
    judged = any(is_judged(task) for task in (*tasks.train, *tasks.held_out))
    suite, model = settings.env.suite, settings.judge.model
    if judged and model is None:
        return f"env.suite={suite}: its tasks are scored by a judge; set judge.model=NAME and judge.url=URL"
    if model is not None and not judged:
        return f"judge.model={model}: the tasks of env.suite={suite} have verifiers, no judge; leave it out"
    return None


# --- the order ----------------------------------------------------------------------------------------------------

SETTINGS: tuple[Check, ...] = (
    known_methods,
    settings_of_one_method,
    self_rollouts,
    ratio_of_responses,
    terms_of_tokens,
    longest_episode,
    kind_of_advantage,
    fixed_by_preset,
    injected_weight,
    part_of_refresh,
    refreshing_groups,
    group_size,
    further_groups,
    token_budget,
    adapters,
    old_log_probs,
    known_action_text,
    preset,
    history,
    synchronous,
    one_method_listens,
    desktops_of_workers,
    one_engine,
    engine_while_rerolling,
    sleeping_engine,
    ranks,
    ranks_on_ray,
    ranks_train_one_method,
    restarts,
)
MACHINE: tuple[Check, ...] = (
    preflight.extras,
    preflight.suite,
    preflight.judge,
    preflight.task_lists,
    preflight.checkpoint,
    preflight.engine,
    preflight.engine_cache,
    engine_gpus,
    preflight.cluster,
    preflight.desktop,
)
COMMAND: tuple[Check, ...] = (not_by_torchrun, *MACHINE)
HOSTED: tuple[Check, ...] = tuple(
    each
    for each in COMMAND
    if each not in (preflight.checkpoint, preflight.engine, preflight.engine_cache, engine_gpus)
)
DEVICES: tuple[Check, ...] = (preflight.gpus,)
#: the desktops, checkpoint and engine of a Ray cluster are on its nodes, and are checked there
ROLLOUT_SIDE: tuple[Check, ...] = (
    adapters,
    old_log_probs,
    desktops_of_workers,
    one_engine,
    preflight.engine_cache,
    preflight.cluster,
    *(preflight.without_ray(each) for each in (preflight.engine, preflight.checkpoint, preflight.desktop)),
)


def _method(settings: Settings) -> Method:
    return METHODS[settings.algo.name]


def _has_url(settings: Settings) -> bool:
    return settings.policy.rollout == "vllm" and settings.policy.engine.url is not None


def _raised(call: Callable[[], object], key: str = "") -> str | None:
    """The message of the ValueError that a component's own check raises, after the setting's name; None: none."""
    try:
        call()
    except ValueError as error:
        return f"{key}: {error}" if key else str(error)
    return None
