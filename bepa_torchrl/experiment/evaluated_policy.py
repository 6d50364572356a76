"""What plays an evaluation: the checkpoint of the settings, or a hosted model behind an endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bepa_torchrl.endpoint import ChatModel
from bepa_torchrl.experiment.factory import make_policy, rollout_policy
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.policies.endpoint import EndpointRenderer, EndpointSampler
from osworld_gym.uitars.coords import RELATIVE_COORDINATES, ImageScaling

_THOUSANDTHS = RELATIVE_COORDINATES["qwen3_vl"]


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model behind an endpoint, played instead of ``policy.checkpoint``.

    Args:
        model: is asked; without a cache.
        scaling: from its points to pixels of the screen.
    """

    model: ChatModel
    scaling: ImageScaling

    @property
    def identity(self) -> str:
        """A line of what an evaluation is of, without how often and how fast it is asked."""
        return "# hosted: " + json.dumps(self.facts) + "\n"

    @property
    def facts(self) -> dict[str, Any]:
        """How it is asked, for the card; a reasoning model has no temperature."""
        endpoint = self.model.endpoint
        facts = {"policy": endpoint.model, "endpoint": endpoint.base_url or "OpenAI", "scaling": asdict(self.scaling)}
        return facts | ({"temperature": None} if endpoint.reasoning else {})


@dataclass(frozen=True, slots=True)
class EvaluatedPolicy:
    """Samples the responses of an evaluation.

    Args:
        sampler: samples.
        scaling: from its points to pixels of the screen.
    """

    sampler: Sampler
    scaling: ImageScaling

    def refusal(self, key: tuple[int, ...]) -> str | None:
        """Why the endpoint refused a request of the episode with this seed key; None: it did not."""
        return self.sampler.refusal(key) if isinstance(self.sampler, EndpointSampler) else None


@contextmanager
def evaluated_policy(settings: Settings, hosted: HostedModel | None) -> Iterator[EvaluatedPolicy]:
    """What plays, which ends afterwards.

    Args:
        settings: the settings of the prompts, and of the checkpoint.
        hosted: plays instead of the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be used as a policy.
        EngineVersionError: as of :func:`bepa_torchrl.experiment.factory.rollout_policy`.
    """
    policy = settings.policy
    if hosted is None:
        trained = make_policy(settings, seed=settings.seed)
        with rollout_policy(settings, trained) as sampler:
            yield EvaluatedPolicy(sampler, sampler.renderer.image_scaling)
        return
    renderer = EndpointRenderer(
        policy.action_text, preset=policy.preset, history=policy.history, history_images=policy.history_images
    )
    yield EvaluatedPolicy(EndpointSampler(hosted.model, renderer), hosted.scaling)


def scaling_of(action_text: str, points: str | None) -> ImageScaling:
    """The scaling of a hosted model.

    Args:
        action_text: the action text of its responses.
        points: ``thousandths`` of the image's sides; ``pixels`` of the image as UI-TARS-1.5's processor resizes it;
            ``FACTOR,MIN,MAX``: pixels with the factor, minimum and maximum area of another processor; None:
            thousandths with ``qwen3vl``, pixels with the others.

    Raises:
        ValueError: none of these.
    """
    if points is None:
        points = "thousandths" if action_text == "qwen3vl" else "pixels"
    if points in ("thousandths", "pixels"):
        return ImageScaling(relative=_THOUSANDTHS if points == "thousandths" else None)
    try:
        factor, smallest, largest = (int(each) for each in points.split(","))
        return ImageScaling(factor, smallest, largest)
    except ValueError as error:
        raise ValueError(
            "--policy-points: expected thousandths, pixels, or FACTOR,MIN,MAX such as 28,78400,12845056, got "
            f"{points!r} ({error})"
        ) from None
