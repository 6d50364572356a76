"""The queue as a Ray actor: one that exits is started again, by Ray, and gets its state from the trainer's process."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bepa_torchrl.scale.rollouts.queue_owner import QueueOwner
from bepa_torchrl.scale.rollouts.queue_state import OwnedState, QueueMemory
from bepa_torchrl.scale.rollouts.ray_cluster import CALLERS, CONTROL, CONTROLS, ActorClient, control, end_calls
from bepa_torchrl.scale.rollouts.restorable_queue import RestorableQueue

_log = logging.getLogger(__name__)
MAX_RESTARTS = 20  #: of one run's queue
_START_SECONDS = 300.0  #: until its process has started, again
_END_SECONDS = 30.0  #: for calls that wait for the actor to end after it
_FIX = (
    f"; it is started again {MAX_RESTARTS} times: see Ray's logs for why it exits (has its node "
    "too little memory for the results of the groups that wait for the trainer?), then go on with resume=true"
)


class _Queue(RestorableQueue):
    """The actor. What its owner calls has threads of its own, since all workers' calls may wait for the state."""

    @control
    def restore(self, owned: OwnedState) -> None:
        super().restore(owned)

    @control
    def apply(self, generation: int, number: int, change: str, *args: Any) -> Any:
        return super().apply(generation, number, change, *args)

    @control
    def memory(self) -> tuple[int, QueueMemory]:
        return super().memory()

    @control
    def process(self) -> int:
        """The actor's process id."""
        return os.getpid()


class RayQueue(QueueOwner):
    """The queue's actor, and the trainer's calls of it.

    Calls that are on their way when the actor exits are sent again by Ray. Each is safe then: a lease whose answer is
    lost expires, the second result of a ticket is refused, and a change of the trainer's is made once.

    The actor is on this process's node: the run ends with this process anyway, and should not end with any other node.

    Args:
        options: arguments of the :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(self, **options: Any) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        restarts = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1}
        queue: Any = ray.remote(concurrency_groups={CONTROL: CONTROLS})(_Queue)
        actor = queue.options(num_cpus=0, max_concurrency=CALLERS, scheduling_strategy=here, **restarts)
        self.actor = actor.remote(**options)
        self._client = ActorClient(self.actor, _START_SECONDS, _FIX, "the queue's actor")
        super().__init__(self._client, **options)

    def stop(self) -> None:
        """Ends the actor, and all calls of it that are under way in this process: Ray may be shut down then."""
        self._stopping.set()
        ray.kill(self.actor)
        super().stop()
        if left := end_calls(self._client, _END_SECONDS):
            _log.warning("%d calls of the queue's actor have not ended %g s after it", left, _END_SECONDS)
