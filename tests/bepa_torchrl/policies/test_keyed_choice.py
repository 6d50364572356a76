"""Selecting tokens by hand: blocked tokens, temperatures, log-probs, forced logits."""

from __future__ import annotations

import math

import pytest
import torch

from bepa_torchrl.policies.keyed_sampling import choose_tokens, force_tokens

#: probabilities 1/2, 1/4, 1/4 at temperature 1; squared and normalised at 1/2: 2/3, 1/6, 1/6
LOGITS = torch.log(torch.tensor([[2.0, 1.0, 1.0]]))
NONE = torch.tensor([], dtype=torch.int64)


def choose(point: float, temperature: float, blocked: torch.Tensor = NONE) -> tuple[int, float]:
    tokens, log_probs = choose_tokens(LOGITS, torch.tensor([point], dtype=torch.float64), temperature, blocked)
    return int(tokens), float(log_probs)


@pytest.mark.parametrize(
    ("point", "temperature", "token", "probability"),
    [
        (0.49, 1.0, 0, 1 / 2),
        (0.51, 1.0, 1, 1 / 4),
        (0.76, 1.0, 2, 1 / 4),
        (0.66, 0.5, 0, 2 / 3),
        (0.67, 0.5, 1, 1 / 6),
        (0.99, 0.0, 0, 1 / 2),
    ],
)
def test_tokens_and_log_probs_by_hand(point: float, temperature: float, token: int, probability: float) -> None:
    chosen, log_prob = choose(point, temperature)
    assert chosen == token
    assert log_prob == pytest.approx(math.log(probability), abs=1e-6)


def test_a_blocked_token_is_not_chosen_but_counts_in_the_softmax() -> None:
    """Without token 0 the others have a half each; their log-probs remain those of the whole softmax."""
    blocked = torch.tensor([0])
    for point, token in ((0.0, 1), (0.49, 1), (0.51, 2)):
        chosen, log_prob = choose(point, 1.0, blocked)
        assert chosen == token
        assert log_prob == pytest.approx(math.log(1 / 4), abs=1e-6)
    assert choose(0.9, 0.0, blocked)[0] == 1


def test_forced_rows_have_one_finite_logit() -> None:
    logits = torch.zeros(3, 4)
    force_tokens(logits, torch.tensor([0, 2]), torch.tensor([3, 1]), torch.tensor([-1.5, -0.5]))
    inf = -math.inf
    assert logits.tolist() == [[inf, inf, inf, -1.5], [0, 0, 0, 0], [inf, -0.5, inf, inf]]
