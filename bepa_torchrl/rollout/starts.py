"""The share of responses that begin with a text: a style of a policy that shows in the first word, over training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.rollout.episodes import EpisodeResult


def responses_of(results: Iterable[EpisodeResult]) -> list[str]:
    """The policy's responses in episodes that have rows; replayed ones (``algo=prefix``) are a trace's: left out."""
    return responses_in(
        row for result in results if result.rows is not None for row in row_list(result.rows)[result.replayed :]
    )


def responses_in(rows: Iterable[TensorDictBase]) -> list[str]:
    """The responses of rows."""
    return [cast(str, row[K.RESPONSE]) for row in rows]


def share_starting(responses: Sequence[str], start: str) -> float:
    """The share of the responses that begin with ``start``, in [0, 1]; 0 without a response."""
    return sum(response.startswith(start) for response in responses) / len(responses) if responses else 0.0


def start_shares(responses: Sequence[str], starts: Mapping[str, str], where: str) -> dict[str, float]:
    """Metrics ``<where>/starts_<name>``; none without a response.

    Args:
        responses: texts.
        starts: name → beginning (``record.starts``).
        where: what the responses are of.
    """
    if not responses:
        return {}
    return {f"{where}/starts_{name}": share_starting(responses, start) for name, start in starts.items()}
