"""BEPA in one file: the complete algorithm without trainer, collector, buffer or loss class.

Its metrics equal those of ``BEPATrainer`` for the same seed (``tests/examples/test_bepa_loop.py``). Equation and
section names are the paper's. Shapes: G groups, N rollouts per group, L tokens of a response.

    python examples/bepa_loop.py --iterations 10
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bepa_torchrl.cache import draw
from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.data import Prompt, Stream, derive_seed, desktop_seed, episode_key
from bepa_torchrl.experts import plan_from_trace, record_expert
from bepa_torchrl.policies import TransformersPolicy, load_policy
from bepa_torchrl.rollout import TaskSchedule
from bepa_torchrl.training import trainable
from osworld_gym.desktops import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks import Task, load_suite
from osworld_gym.types import PromptContext, StopReason
from osworld_gym.vector import DesktopVector


@dataclass
class Step:
    """One step: the prompt, the response's tokens int64 ``[L]``, their log-probs under pi_old ``[L]``, its text."""

    prompt: Prompt
    tokens: Tensor
    old_log_probs: Tensor
    text: str


@dataclass
class Episode:
    """A rollout tau of a task x: its steps and its reward R(tau)."""

    task: Task
    key: tuple[int, ...]
    env_seed: int
    plan: str | None = None
    screenshots: list[bytes] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0

    def context(self, t: int, plan: str | None) -> PromptContext:
        """The prompt context at step t."""
        texts = [step.text for step in self.steps[:t]]
        tokens = [tuple(step.tokens.tolist()) for step in self.steps[:t]]
        return PromptContext(self.task.instruction, self.screenshots[: t + 1], texts, plan, tokens)


def play(policy: TransformersPolicy, vector: DesktopVector, episodes: Sequence[Episode]) -> None:
    """Runs all episodes; the policy responds to all waiting episodes at once, free desktops get the next episode."""
    waiting, free, live = deque(range(len(episodes))), deque(range(len(vector))), {}
    while waiting or live:
        while free and waiting:
            desktop = free.popleft()
            live[desktop] = waiting.popleft()
            vector.send_reset(desktop, episodes[live[desktop]].task, episodes[live[desktop]].env_seed)
        ready = []
        for desktop, result in vector.receive():
            if result.done:
                assert result.stop is not StopReason.env_error, (
                    "this loop does not handle failed desktops; BEPATrainer does"
                )
                episodes[live.pop(desktop)].reward = result.reward
                free.append(desktop)
            else:
                episodes[live[desktop]].screenshots.append(result.screenshot.png)
                ready.append(desktop)
        ready.sort(key=lambda desktop: live[desktop])
        asked = [episodes[live[desktop]] for desktop in ready]
        prompts = [p for p in policy.render([e.context(len(e.steps), e.plan) for e in asked]) if p is not None]
        places = [(*e.key, len(e.steps)) for e in asked]  # seed keys of the responses
        responses = policy.sample(prompts, places) if asked else []
        for desktop, episode, prompt, response in zip(ready, asked, prompts, responses, strict=True):
            episode.steps.append(Step(prompt, response.tokens, response.log_probs, response.text))
            vector.send(desktop, response.text)


def level1(policy: TransformersPolicy, vector: DesktopVector, tasks: Sequence[Task], seed: int) -> dict[str, Episode]:
    """LEVEL-1: the policy acts with the expert's plan (``instruction + "\\n\\n" + plan``); successes are D_self."""
    episodes = []
    for number, task in enumerate(tasks):
        plan = plan_from_trace(record_expert(SimDesktop(), task, derive_seed(seed, Stream.EXPERT, number)))
        key = episode_key(seed, Stream.SELF_ROLLOUT, 0, number, 0)
        episodes.append(Episode(task, key, desktop_seed(key), plan))
    play(policy, vector, episodes)
    return {episode.task.id: episode for episode in episodes if episode.reward == 1.0}


@torch.no_grad()
def injected(policy: TransformersPolicy, trace: Episode, micro_batch: int) -> Episode:
    """The cached trace as a member of a group: plan-free prompts, old log-probs under the current weights."""
    prompts = [p for p in policy.render([trace.context(t, None) for t in range(len(trace.steps))]) if p is not None]
    tokens = [step.tokens for step in trace.steps]
    log_probs: list[Tensor] = []
    for i in range(0, len(tokens), micro_batch):
        log_probs += policy.response_log_probs(prompts[i : i + micro_batch], tokens[i : i + micro_batch])[0]
    steps = [Step(p, s.tokens, lp, s.text) for p, s, lp in zip(prompts, trace.steps, log_probs, strict=True)]
    return Episode(trace.task, trace.key, trace.env_seed, None, trace.screenshots, steps, trace.reward)


def advantages(group: Sequence[Episode], eps: float) -> list[float]:
    """``A = (R - mean) / (std + eps)`` over the finalised group, population std (eq. mixed-adv)."""
    returns = torch.tensor([episode.reward for episode in group], dtype=torch.float64)
    return ((returns - returns.mean()) / (returns.std(correction=0) + eps)).tolist()


def update(
    policy: TransformersPolicy,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Sequence[Episode]],
    *,
    clip: tuple[float, float],
    eps: float,
    micro_batch: int,
) -> float | None:
    """One optimiser step on complete groups (eq. bepa-obj): per token ``-min(r A, clip(r) A)``, divided by the tokens Z
    of the group, averaged over groups. Returns the loss, or None if all advantages are 0.
    """
    rows: list[tuple[Step, float, float]] = []  # (step, A, Z * G)
    for group in groups:
        z = sum(len(step.tokens) for episode in group for step in episode.steps)
        for episode, advantage in zip(group, advantages(group, eps), strict=True):
            rows += [(step, advantage, z * len(groups)) for step in episode.steps if advantage != 0.0]
    if not rows:
        return None
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for i in range(0, len(rows), micro_batch):
        part = rows[i : i + micro_batch]
        log_probs, _ = policy.response_log_probs([s.prompt for s, _, _ in part], [s.tokens for s, _, _ in part])
        losses = []
        for log_prob, (step, advantage, denominator) in zip(log_probs, part, strict=True):
            ratio = (log_prob - step.old_log_probs).clamp(-20, 20).exp()  # exp(89) is infinite in float32
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip[0], 1 + clip[1]) * advantage)
            losses.append(-surrogate.sum() / denominator)
        loss = torch.stack(losses).sum()
        loss.backward()
        total += float(loss.detach())
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    optimizer.step()
    return total


def bepa(
    policy: TransformersPolicy,
    vector: DesktopVector,
    tasks: Sequence[Task],
    optimizer: torch.optim.Optimizer,
    cache: dict[str, Episode],
    *,
    iterations: int,
    groups: int = 16,
    group_size: int = 8,
    minibatch_groups: int = 4,
    clip: tuple[float, float] = (0.2, 0.3),
    eps: float = 1e-6,
    micro_batch: int = 64,
    seed: int = 0,
) -> Iterator[dict[str, float]]:
    """LEVEL-2 (algorithm 2). ``cache`` is E, seeded by LEVEL-1. Yields the metrics of each iteration."""
    schedule = TaskSchedule(len(tasks), seed)
    refreshes: dict[str, int] = {}
    for iteration in range(iterations):
        # collect N rollouts of each task under pi_old; all of a group start from the same screen
        batch: list[list[Episode]] = []
        for number in schedule.next_batch(groups):
            keys = [episode_key(seed, Stream.ROLLOUT, iteration, number, slot) for slot in range(group_size)]
            batch.append([Episode(tasks[number], key, desktop_seed(key[:-1])) for key in keys])
        play(policy, vector, [episode for group in batch for episode in group])
        rewards = [episode.reward for group in batch for episode in group]
        # refresh the cache, or replace the first failure
        n_injected = 0
        for group in batch:
            x = group[0].task.id
            successes = [episode for episode in group if episode.reward == 1.0]
            if successes:
                count = refreshes.get(x, 0)
                cache[x] = successes[
                    draw(len(successes), seed=seed, task_id=x, stream=Stream.CACHE_REFRESH, count=count)
                ]
                refreshes[x] = count + 1
            elif x in cache:
                group[0] = injected(policy, cache[x], micro_batch)
                n_injected += 1
        # optimiser steps on complete groups
        losses = []
        for i in range(0, len(batch), minibatch_groups):
            part = batch[i : i + minibatch_groups]
            losses.append(update(policy, optimizer, part, clip=clip, eps=eps, micro_batch=micro_batch))
        taken = [loss for loss in losses if loss is not None]
        metrics = {"success": sum(rewards) / len(rewards), "injected": n_injected, "cache": len(cache)}
        yield metrics | {"loss": sum(taken) / max(1, len(taken)), "updates": len(taken)}


def main() -> None:
    """Trains the tiny policy on the simulated desktop."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    optimizer = torch.optim.AdamW(trainable(policy, frozen=["visual"]), lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0)
    tasks = load_suite("sim").split("train")
    with DesktopVector(SimDesktop, 128, EpisodeOptions(scaling=policy.image_scaling)) as vector:
        cache = level1(policy, vector, tasks, options.seed)
        print(f"LEVEL-1: {len(cache)} of {len(tasks)} tasks self-rolled")
        for i, metrics in enumerate(
            bepa(policy, vector, tasks, optimizer, cache, iterations=options.iterations, seed=options.seed)
        ):
            print(f"{i + 1:3d}  " + "  ".join(f"{name} {value:.3g}" for name, value in metrics.items()), flush=True)


if __name__ == "__main__":
    main()
