"""Group-relative advantages: from the returns of one finalised group to one advantage per rollout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ADVANTAGE_KINDS = ("grpo", "leave_one_out", "maxrl")
STD_RULES = ("population", "bessel", "none")


def group_advantage(returns_G: Tensor, *, std: str = "population", eps: float = 1e-6) -> Tensor:
    """``A = (R - mean) / (std + eps)`` over one group. Paper section "Integration with GRPO", eq. mixed-adv.

    With the population standard deviation and k successes among N, ``A_succ = sqrt((N-k)/k)`` and
    ``A_fail = -sqrt(k/(N-k))`` (eps = 0). A group whose returns are all equal gives exact zeros, never NaN.

    Args:
        returns_G: ``[G]`` real, returns of the group's valid rollouts (without infrastructure failures).
        std: ``population`` divides by G (the paper), ``bessel`` by G - 1, ``none`` does not divide.
        eps: added to the standard deviation; not used by ``none``.

    Returns:
        ``[G]`` of the returns' floating type (float32 for integers and booleans); its sum is 0 up to rounding.

    Raises:
        ValueError: not one-dimensional, empty, a return that is not finite, an eps that is negative or not finite, or
            an unknown ``std``.
    """
    check_scale(std, eps)
    centred = _centred(returns_G)
    if std != "none" and centred.any():
        centred = centred / (returns_G.to(torch.float64).std(correction=1 if std == "bessel" else 0) + eps)
    return centred.to(_dtype(returns_G))


def check_scale(std: str, eps: float) -> None:
    """Checks the settings of :func:`group_advantage`, which calls this too.

    Raises:
        ValueError: an unknown ``std``, or an ``eps`` that is negative or not finite.
    """
    if std not in STD_RULES:
        raise ValueError(f"std must be one of {', '.join(STD_RULES)}; got {std!r}")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps must be a finite number >= 0; got {eps}")


def leave_one_out_advantage(returns_G: Tensor) -> Tensor:
    """``A_i = R_i - mean of the other rollouts' returns = G / (G - 1) (R_i - mean)``; a single rollout has 0.

    RLOO: Ahmadian et al. 2024 (arXiv 2402.14740), section "REINFORCE Leave-One-Out"; verl's
    ``compute_rloo_outcome_advantage``. With k successes among N, ``A_succ = (N-k)/(N-1)``, ``A_fail = -k/(N-1)``.

    Args:
        returns_G: as of :func:`group_advantage`.

    Returns:
        As :func:`group_advantage`.

    Raises:
        ValueError: not one-dimensional, empty, or a return that is not finite.
    """
    centred = _centred(returns_G)
    return (centred * len(centred) / max(len(centred) - 1, 1)).to(_dtype(returns_G))


def maxrl_advantage(returns_G: Tensor) -> Tensor:
    """``A = (R - mean) / mean``: tasks that are rarely solved weigh more. A group of only zeros has zeros.

    MaxRL: Tajwar et al. 2026 (arXiv 2602.02710). With k successes among N, ``A_succ = (N-k)/k``, ``A_fail = -1``.

    Args:
        returns_G: as of :func:`group_advantage`, each at least 0.

    Returns:
        As :func:`group_advantage`.

    Raises:
        ValueError: not one-dimensional, empty, or a return that is negative or not finite.
    """
    centred = _centred(returns_G)
    if (returns_G < 0).any():
        raise ValueError(f"maxrl divides by the mean return, so returns must be >= 0; got {returns_G.tolist()}")
    if centred.any():
        centred = centred / returns_G.to(torch.float64).mean()
    return centred.to(_dtype(returns_G))


def _centred(returns_G: Tensor) -> Tensor:
    """The returns, checked, minus their mean as float64; exact zeros if they are equal."""
    if returns_G.ndim != 1 or returns_G.numel() == 0:
        raise ValueError(f"returns of one group must be a non-empty [G]; got shape {tuple(returns_G.shape)}")
    if not torch.isfinite(returns_G).all():
        raise ValueError(f"returns must be finite; got {returns_G.tolist()}; leave out rollouts without a return")
    exact = returns_G.to(torch.float64)
    return torch.zeros_like(exact) if (exact == exact[0]).all() else exact - exact.mean()


def _dtype(returns_G: Tensor) -> torch.dtype:
    return returns_G.dtype if returns_G.is_floating_point() else torch.float32
