"""A hosted model as the policy of ``bepa eval``: its options, and what is made of them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bepa_torchrl.commands.experts.arguments import add_endpoint, chat_model, given_of_endpoint

if TYPE_CHECKING:
    from bepa_torchrl.experiment.evaluated_policy import HostedModel
    from bepa_torchrl.experiment.settings import Settings


def add_hosted(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_endpoint(parser, prefix="policy-", title="a hosted model instead of policy.checkpoint")
    parser.add_argument(
        "--policy-points",
        metavar="UNIT",
        help="what the model's points are: thousandths of the image's sides; pixels of the image as UI-TARS-1.5's "
        "processor resizes it; or FACTOR,MIN,MAX: pixels, resized with these (default: thousandths with qwen3vl, "
        "otherwise pixels)",
    )


def check_not_hosted(options: argparse.Namespace, what: str) -> None:
    """Raises ValueError if a hosted model is given where ``what`` plays no policy."""
    given = given_of_endpoint(options, "policy-")
    if given or options.policy_points is not None:
        raise ValueError(f"--{[*given, 'policy-points'][0]}: {what} plays no policy; leave it out")


def hosted_model(
    options: argparse.Namespace, overrides: Sequence[str], settings: Settings, temperature: float
) -> HostedModel | None:
    """The hosted model of ``--policy-model``; None without it.

    Raises:
        ValueError: an option is out of range, or has no effect. EndpointError: there is no key.
        MissingExtraError: the package ``openai`` is not installed.
    """
    policy = settings.policy
    if options.policy_model is None and options.policy_points is not None:
        raise ValueError("--policy-points is read with --policy-model NAME only; add it, or leave --policy-points out")
    if options.policy_model is not None and any(each.startswith("policy.checkpoint=") for each in overrides):
        raise ValueError("--policy-model is played instead of policy.checkpoint; leave one of them out")
    sampling = {"max_tokens": policy.max_new_tokens, "temperature": temperature, "asks": 1}
    model = chat_model(options, None, prefix="policy-", **sampling)
    if model is None:
        return None
    from bepa_torchrl.experiment.evaluated_policy import HostedModel, scaling_of

    return HostedModel(model, scaling_of(policy.action_text, options.policy_points))


def temperature_of(options: argparse.Namespace, default: float) -> float:
    """The value of ``--temperature``. Raises ValueError if it is negative, or not finite."""
    value = default if options.temperature is None else options.temperature
    if not 0 <= value < math.inf:
        raise ValueError(f"--temperature: expected 0 or more, got {value:g}")
    return float(value)


@contextmanager
def counted(hosted: HostedModel | None) -> Iterator[None]:
    """Prints at the end, also at an early one, what a hosted model was asked."""
    try:
        yield
    finally:
        if hosted is not None:
            model = hosted.model
            print(f"{model.endpoint.model}: {model.usage.summary(model.endpoint.price)}", file=sys.stderr)
