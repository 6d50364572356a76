"""The judge as a verifier: the reward of a rollout in the browser is the judge's verdict, which names it.

A judge that fails gives no reward: the episode ends as an infrastructure failure, and is masked.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bepa_torchrl.endpoint import ChatModel, Endpoint, EndpointError
from bepa_torchrl.evaluation.web.judge import judged
from bepa_torchrl.evaluation.web.played import write_played
from bepa_torchrl.evaluation.web.trajectories import TrajectoryError, read_trajectory
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.judging import Played
from osworld_gym.types import Verdict


@dataclass(frozen=True, slots=True)
class WebJudge:
    """Judges episodes of tasks on web sites. It can be pickled; all desktops of a process share the endpoint's limits.

    Args:
        endpoint: the endpoint of the judge.
    """

    endpoint: Endpoint

    def __call__(self, played: Played) -> Verdict:
        """The judge's verdict, 1 or 0.

        Raises:
            DesktopError: ``evaluator_failed``: the judge gave none, or could not be asked.
        """
        with tempfile.TemporaryDirectory(prefix="bepa-judge-") as folder:
            try:
                trajectory = read_trajectory(write_played(Path(folder), played))
                model = _model(self.endpoint)
            except (TrajectoryError, EndpointError) as error:
                raise DesktopError(FailureReason.evaluator_failed, f"no verdict of the judge: {error}") from error
            return judged(trajectory, model).verdict


@cache
def _model(endpoint: Endpoint) -> ChatModel:
    """The model of an endpoint, once in a process."""
    return ChatModel(endpoint)
