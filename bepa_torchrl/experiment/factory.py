"""Builds the experiment's components from the settings. The components themselves take plain arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torchrl.envs.transforms import Compose, Transform
from torchrl.record.loggers import Logger

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.endpoint import Endpoint
from bepa_torchrl.experiment.config import with_changes
from bepa_torchrl.experiment.loss_and_optimizer import advantage_std, make_method_loss, make_optimizer, scored_rows
from bepa_torchrl.experiment.preflight import engine_access
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.methods import Method
from bepa_torchrl.policies.allocator import set_allocator
from bepa_torchrl.policies.base import EngineSampler, ModelSampler, Policy, Sampler
from bepa_torchrl.policies.device import check_device
from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.rollout.base_log_prob import BaseLogProb
from bepa_torchrl.rollout.dynamic_sampling import GroupsWithSignal, has_signal
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.injection import Injection
from bepa_torchrl.rollout.old_log_prob import OldLogProb, fill_old_log_probs
from bepa_torchrl.rollout.plan_log_prob import PlanLogProb
from bepa_torchrl.rollout.prefix import PrefixLengths
from bepa_torchrl.rollout.rewording import Rewording
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.rollout.weight_sync import EngineWeightSync
from bepa_torchrl.training.optimization_step import GroupStepper, local_passes
from bepa_torchrl.training.trainer import BEPATrainer, OnIteration
from osworld_gym.episode import EpisodeOptions
from osworld_gym.factory import desktop_factory
from osworld_gym.tasks.evaluation.judging import Judge
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.vector import DesktopVector

if TYPE_CHECKING:
    from bepa_torchrl.evaluation.web.verifier import WebJudge
    from bepa_torchrl.scale.engine.sampler import VLLMSampler
    from bepa_torchrl.scale.sharding.leader import Leader


def make_policy(settings: Settings, *, seed: int) -> Policy:
    """Builds the policy with the checkpoint's weights.

    Raises:
        CheckpointError: the checkpoint cannot be used as a policy.
        MissingExtraError: ``policy.lora`` requires PEFT, which is not installed. ValueError: its adapters do not fit,
            or this machine does not have the device.
    """
    check_device(settings.policy.device)
    set_allocator(settings.policy.device)
    options = asdict(settings.policy)
    checkpoint, lora = options.pop("checkpoint"), options.pop("lora")
    del options["rollout"], options["engine"]
    options["image_cache_bytes"] = int(options.pop("feature_cache_gb") * 1e9)
    return load_policy(
        checkpoint,
        seed=seed,
        temperature=settings.collect.temperature,
        lora=None if lora["rank"] is None else Lora(**lora),
        **options,
    )


@contextmanager
def rollout_policy(settings: Settings, policy: Policy, *, folder: Path | None = None) -> Iterator[ModelSampler]:
    """The policy that samples: the one in training, or an inference engine with its weights, which ends afterwards.

    Args:
        folder: folder for the engine's copies of the weights; None: a temporary one.

    Raises:
        EngineVersionError: vLLM is not installed or has an unsupported version.
    """
    if settings.policy.rollout == "transformers":
        yield policy
        return
    sampler = _make_engine(settings, policy, folder)
    try:
        yield sampler
    finally:
        sampler.close()


def check_engine(settings: Settings, policy: Policy) -> None:
    """Checks that an engine can have the policy's weights, as :func:`rollout_policy` does after the preparation.

    Raises:
        ValueError: it cannot.
    """
    if settings.policy.rollout == "transformers":
        return
    from bepa_torchrl.scale.engine.errors import check_family
    from bepa_torchrl.scale.engine.weight_sync.adapters import engine_adapters

    assert isinstance(policy, TransformersPolicy)
    check_family(policy.model.config.model_type)
    engine_adapters(policy.model, settings.policy.engine.adapters)


def _make_engine(settings: Settings, policy: Policy, folder: Path | None, *, own_weights: bool = False) -> VLLMSampler:
    """The inference engine of the settings, with the policy's renderer and weights; it is not started."""
    from bepa_torchrl.scale.engine.errors import check_family, engine_version
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

    assert isinstance(policy, TransformersPolicy)
    check_family(policy.model.config.model_type)
    engine = settings.policy.engine
    if engine.url is None:
        engine_version()
    return VLLMSampler(
        policy,
        own_weights=own_weights,
        folder=folder,
        kv_cache_gb=engine.kv_cache_gb,
        max_rows=engine.max_rows or max(settings.env.desktops, settings.policy.max_rows),
        devices=engine.devices,
        arguments=dict(engine.arguments) or None,
        max_restarts=engine.max_restarts,
        tolerance=engine.tolerance,
        start_timeout=engine.timeout,
        stall_timeout=engine.timeout,
        adapters=engine.adapters,
        weights=engine.weights,
        sleep=engine.sleep,
        access=None if engine.url is None else engine_access(engine),
    )


def make_env(settings: Settings, scaling: ImageScaling, suite: Suite, *, judge: Judge | None = None) -> OSWorldEnv:
    """Builds the environment with its desktops.

    Args:
        settings: the settings of the desktops and the episodes.
        scaling: from the policy's points to pixels of the screen.
        suite: the suite of the tasks.
        judge: scores the tasks that a judge scores, instead of that of the settings.

    Raises:
        ValueError: unknown provider or option. DesktopError: the first desktop cannot be made.
    """
    env, supported = settings.env, [task for task in suite.tasks if not task.unsupported]
    return OSWorldEnv(
        env.provider,
        env.desktops,
        suite=suite if len(supported) == len(suite.tasks) else suite.of(supported),
        observation="png",
        options=_episode_options(settings, scaling, judge),
        provider_options=env.options,
        deadline=env.deadline,
        warm=env.warm_pool,
        seed=settings.seed,
    )


def _episode_options(settings: Settings, scaling: ImageScaling, judge: Judge | None = None) -> EpisodeOptions:
    env = settings.env
    return EpisodeOptions(
        max_steps=env.max_steps,
        parse_errors=env.parse_errors,
        call_user_tolerance=env.call_user_tolerance,
        scaling=scaling,
        action_text=settings.policy.action_text,
        official_timing=env.official_timing,
        evaluators=Evaluators(env.evaluators),
        judge=judge or make_judge(settings),
    )


def make_judge(settings: Settings) -> WebJudge | None:
    """The judge of the settings; None if there is none."""
    judge = settings.judge
    if judge.model is None:
        return None
    from bepa_torchrl.evaluation.web.verifier import WebJudge  # most runs have no judge

    return WebJudge(
        Endpoint(
            judge.model,
            judge.url,
            max_tokens=judge.max_tokens,
            timeout=judge.timeout,
            retries=judge.retries,
            at_once=judge.at_once,
            reasoning=judge.reasoning,
        )
    )


def make_cache(settings: Settings, algo: Method, *seeds: TaskTraceCache) -> TaskTraceCache | None:
    """Builds the method's cache, filled from ``seeds``; None for a method without a cache.

    Args:
        seeds: caches of traces; a task's trace is taken from the first one that has it.
    """
    if not (algo.refresh or algo.prefix or algo.injection is not algo.injection.never):
        return None
    cache = TaskTraceCache(
        traces_per_task=algo.traces_per_task,
        max_tasks=settings.cache.max_tasks,
        rule=algo.cache_rule or settings.cache.rule,
        seed=settings.seed,
    )
    for source in seeds:
        for task_id in source.task_ids():
            if not cache.contains(task_id):
                cache.put(task_id, source.get_trace(task_id))
    return cache


def make_trainer(
    settings: Settings,
    algo: Method,
    policy: Policy,
    env: OSWorldEnv,
    tasks: Sequence[Task],
    cache: TaskTraceCache | None,
    *,
    held_out: Sequence[Task] = (),
    rollout: ModelSampler | None = None,
    leader: Leader | None = None,
    plans: Mapping[str, str] | None = None,
    checkpoints: Path | None = None,
    loggers: Sequence[Logger] = (),
    on_iteration: OnIteration | None = None,
) -> BEPATrainer:
    """Builds the trainer of a method's reinforcement phase.

    Args:
        held_out: tasks that only evaluations of ``collect.mode=async`` play.
        rollout: samples the rollouts, from :func:`rollout_policy`; None: the policy in training.
        leader: the leader of the ranks over which the policy is divided; None: it is whole.
        plans: task id → the expert's plan, for ``loss.distill_weight`` and ``cache.refresh=actions``.

    Raises:
        ValueError: settings that contradict each other; the message names the setting.
    """
    replacement = TraceReplacement(
        cache,
        injection=algo.injection,
        refresh=algo.refresh,
        rewording=_rewording(settings, algo, rollout or policy, plans),
        min_successes=settings.cache.min_successes,
        weight=settings.cache.injected_weight,
        kept=settings.cache.injected_kept,
        advantage=settings.advantage.kind,
        std=advantage_std(algo, settings.advantage.std, luffy_preset=settings.algo.preset),
        eps=settings.advantage.eps,
    )
    loss = make_method_loss(settings, algo, policy)
    rows = scored_rows(settings.train.old_log_probs, loss)
    fill = None if leader is None else leader.fill_old_log_probs
    old = OldLogProb(policy, rows=rows, max_tokens=settings.train.max_tokens, fill=fill)
    scored = [*_scored_by_base(settings, policy, leader), *_scored_with_plans(settings, policy, leader, plans)]
    finish = Compose(replacement, *_with_signal(settings, algo), old, *scored)
    collector = make_collector(
        settings, algo, policy, env, tasks, replacement.cache, finish, held_out=held_out, rollout=rollout, leader=leader
    )
    optimizer = make_optimizer(settings, policy)
    return BEPATrainer(
        collector=collector,
        loss_module=loss,
        stepper=_make_stepper(settings, policy, optimizer, leader),
        iterations=settings.train.iterations,
        replacement=replacement,
        inner_epochs=settings.train.inner_epochs,
        minibatch_groups=settings.train.minibatch_groups,
        loggers=loggers,
        checkpoints=checkpoints,
        save_every=settings.train.save_every,
        keep=settings.train.keep,
        load_shards=_load_shards,
        state=None if leader is None else leader.state(optimizer),
        on_iteration=on_iteration,
    )


def _rewording(
    settings: Settings, algo: Method, sampler: ModelSampler, plans: Mapping[str, str] | None
) -> Rewording | None:
    """What writes the refreshed traces, with another ``cache.refresh`` than ``trace``. Raises ValueError: no plans."""
    cache = settings.cache
    if cache.refresh == "trace" or not algo.refresh:
        return None
    if cache.refresh == "actions" and not plans:
        raise ValueError("cache.refresh=actions requires the experts' plans, got none; set expert.logs")
    return Rewording(
        sampler,
        cache.refresh,
        protocol=settings.policy.action_text,
        seed=settings.seed,
        plans=plans,
        tries=cache.reword_tries,
        temperature=settings.collect.temperature,
    )


def _with_signal(settings: Settings, algo: Method) -> list[Transform]:
    """What leaves out groups without a signal, with ``collect.dynamic``."""
    if not settings.collect.dynamic:
        return []
    return [GroupsWithSignal(settings.collect.groups, supervised=algo.injection is Injection.additional)]


def _scored_by_base(settings: Settings, policy: Policy, leader: Leader | None) -> list[Transform]:
    """What scores rows under the base policy, if the loss reads that: the policy without adapters, or a copy.

    With ``policy.lora.adapter`` the base policy has those adapters, so that it is a copy, too. On several ranks a copy
    is whole, and rank 0's.
    """
    if not settings.loss.kl_weight:
        return []
    budget, lora = settings.train.max_tokens, settings.policy.lora
    if lora.rank is not None and lora.adapter is None:
        if leader is not None:
            return [BaseLogProb(partial(leader.fill_base_log_probs, max_tokens=budget))]
        assert isinstance(policy, TransformersPolicy)
        return [BaseLogProb(partial(_fill_without_adapters, policy, max_tokens=budget))]
    base = make_policy(settings, seed=settings.seed)
    return [BaseLogProb(partial(fill_old_log_probs, base, max_tokens=budget, key=K.BASE_LOG_PROB))]


def _fill_without_adapters(policy: TransformersPolicy, rows: Sequence[TensorDictBase], *, max_tokens: int) -> None:
    with policy.as_base():
        fill_old_log_probs(policy, rows, max_tokens=max_tokens, key=K.BASE_LOG_PROB)


def _scored_with_plans(
    settings: Settings, policy: Policy, leader: Leader | None, plans: Mapping[str, str] | None
) -> list[Transform]:
    """What scores rows with the plan in the prompt, with ``loss.distill_weight``. Raises ValueError: no plans."""
    weight = settings.loss.distill_weight
    if not weight:
        return []
    if not plans:
        raise ValueError(
            f"loss.distill_weight={weight} requires the experts' plans, got none; set expert.logs, or "
            "loss.distill_weight=0"
        )
    fill = None if leader is None else leader.fill_old_log_probs
    return [PlanLogProb(policy, plans, max_tokens=settings.train.max_tokens, fill=fill)]


def _load_shards(policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Loads a checkpoint that several ranks saved."""
    from bepa_torchrl.scale.sharding.checkpoints.sharded import load_component

    load_component(policy, optimizer, folder)


def _make_stepper(
    settings: Settings, policy: Policy, optimizer: torch.optim.Optimizer, leader: Leader | None
) -> GroupStepper:
    return GroupStepper(
        policy,
        optimizer,
        max_tokens=settings.train.max_tokens,
        clip_norm=settings.optimizer.clip_norm,
        passes=local_passes if leader is None else leader.passes,
        nonfinite_steps=settings.train.nonfinite_steps,
    )


def make_collector(
    settings: Settings,
    algo: Method,
    policy: Policy,
    env: OSWorldEnv,
    tasks: Sequence[Task],
    cache: TaskTraceCache | None,
    postproc: Transform,
    *,
    held_out: Sequence[Task] = (),
    rollout: ModelSampler | None = None,
    leader: Leader | None = None,
) -> GroupRolloutCollector:
    """Builds the collector; its shutdown leaves the desktops open.

    Args:
        cache: the method's traces.
        postproc: finalises groups, and scores the rows that the loss reads.
        held_out: as of :func:`make_trainer`.
        rollout: samples the rollouts; None: the policy in training. Not used with ``collect.mode=async``.
        leader: as of :func:`make_trainer`.
    """
    size = settings.collect.group_size

    def size_of(task: Task) -> int:
        return algo.on_policy_rollouts(size, has_trace=cache is not None and cache.contains(task.id))

    def signal(task_id: str, successes: Sequence[bool]) -> bool:
        return has_signal(successes, algo.injection, has_trace=cache is not None and cache.contains(task_id))

    collect = settings.collect
    options: dict[str, Any] = {
        "groups": collect.groups,
        "group_size": size,
        "seed": settings.seed,
        "temperature": collect.temperature,
        "env_seed": collect.env_seed,
        "size_of": size_of,
        "retries": collect.retries,
        "further": collect.dynamic,
        "has_signal": signal,
        "prefixes": _prefixes(settings, algo, cache),
        "close_env": False,
        "postproc": postproc,
    }
    if collect.mode == "sync":
        schemes = {"policy": EngineWeightSync(rollout)} if isinstance(rollout, EngineSampler) else None
        return GroupRolloutCollector(env, rollout or policy, tasks, weight_sync_schemes=schemes, **options)
    from bepa_torchrl.experiment.async_collector import async_collector
    from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan

    options["evaluation"] = EvaluationPlan((*tasks, *held_out), settings.eval.episodes, settings.eval.seed, 1.0)
    if leader is not None:
        options["weights"] = partial(leader.merged_weights, getattr(torch, settings.policy.dtype))
        options["check_trainer"] = leader.check
    return async_collector(
        settings,
        env,
        policy,
        tasks,
        make_policy=partial(make_sampler, settings),
        make_vector=vector_maker(settings, policy.renderer.image_scaling),
        **options,
    )


def _prefixes(settings: Settings, algo: Method, cache: TaskTraceCache | None) -> PrefixLengths | None:
    if not algo.prefix:
        return None
    assert cache is not None
    return PrefixLengths(cache, gain=settings.algo.gain)


def make_sampler(settings: Settings) -> Sampler:
    """Builds a sampler with its own weights, to which adapters are sent merged. The caller closes it, if it can be.

    Raises:
        CheckpointError: the checkpoint cannot be used as a policy.
        EngineVersionError: ``policy.rollout=vllm``, and vLLM is not installed or has an unsupported version.
    """
    whole = with_changes(settings, {"policy.lora.rank": None, "policy.engine.adapters": "merged"})
    policy = make_policy(whole, seed=settings.seed)
    if settings.policy.rollout == "transformers":
        return policy
    return _make_engine(whole, policy, None, own_weights=True)


def vector_maker(settings: Settings, scaling: ImageScaling) -> Callable[[], DesktopVector]:
    """A function that makes one desktop, also in another process."""
    make_desktop = desktop_factory(settings.env.provider, settings.env.options)
    episode = _episode_options(settings, scaling)
    return partial(DesktopVector, make_desktop, 1, episode, deadline=settings.env.deadline)
