"""Policy-gradient losses per token, to be minimised: clipped, unclipped, and LUFFY's shaped form.

Every ratio is that of a clamped log ratio (:func:`bepa_torchrl.functional.ratio.ratio`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bepa_torchrl.functional.ratio import ratio


def surrogate(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """``-r A``, without clipping; LUFFY's released code uses it for on-policy rows.

    Args:
        log_ratio: ``[..., T]``, nats.
        advantage: broadcasts against ``log_ratio``.

    Returns:
        ``[..., T]``.
    """
    return -ratio(log_ratio) * advantage


def clipped_surrogate(
    log_ratio: Tensor,
    advantage: Tensor,
    *,
    low: float | Tensor = 0.2,
    high: float | Tensor = 0.3,
    dual_clip: float | None = None,
) -> Tensor:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)``. Paper eq. bepa-obj, L^CLIP, with the thresholds of the appendix.

    Args:
        log_ratio: ``[..., T]``, nats.
        advantage: broadcasts against ``log_ratio``.
        low: the ratio is clipped below at ``1 - low``, in [0, 1).
        high: the ratio is clipped above at ``1 + high``.
        dual_clip: ``c > 1``: for negative advantages the loss is at most ``-c A``. None: no bound (the paper).

    Returns:
        ``[..., T]``.

    Raises:
        ValueError: ``dual_clip`` not above 1.
    """
    check_dual_clip(dual_clip)
    r = ratio(log_ratio)
    clipped = r.clamp(*_interval(r, low, high))
    loss = torch.maximum(-r * advantage, -clipped * advantage)
    if dual_clip is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)


def check_dual_clip(dual_clip: float | None) -> None:
    """Raises ValueError if the bound of :func:`clipped_surrogate` is not above 1."""
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1, or None; got {dual_clip}")


def clip_binds(
    log_ratio: Tensor, advantage: Tensor, *, low: float | Tensor = 0.2, high: float | Tensor = 0.3
) -> Tensor:
    """True where the clipped branch is the larger loss, ``-clip(r) A > -r A``: the gradient is then 0.

    This is what verl counts in ``pg_clipfrac`` (``verl/trainer/ppo/core_algos.py``): a ratio above ``1 + high`` with a
    negative advantage, or below ``1 - low`` with a positive one, is outside the interval but not clipped.

    Args:
        log_ratio: ``[..., T]``, nats.
        advantage: broadcasts against ``log_ratio``.
        low: as in :func:`clipped_surrogate`.
        high: as in :func:`clipped_surrogate`.

    Returns:
        ``[..., T]`` bool.
    """
    r = ratio(log_ratio)
    lowest, highest = _interval(r, low, high)
    return ((r < lowest) & (advantage < 0)) | ((r > highest) & (advantage > 0))


def _interval(r: Tensor, low: float | Tensor, high: float | Tensor) -> tuple[Tensor, Tensor]:
    """``1 - low`` and ``1 + high`` in the precision of ``r``: in bfloat16, GSPO's ``1 + 4e-4`` is 1."""
    below, above = (torch.as_tensor(distance, dtype=r.dtype, device=r.device) for distance in (low, high))
    return 1 - below, 1 + above


def luffy_shaping(probability: Tensor, *, gamma: float = 0.1) -> Tensor:
    """``f(w) = w / (w + gamma)``: small probabilities weigh more. Paper appendix LUFFY, "Policy shaping".

    Its derivative with respect to the log-probability, ``gamma w / (w + gamma)^2``, is largest (1/4) at ``w = gamma``.

    Args:
        probability: any shape, in [0, 1].
        gamma: above 0.

    Returns:
        The shape of ``probability``, in [0, 1).

    Raises:
        ValueError: ``gamma`` not above 0.
    """
    check_gamma(gamma)
    return probability / (probability + gamma)


def check_gamma(gamma: float) -> None:
    """Raises ValueError if gamma of :func:`luffy_shaping` is not above 0."""
    if not gamma > 0:
        raise ValueError(f"gamma must be above 0; got {gamma}")


def shaped_surrogate(log_prob: Tensor, advantage: Tensor, *, gamma: float = 0.1) -> Tensor:
    """``-f(pi_theta / 1) A``: LUFFY's off-policy loss, unclipped. Paper appendix LUFFY, pi_phi = 1.

    Args:
        log_prob: ``[..., T]``, nats, under the policy in training.
        advantage: broadcasts against ``log_prob``.
        gamma: as in :func:`luffy_shaping`.

    Returns:
        ``[..., T]``.
    """
    return -luffy_shaping(log_prob.exp(), gamma=gamma) * advantage
