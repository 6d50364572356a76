"""GroupRows: turns the batches of a stock TorchRL collector into the training rows of complete groups.

A stock collector yields batches of fixed length, so an episode may span several of them. This transform keeps
incomplete episodes and groups until later batches complete them. Use as the collector's ``postproc``::

    env = OSWorldEnv("sim", 8, group_size=8, observation="png")
    postproc = Compose(GroupRows(8), TraceReplacement(cache), OldLogProb(policy))
    collector = Collector(env, policy, frames_per_batch=256, total_frames=-1,
                          auto_register_policy_transforms=True, postproc=postproc)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows, int_entry, row_list, stack_rows
from osworld_gym.counts import check_count
from osworld_gym.types import Screenshot, StopReason

_log = logging.getLogger(__name__)

_PADDING_MASK = ("collector", "mask")
_ENDS = tuple(("next", key) for key in ("done", "reward", K.STOP_REASON))
_FROM_ENV: tuple[NestedKey, ...] = (K.TASK_ID, K.INSTRUCTION, K.GROUP_ID, K.SLOT, "step_count", "retries_left", *_ENDS)
_FROM_POLICY = (K.PROMPT_TOKENS, K.RESPONSE_TOKENS, K.ROLLOUT_LOG_PROB, K.IMAGES, K.POLICY_VERSION)


@dataclass(slots=True)
class PartialEpisode:
    """An episode that is not complete yet."""

    group_id: int
    slot: int
    task_id: str
    instruction: str
    steps: int = 0
    turns: list[Turn] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  #: policy version of each turn


@dataclass(slots=True)
class PartialGroup:
    """A group that is not complete yet. ``episodes[slot]``: rows ``[S]`` of a finished episode, None without rows."""

    task_id: str
    episodes: dict[int, TensorDictBase | None] = field(default_factory=dict)


class GroupRows(Transform):
    """Converts the batches of a stock collector to rows (:mod:`bepa_torchrl.data.keys`) of complete groups.

    Takes ``[N, T]`` (any number of batch dimensions, time last) or a flat ``[B]`` in which the steps of an episode
    are in order, as ``OSWorldEnv(group_size=N)`` and a policy acting by :func:`bepa_torchrl.policies.actor_module.act`
    write them. Returns a lazy stack ``[R]``, ordered by (group, slot, step), of the groups that the batch completed, or
    an empty TensorDict ``[0]`` if it completed none. Incomplete episodes and groups are kept for the next call, so
    every batch of one collector must pass through one GroupRows, in order.

    Failed desktops are handled as in GroupRolloutCollector: the environment retries the episode, and when the retries
    are used up the episode is left out; a group with fewer than two episodes with rows is dropped and counted in
    ``dropped_groups`` (its task comes again). An episode whose first prompt does not fit the model has no rows.

    A group may span an update of the weights. Each row has the POLICY_VERSION and the log-probs of the policy that
    sampled it, so importance ratios stay exact. For groups of a single version, update the weights only between
    groups, or use GroupRolloutCollector.

    Args:
        group_size: episodes per group, the same as the environment's, at least 2.
        action_key: entry in which the policy stores the response text.

    Raises:
        ValueError: (constructor) ``group_size`` below 2 or no integer; (forward) a missing key, another
            environment's group size, a step without its predecessor, or an episode that the collector truncated.
    """

    def __init__(self, group_size: int, *, action_key: str = "action") -> None:
        check_count("group_size", group_size, 2, "since one episode has no baseline")
        super().__init__()
        self.group_size, self.action_key = group_size, action_key
        self.dropped_groups = 0
        self._running: dict[tuple[int, int], PartialEpisode] = {}  # by group_id and slot
        self._open: dict[int, PartialGroup] = {}
        self._over: set[int] = set()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The rows ``[R]`` of the groups that this batch completed."""
        for step in single_steps(tensordict):
            self._take(step)
        whole = sorted(group for group, members in self._open.items() if len(members.episodes) == self.group_size)
        rows: list[TensorDictBase] = []
        for group in whole:
            self._over.add(group)
            rows += self._rows(self._open.pop(group))
        return stack_rows(rows)

    def _rows(self, group: PartialGroup) -> list[TensorDictBase]:
        episodes = [group.episodes[slot] for slot in sorted(group.episodes)]
        with_rows = [episode for episode in episodes if episode is not None]
        if len(with_rows) < 2:
            self.dropped_groups += 1
            _log.warning("task %s: a group with %d usable episodes is dropped", group.task_id, len(with_rows))
            return []
        return [row for episode in with_rows for row in row_list(episode)]

    def _take(self, step: TensorDictBase) -> None:
        self._check_keys(step)
        group_id = int_entry(step, K.GROUP_ID)
        if group_id < 0 or _flag(step, "done") or not _flag(step, _PADDING_MASK, default=True):
            return  # reset() was called with a task, the row awaits its reset, or it is padding
        episode = self._episode(step)
        tokens = cast(Tensor, step[K.RESPONSE_TOKENS])
        if len(tokens):  # empty if the prompt did not fit the model or the row was finished
            response = Response(step[self.action_key], tokens, cast(Tensor, step[K.ROLLOUT_LOG_PROB]))
            prompt = Prompt(cast(Tensor, step[K.PROMPT_TOKENS]), tuple(cast(Any, step[K.IMAGES])))
            episode.turns.append(Turn(_screenshot(step), prompt, response))
            episode.versions.append(int_entry(step, K.POLICY_VERSION))
        episode.steps += 1
        if _flag(step, ("next", "done")):
            del self._running[episode.group_id, episode.slot]
            self._close(episode, step)

    def _check_keys(self, step: TensorDictBase) -> None:
        sources = (
            (_FROM_ENV, "OSWorldEnv(group_size=...)"),
            (_FROM_POLICY, "the policy's forward"),
            ((self.action_key,), "the policy's forward as its action_key"),
        )
        for wanted, writer in sources:
            missing = [key for key in wanted if step.get(key, None) is None]
            if missing:
                got = sorted(map(str, step.keys()))
                # buffers keep the tensors that the policy writes and drop text and tokens
                dropped = wanted is _FROM_POLICY and K.POLICY_VERSION not in missing
                fix = ": pass use_buffers=False to the collector, whose buffers drop them" if dropped else ""
                raise ValueError(f"GroupRows requires {missing}, which {writer} writes; got {got}{fix}")

    def _episode(self, step: TensorDictBase) -> PartialEpisode:
        """The running episode of this step; a new one at step 0."""
        group_id, slot, position = (int_entry(step, key) for key in (K.GROUP_ID, K.SLOT, "step_count"))
        if position == 0:
            self._running[group_id, slot] = PartialEpisode(group_id, slot, step[K.TASK_ID], step[K.INSTRUCTION])
        episode = self._running.get((group_id, slot))
        if episode is None or episode.steps != position:
            raise ValueError(
                f"step {position} of group {group_id}, slot {slot} arrived without the step before it: pass every "
                "batch of the collector through one GroupRows, in order, and give each worker its own seed (set_seed)"
            )
        return episode

    def _close(self, episode: PartialEpisode, step: TensorDictBase) -> None:
        stop = step["next", K.STOP_REASON]
        if not stop:
            raise ValueError(
                f"an episode of task {episode.task_id!r} was cut off after {episode.steps} steps and never verified: "
                "limit its length by EpisodeOptions(max_steps=...), not by StepCounter or max_frames_per_traj"
            )
        failed = stop == StopReason.env_error.value
        if failed and int_entry(step, "retries_left"):
            return  # the environment retries it
        rows = None
        if episode.turns and not failed:
            rows = self._episode_rows(episode, float(cast(Tensor, step["next", "reward"])), StopReason(stop))
        self._add(episode, rows)

    def _episode_rows(self, episode: PartialEpisode, reward: float, stop: StopReason) -> TensorDictBase:
        rows = episode_rows(
            episode.turns,
            task_id=episode.task_id,
            instruction=episode.instruction,
            group_id=episode.group_id,
            slot=episode.slot,
            source=K.Source.on_policy,
            policy_version=episode.versions[0],
            reward=reward,
            stop=stop,
            plan_free=True,
        )
        for row, version in zip(row_list(rows), episode.versions, strict=True):
            row.set(K.POLICY_VERSION, torch.tensor(version))
        return rows

    def _add(self, episode: PartialEpisode, rows: TensorDictBase | None) -> None:
        group_id, slot = episode.group_id, episode.slot
        if not 0 <= slot < self.group_size:
            raise ValueError(
                f"group {group_id} has a slot {slot}, GroupRows has group_size={self.group_size}: "
                "give the environment and GroupRows the same group_size"
            )
        group = self._open.get(group_id) or PartialGroup(episode.task_id)
        if group_id in self._over or slot in group.episodes:
            _log.warning("group %d: slot %d came twice, one is dropped; do two workers share a seed?", group_id, slot)
            return
        if group.task_id != episode.task_id:
            raise ValueError(
                f"group {group_id} has episodes of tasks {group.task_id!r} and {episode.task_id!r}: "
                "environments of different tasks need different seeds"
            )
        group.episodes[slot] = rows
        self._open[group_id] = group


def single_steps(batch: TensorDictBase) -> Iterator[TensorDictBase]:
    """The steps of a batch ``[N, T]``, each without batch dimensions, in order of time, then row.

    Time comes first because an episode that failed in one row may be retried in another.
    """
    if batch.batch_dims == 0:
        yield batch
        return
    for part in batch.unbind(-1):
        yield from single_steps(part)


def _flag(step: TensorDictBase, key: Any, *, default: bool = False) -> bool:
    value = step.get(key, None)
    return default if value is None else bool(value)


def _screenshot(step: TensorDictBase) -> bytes:
    """PNG bytes of the step's frame."""
    if step.get(K.SCREENSHOT, None) is not None:
        return cast(bytes, step[K.SCREENSHOT])
    if step.get("screenshot", None) is None:
        raise ValueError(f"GroupRows requires {K.SCREENSHOT!r} or 'screenshot'; got {sorted(map(str, step.keys()))}")
    pixels = cast(Tensor, step["screenshot"])
    return Screenshot(pixels=pixels.permute(1, 2, 0).cpu().numpy()).png
