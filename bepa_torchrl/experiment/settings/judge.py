"""The settings of the judge."""

from __future__ import annotations

from dataclasses import dataclass

from bepa_torchrl.experiment.settings.kinds import Count, Positive, PositiveFloat, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """The language model that scores tasks on web sites, behind an OpenAI-compatible endpoint (docs/evaluate.md).

    Args:
        model: its name at the endpoint; None: there is no judge. The key is in the environment variable OPENAI_API_KEY,
            on each machine with desktops; an endpoint of one's own needs none.
        url: of the endpoint, ``http://HOST:PORT/v1``; None: OpenAI's.
        max_tokens: maximum tokens of an answer.
        timeout: seconds until a request counts as failed.
        retries: further attempts after a failed request. Then the episode has no reward, as after a failed desktop.
        at_once: maximum number of open requests of each process with desktops.
        reasoning: whether it is a reasoning model of OpenAI's, which takes no temperature.
    """

    model: Text | None = None
    url: Text | None = None
    max_tokens: Positive = 2048
    timeout: PositiveFloat = 120.0
    retries: Count = 5
    at_once: Positive = 8
    reasoning: bool = False
