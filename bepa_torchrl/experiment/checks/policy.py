"""Checks of the policy and of how it samples. Imports no torch."""

from __future__ import annotations

from bepa_torchrl.experiment.checks.check import raised
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import by_torchrun
from osworld_gym.action_text import action_text, check_preset
from osworld_gym.uitars.history import check_history


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
    problem = raised(lambda: action_text(settings.policy.action_text))
    return None if problem is None else f"policy.{problem}"


def preset(settings: Settings) -> str | None:
    """The action text has the preset."""
    return raised(lambda: check_preset(settings.policy.action_text, settings.policy.preset), "policy.preset")


def history(settings: Settings) -> str | None:
    """The number of images goes with the history and the preset."""
    policy = settings.policy
    return raised(lambda: check_history(policy.history, policy.history_images, preset=policy.preset), "policy.history")


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


def weight_transfer(settings: Settings) -> str | None:
    """Weights are sent between GPUs if there is one; whether they can be, the engine's start shows."""
    policy = settings.policy
    if policy.rollout != "vllm" or policy.engine.weights not in ("ipc", "nccl") or policy.device != "cpu":
        return None
    return (
        f"policy.engine.weights={policy.engine.weights} requires policy.device=cuda: vLLM's transfers are between "
        "GPUs; set policy.engine.weights=auto"
    )
