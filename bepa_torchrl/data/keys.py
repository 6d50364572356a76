"""The tensordict keys of a training row: shape, dtype, unit, which component writes it, which reads it.

A row is one step of an episode: one prompt and one response. A trajectory is the rows of one episode in step order. A
batch of rows is a lazy stack ``[R]`` (tokens are ragged), ordered by (group, slot, step). Strings and bytes are
non-tensor entries: read them with ``td[key]`` (``td.get`` returns the wrapper).

Shapes below omit the leading ``[R]``. P: prompt tokens, L: response tokens, N: rollouts per group.

| key | shape, dtype | written by | read by |
|---|---|---|---|
| TASK_ID | str | collector | cache, replacement, record |
| INSTRUCTION | str, without plan | collector | prompt rebuilding |
| GROUP_ID | [] int64, unique in a run | collector | replacement, trainer |
| SLOT | [] int64, 0..N-1 in the group | collector | replacement, record |
| STEP | [] int64, 0-based in the episode | collector | prompt rebuilding, record |
| N_STEPS | [] int64, rows of the episode | collector | cache (rule ``shortest``) |
| SOURCE | str, a :class:`Source` | collector, self-rollout, replacement | loss diagnostics, record |
| PROVENANCE | str, JSON; empty or absent in the policy's own rows | self-rollout, conversion, replacement | record |
| COPIED_FROM | str, an episode id (:func:`episode_id`); empty unless a copy of a rollout | replacement | record |
| POLICY_VERSION | [] int64, optimiser steps of the behaviour policy | collector | staleness |
| SCREENSHOT | bytes, PNG before the response | collector | prompt rebuilding, record |
| RESPONSE | str, the response's text | collector | prompt rebuilding, record |
| IMAGES | tuple of bytes, PNG in prompt order | policy's render | policy |
| PROMPT_TOKENS | [P] int64, image tokens expanded | policy's render | policy |
| RESPONSE_TOKENS | [L] int64, as sampled, end token included | policy's sample | loss |
| ROLLOUT_LOG_PROB | [L] float32, nats, as sampled | policy's sample | metrics, cache (``highest_logprob``), loss |
| OLD_LOG_PROB | [L] float32, nats, under pi_old, plan-free prompt; NaN until known | collector, OldLogProb | loss |
| BASE_LOG_PROB | [L] float32, nats, under the base policy; NaN on injected rows | BaseLogProb | loss (KL) |
| PLAN_LOG_PROB | [L] float32, nats, with the plan in the prompt; NaN on rows without one | PlanLogProb | loss |
| LOG_PROB | [L] float32, nats, under the weights before the last optimiser step on the row | loss | record |
| CLIPPED | [L] bool, whether the clip bound there | loss | record |
| UPDATES | [U] int64, the policy's versions after the optimiser steps on the row | stepper | record |
| RETURN | [1] float32, R(tau) of the whole episode, on each row | collector | replacement, loss (``loss.anchor``) |
| STOP_REASON | str, a :class:`osworld_gym.types.StopReason` | collector | replacement (masks env_error) |
| ADVANTAGE | [1, 1] float32, same for all rows of the episode | replacement | loss |
| DENOMINATOR | [1] float32, > 0, see :func:`bepa_torchrl.functional.row_denominators` | stepper | loss |
| ANCHOR | [1] float32, >= 0, see :func:`bepa_torchrl.functional.term_weights` | stepper (``loss.anchor``) | loss |
| DISTILL | [1] float32, >= 0, see :func:`bepa_torchrl.functional.term_weights` | stepper (``loss.distill_*``) | loss |
| TRAINED | [1] bool; False (replayed, before a hand-over): in no loss; absent: True | collector, cache | trainer |
| OFF_POLICY | [1] bool, injected by replacement or by LUFFY | replacement | loss (LUFFY, SFT), diagnostics |
"""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """Where a trajectory came from."""

    on_policy = "on_policy"  #: sampled by the current behaviour policy
    self_rolled = "self_rolled"  #: LEVEL-1: the base policy with the plan appended
    converted = "converted"  #: an expert's trace rewritten into the policy's format
    raw_expert = "raw_expert"  #: an expert's trace with the expert's original text


TASK_ID = "task_id"
INSTRUCTION = "instruction"
GROUP_ID = "group_id"
SLOT = "slot"
STEP = "step"
N_STEPS = "n_steps"
SOURCE = "source"
PROVENANCE = "provenance"  #: of :class:`bepa_torchrl.data.provenance.Provenance`
COPIED_FROM = "copied_from"
POLICY_VERSION = "policy_version"
SCREENSHOT = "screenshot_png"
RESPONSE = "response"
IMAGES = "images"
PROMPT_TOKENS = ("tokens", "prompt")
RESPONSE_TOKENS = ("tokens", "response")
ROLLOUT_LOG_PROB = ("log_probs", "rollout")
OLD_LOG_PROB = ("log_probs", "response")
BASE_LOG_PROB = ("log_probs", "base")
PLAN_LOG_PROB = ("log_probs", "plan")
LOG_PROB = ("log_probs", "current")
CLIPPED = "clipped"
UPDATES = "updates"
RETURN = "return"
STOP_REASON = "stop_reason"
ADVANTAGE = "advantage"
DENOMINATOR = "loss_denominator"
ANCHOR = "loss_anchor_weight"
DISTILL = "loss_distill_weight"
OFF_POLICY = "off_policy"
TRAINED = "trained"
CONTEXT_FULL = "context_full"  #: bool ``[1]``, in a policy's output for an environment only: the prompt is too long


def episode_id(group_id: int, slot: int, *, injected: bool = False) -> str:
    """The name of an episode in a run: ``12-3``, or ``12-3-injected`` for a cached trace in the group."""
    return f"{group_id}-{slot}{'-injected' if injected else ''}"
