"""BEPALoss: GRPO's clipped objective, normalised by a denominator stored in each row instead of a mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.objectives import LossModule

from bepa_torchrl import functional as F
from bepa_torchrl.data import keys
from bepa_torchrl.functional.aggregation import check_aggregation
from bepa_torchrl.functional.ratio import check_cap
from bepa_torchrl.functional.surrogate import check_dual_clip
from bepa_torchrl.losses import terms
from bepa_torchrl.losses.inputs import LossInputs, Objective
from bepa_torchrl.losses.output import METRICS, ROLLOUT_METRICS, BEPALossOutput, diagnostics, rollout_diagnostics
from bepa_torchrl.losses.rows import (
    at_least_single,
    check_batch,
    check_lengths,
    denominators_of,
    entry,
    entry_on_cpu,
    padded,
    per_row,
    response_lengths,
    response_mask,
    row_names,
    scoring_keys,
)
from bepa_torchrl.losses.tokens import write_tokens


class BEPALoss(LossModule):
    """``-min(r A, clip(r) A)`` per response token, summed per row, divided by the row's denominator, summed.

    Paper eq. bepa-obj, without KL and entropy bonus. Each row stores its denominator (:meth:`denominators`, called once
    per optimiser step), so the losses of micro-batches are *added* and do not depend on how the rows are split.
    With ``aggregation="token"`` and all rows in one batch it equals TorchRL's ``GRPOLoss``. With ``anchor_weight`` a
    second loss, ``loss_anchor``, is the cross-entropy of the policy's own successes; each row stores its weight in it
    (:meth:`anchor_weights`). ``kl_weight`` and ``entropy_weight`` add terms on the policy's own rows, normalised as the
    objective (:mod:`bepa_torchrl.losses.terms`).

    Keys (``set_keys``): ``action`` (response tokens), ``sample_log_prob`` (old log-probabilities), ``advantage``
    (``[1, 1]`` per row), ``denominator`` and ``off_policy`` (``[1]`` per row), ``group`` and ``slot`` (for
    :meth:`denominators` only); ``rollout_log_prob`` (with ``rollout_correction`` only); ``anchor`` (``[1]`` per row)
    and ``episode_return`` (for :meth:`anchor_rows` only), both with ``anchor_weight`` only; ``base_log_prob`` (with
    ``kl_weight`` only); ``plan_log_prob`` and ``distill`` (``[1]`` per row), with
    ``distill_weight`` only; defaults as in :mod:`bepa_torchrl.data.keys`.

    Args:
        actor_network: has ``get_dist(rows, logits_key=...)``, which returns a distribution with ``log_prob(tokens[B,
            T])`` and a ``mask[B, T]``, left-padded, true for response tokens. ``scoring_keys`` (or ``in_keys`` if it
            has none) lists the entries that get_dist reads.
        clip_epsilon: (low, high) distances from 1; buffers, so that they can be scheduled.
        aggregation: ``group`` (the paper), or another of :data:`bepa_torchrl.functional.AGGREGATIONS`; see
            :func:`bepa_torchrl.functional.row_denominators`.
        unit: ``token``, or ``step``: one ratio per row, from summed log-probabilities.
        ratio: ``token``, or ``sequence``: GSPO's, one per row, from the mean of its tokens' log ratios
            (:func:`bepa_torchrl.functional.response_mean`); with ``unit=token`` only. It is the one that is clipped,
            and that the metrics are of. It differs from 1 far less than a token's does: GSPO clips it with
            ``(3e-4, 4e-4)``.
        dual_clip: bound of the loss for negative advantages, above 1; None: no bound.
        max_length: longest possible episode in units; for ``sum_norm`` only.
        old_policy: ``stored``: old log-probabilities are read from the rows; ``current``: pi_old is the current policy,
            so every ratio is 1 and none is read. Exact if the policy that sampled the rows takes one optimiser step on
            them.
        rollout_correction: how rows sampled by an inference engine are weighted, whose log-probabilities
            (``rollout_log_prob``) differ from the old ones: ``off``: not at all; ``measure``: not at all, but their
            difference is among the metrics; ``token`` or ``sequence``:
            :func:`bepa_torchrl.functional.truncated_importance`. Off-policy rows have weight 1.
        rollout_cap: upper bound of these weights.
        anchor_weight: weight of ``loss_anchor``, the mean cross-entropy of the tokens of the policy's own successes in
            groups without an injected trace (:func:`bepa_torchrl.functional.anchor_rows`); 0: no such term (the paper).
        kl_weight: weight of ``loss_kl_to_ref``, the k3 divergence from the base policy
            (:func:`bepa_torchrl.functional.k3_divergence`); with ``unit=token`` only; 0: no such term (the paper).
        entropy_weight: weight of ``loss_entropy``, minus the entropy of the tokens' distributions; with ``unit=token``
            only; the actor's distribution must have ``token_entropy`` ``[B, T]`` with a gradient; 0: no such term (the
            paper).
        distill_weight: weight of ``loss_distill``, gated plan distillation on own rows with a finite ``plan_log_prob``,
            mean over their tokens (:func:`bepa_torchrl.functional.gated_distillation`); each row stores its weight in
            it (:meth:`distill_weights`); with ``unit=token`` only; 0: no such term (the paper).
        distill_beta: steepness of its gate.
        keep_tokens: whether ``forward`` writes LOG_PROB and CLIPPED of each token into the rows that it is given;
            not with ``unit=step``, which has none.
        device: device of the buffers; by default the actor's.

    Raises:
        ValueError: an unknown aggregation, unit or old_policy, or settings that contradict each other or are out of
            range.
    """

    @dataclass
    class _AcceptedKeys(LossModule._AcceptedKeys):
        action: NestedKey = keys.RESPONSE_TOKENS
        sample_log_prob: NestedKey = keys.OLD_LOG_PROB
        advantage: NestedKey = keys.ADVANTAGE
        denominator: NestedKey = keys.DENOMINATOR
        off_policy: NestedKey = keys.OFF_POLICY
        rollout_log_prob: NestedKey = keys.ROLLOUT_LOG_PROB
        group: NestedKey = keys.GROUP_ID
        slot: NestedKey = keys.SLOT
        anchor: NestedKey = keys.ANCHOR
        episode_return: NestedKey = keys.RETURN
        base_log_prob: NestedKey = keys.BASE_LOG_PROB
        plan_log_prob: NestedKey = keys.PLAN_LOG_PROB
        distill: NestedKey = keys.DISTILL

    default_keys = _AcceptedKeys  # set_keys(name=None) restores these
    actor_network: TensorDictModuleBase
    clip_epsilon_low: Tensor
    clip_epsilon_high: Tensor
    output_type = BEPALossOutput
    #: whether the objective uses the ratio of off-policy rows, so that their old log-probabilities must be set
    off_policy_has_ratio = True
    #: names of the losses that forward returns
    loss_keys: tuple[str, ...] = ("loss_objective",)

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        *,
        clip_epsilon: tuple[float, float] = (0.2, 0.3),
        aggregation: str = "group",
        unit: str = "token",
        ratio: str = "token",
        dual_clip: float | None = None,
        max_length: int | None = None,
        old_policy: str = "stored",
        rollout_correction: str = "off",
        rollout_cap: float = 2.0,
        anchor_weight: float = 0.0,
        kl_weight: float = 0.0,
        entropy_weight: float = 0.0,
        distill_weight: float = 0.0,
        distill_beta: float = 5.0,
        keep_tokens: bool = False,
        device: torch.device | None = None,
    ) -> None:
        if old_policy not in ("stored", "current"):
            raise ValueError(f"old_policy must be 'stored' or 'current'; got {old_policy!r}")
        if rollout_correction not in ("off", "measure", *F.CORRECTION_LEVELS):
            raise ValueError(f"rollout_correction must be off, measure, token or sequence; got {rollout_correction!r}")
        if ratio not in F.RATIOS:
            raise ValueError(f"ratio must be one of {', '.join(F.RATIOS)}; got {ratio!r}")
        if ratio == "sequence" and unit == "step":
            raise ValueError(
                "unit='step' has the ratio of the summed log-probs, got ratio='sequence'; set unit='token'"
            )
        check_aggregation(aggregation, unit, max_length)
        check_dual_clip(dual_clip)
        check_cap(rollout_cap)
        low, high = clip_epsilon
        if not (0 <= low < 1 and high >= 0):
            raise ValueError(f"clip_epsilon must be (low, high) with 0 <= low < 1 and high >= 0; got {clip_epsilon}")
        terms.check_weight("anchor_weight", anchor_weight)
        of_tokens = {"kl_weight": kl_weight, "entropy_weight": entropy_weight, "distill_weight": distill_weight}
        for name, weight in of_tokens.items():
            terms.check_weight(name, weight)
            if weight and unit == "step":
                raise ValueError(f"{name}={weight} is for unit='token', got unit='step'; leave one of them out")
        if not 0 < distill_beta < math.inf:
            raise ValueError(f"distill_beta must be a finite number above 0; got {distill_beta}")
        super().__init__()
        self.actor_network, self.anchor_weight = actor_network, anchor_weight
        self.kl_weight, self.entropy_weight = kl_weight, entropy_weight
        self.distill_weight, self.distill_beta = distill_weight, distill_beta
        self.old_policy, self.rollout_correction, self.rollout_cap = old_policy, rollout_correction, rollout_cap
        self.keep_tokens = keep_tokens and unit == "token"
        self.aggregation, self.unit, self.dual_clip, self.max_length = aggregation, unit, dual_clip, max_length
        self.ratio = ratio
        if device is None:
            device = next((parameter.device for parameter in self.parameters()), torch.get_default_device())
        self.register_buffer("clip_epsilon_low", torch.tensor(float(low), device=device))
        self.register_buffer("clip_epsilon_high", torch.tensor(float(high), device=device))
        self.out_keys = self._returned()
        self._forward_value_estimator_keys()

    def _returned(self) -> list[str]:
        """The names of what forward returns with these weights."""
        names = [*self.loss_keys, *METRICS, *(ROLLOUT_METRICS if self.rollout_correction != "off" else ())]
        if self.anchor_weight:
            names += ["loss_anchor", "units_anchor"]
        if self.kl_weight:
            names += ["loss_kl_to_ref", "kl_to_ref"]
        if self.entropy_weight:
            names += ["loss_entropy", "entropy"]
        if self.distill_weight:
            names += ["loss_distill", "units_distill", "distill_gate"]
        return names

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> NoReturn:
        """Raises NotImplementedError: the rows have their advantages already."""
        raise NotImplementedError(
            f"{type(self).__name__} has no value estimator, got {value_type} {hyperparams}: it reads one advantage per "
            f"row; set {self.tensor_keys.advantage!r} by TraceReplacement or functional.group_advantage"
        )

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:  # noqa: ARG002 - called by set_keys
        """Sets ``in_keys`` to the entries that forward reads: those that the actor scores, and the loss's."""
        k = self.tensor_keys
        own = [k.action, k.advantage, k.denominator, k.off_policy]
        if self.old_policy == "stored":
            own.insert(2, k.sample_log_prob)
        if self.rollout_correction != "off":
            own.append(k.rollout_log_prob)
        if self.anchor_weight:
            own.append(k.anchor)
        if self.kl_weight:
            own.append(k.base_log_prob)
        if self.distill_weight:
            own += [k.plan_log_prob, k.distill]
        self.in_keys = list(dict.fromkeys([*scoring_keys(self.actor_network), *own]))

    @property
    def old_log_prob_rows(self) -> str:
        """The rows whose old log-probabilities are read: ``all``, ``sampled`` (all but injected ones) or ``none``."""
        if self.old_policy == "current":
            return "none"
        return "all" if self.off_policy_has_ratio else "sampled"

    def denominators(self, rows: TensorDictBase) -> Tensor:
        """The ``denominator`` entry for all rows of one optimiser step, ``[R, 1]`` float32 on the CPU.

        ``rows.set(keys.DENOMINATOR, loss.denominators(rows))`` before the rows are split into micro-batches. ``rows``
        must contain all rows of each of its groups.
        """
        k = self.tensor_keys
        lengths = response_lengths(rows, k.action)
        out = F.row_denominators(
            lengths,
            entry_on_cpu(rows, k.group),
            entry_on_cpu(rows, k.slot),
            aggregation=self.aggregation,
            unit=self.unit,
            max_length=self.max_length,
        )
        return out.unsqueeze(-1)

    def anchor_rows(self, rows: TensorDictBase) -> Tensor:
        """Which of all rows of one optimiser step are in the anchor, ``[R]`` bool; none without ``anchor_weight``."""
        if not self.anchor_weight:
            return torch.zeros(len(rows), dtype=torch.bool)
        k = self.tensor_keys
        returns, off_policy, group = (entry_on_cpu(rows, key) for key in (k.episode_return, k.off_policy, k.group))
        return F.anchor_rows(returns, off_policy.bool(), group)

    def anchor_weights(self, rows: TensorDictBase) -> Tensor:
        """The ``anchor`` entry for all rows of one optimiser step, ``[R, 1]`` float32; used as :meth:`denominators`."""
        lengths = response_lengths(rows, self.tensor_keys.action)
        return F.term_weights(lengths, self.anchor_rows(rows)).unsqueeze(-1)

    def forward(self, tensordict: TensorDictBase) -> BEPALossOutput:
        """The losses and metrics of a (micro-)batch of rows ``[B]``.

        Raises:
            KeyError: a key is missing in the rows.
            ValueError: no rows, or a batch other than a lazy stack ``[B]``; an advantage that is not ``[1, 1]`` per
                row or not finite, an old log-probability or one of the sampler that is not finite, log-probabilities
                of another number than response tokens, a denominator that is not positive, or an actor with
                mismatching shapes.
            NotImplementedError: in ``torch.vmap``.
        """
        check_batch(tensordict, self.tensor_keys.action)
        rows = tensordict.copy()
        denominator = denominators_of(rows, self.tensor_keys.denominator)
        inputs = self._inputs(rows)
        denominator = denominator.to(inputs.log_prob.device)
        objective, weight = self._objective(inputs), self._rollout_weight(inputs)
        if self.keep_tokens:
            write_tokens(tensordict, inputs, objective)
        objective.losses["loss_objective"] = objective.losses["loss_objective"] * weight
        losses = {
            name: (torch.where(inputs.mask, loss, 0.0).sum(-1, keepdim=True) / denominator).sum()
            for name, loss in objective.losses.items()
        }
        losses |= self._anchor(rows, inputs) | self._terms(rows, inputs, denominator)
        metrics = diagnostics(inputs, objective) | rollout_diagnostics(inputs, weight)
        return self.output_type(**losses, **metrics, batch_size=[])

    def _anchor(self, rows: TensorDictBase, inputs: LossInputs) -> dict[str, Tensor]:
        """``loss_anchor`` and ``units_anchor``; nothing without ``anchor_weight``."""
        if not self.anchor_weight:
            return {}
        share = per_row(rows, self.tensor_keys.anchor, (1,), "set it to loss.anchor_weights(all rows)")
        share = share.to(inputs.log_prob.device)
        chosen = inputs.mask & (share > 0)
        return {
            "loss_anchor": -self.anchor_weight * (torch.where(chosen, inputs.log_prob, 0.0) * share).sum(),
            "units_anchor": chosen.sum().float(),
        }

    def _terms(self, rows: TensorDictBase, inputs: LossInputs, denominator: Tensor) -> dict[str, Tensor]:
        """The terms with a weight, and their metrics."""
        out: dict[str, Tensor] = {}
        if self.kl_weight:
            base = self._stored(rows, self.tensor_keys.base_log_prob, inputs.log_prob)
            _check_finite(rows, self.tensor_keys.base_log_prob, base, terms.own_tokens(inputs))
            out |= terms.base_divergence(inputs, base, denominator, self.kl_weight)
        if inputs.entropy is not None:
            out |= terms.entropy_bonus(inputs, inputs.entropy, denominator, self.entropy_weight)
        if self.distill_weight:
            share = per_row(rows, self.tensor_keys.distill, (1,), "set it to loss.distill_weights(all rows)")
            plan = self._stored(rows, self.tensor_keys.plan_log_prob, inputs.log_prob)
            share = share.to(inputs.log_prob.device)
            _check_finite(rows, self.tensor_keys.plan_log_prob, plan, inputs.mask & (share > 0))
            weights = {"weight": self.distill_weight, "beta": self.distill_beta}
            out |= terms.plan_distillation(inputs, plan, share, **weights)
        return out

    def distill_rows(self, rows: TensorDictBase) -> Tensor:
        """Which of all rows of one optimiser step have a plan, ``[R]`` bool; none without ``distill_weight``."""
        if not self.distill_weight:
            return torch.zeros(len(rows), dtype=torch.bool)
        k = self.tensor_keys
        off_policy = entry_on_cpu(rows, k.off_policy).bool()
        finite = [bool(torch.isfinite(entry(row, k.plan_log_prob)).all()) for row in rows.unbind(0)]
        chosen: Tensor = torch.tensor(finite) & ~off_policy
        return chosen

    def distill_weights(self, rows: TensorDictBase) -> Tensor:
        """The ``distill`` entry for all rows of one optimiser step, ``[R, 1]`` float32; as :meth:`anchor_weights`."""
        lengths = response_lengths(rows, self.tensor_keys.action)
        return F.term_weights(lengths, self.distill_rows(rows)).unsqueeze(-1)

    def rows_with_terms(self, rows: TensorDictBase) -> Tensor:
        """Which of all rows of one optimiser step have a term whatever their advantage, ``[R]`` bool."""
        every = self.anchor_rows(rows) | self.distill_rows(rows)
        if self.kl_weight or self.entropy_weight:
            every = every | ~entry_on_cpu(rows, self.tensor_keys.off_policy).bool()
        return every

    def _rollout_weight(self, inputs: LossInputs) -> Tensor:
        """``[B, T]``: the importance weights of ``rollout_correction``; 1 without it."""
        if inputs.rollout_difference is None or self.rollout_correction == "measure":
            return torch.ones_like(inputs.log_prob)
        weight = F.truncated_importance(
            inputs.rollout_difference, inputs.mask, cap=self.rollout_cap, level=self.rollout_correction
        )
        return torch.where(inputs.off_policy, 1.0, weight)

    def _objective(self, inputs: LossInputs) -> Objective:
        """The losses per unit; subclasses override this. Paper eq. bepa-obj."""
        clip = {"low": self.clip_epsilon_low, "high": self.clip_epsilon_high}
        loss = F.clipped_surrogate(inputs.log_ratio, inputs.advantage, dual_clip=self.dual_clip, **clip)
        return Objective({"loss_objective": loss}, F.clip_binds(inputs.log_ratio, inputs.advantage, **clip))

    def _inputs(self, rows: TensorDictBase) -> LossInputs:
        k = self.tensor_keys
        advantage = per_row(rows, k.advantage, (1, 1), "one advantage for the whole response").squeeze(-1)
        if not torch.isfinite(advantage).all():
            bad = ~torch.isfinite(advantage).squeeze(-1)
            raise ValueError(f"{k.advantage!r} must be finite; it is not on {row_names(rows, bad)}")
        off_policy = per_row(rows, k.off_policy, (1,), "False on rows that the policy sampled").bool()
        dist = self.actor_network.get_dist(rows, logits_key="logits")
        log_prob = at_least_single(dist.log_prob(padded(rows, k.action, fill=-100)))
        mask = response_mask(dist, log_prob)
        old = self._old_log_prob(rows, log_prob)
        advantage, off_policy = advantage.to(log_prob.device), off_policy.to(log_prob.device)
        if self.old_policy == "stored":
            _check_finite(rows, k.sample_log_prob, old, mask if self.off_policy_has_ratio else mask & ~off_policy)
        if not self.off_policy_has_ratio:
            old = torch.where(off_policy, log_prob.detach(), old)
        log_prob = torch.where(mask, log_prob, 0.0)
        entropy = self._entropy(dist, mask) if self.entropy_weight else None
        difference = None
        if self.rollout_correction != "off":
            sampled = self._stored(rows, k.rollout_log_prob, log_prob)
            _check_finite(rows, k.rollout_log_prob, sampled, mask & ~off_policy)
            difference = torch.where(mask & ~off_policy, old.detach() - sampled, 0.0)
        if self.unit == "step":
            difference = None if difference is None else F.per_step(difference, mask)[0]
            old, _ = F.per_step(old, mask)
            log_prob, mask = F.per_step(log_prob, mask)
        log_ratio = F.log_ratio(log_prob, old, mask)
        if self.ratio == "sequence":
            log_ratio = F.response_mean(log_ratio, mask)
        return LossInputs(log_prob, log_ratio, advantage, mask, off_policy, difference, entropy)

    def _entropy(self, dist: torch.distributions.Distribution, mask: Tensor) -> Tensor:
        """``[B, T]`` nats. Raises ValueError if the actor's distribution has none with a gradient."""
        entropy: Tensor | None = getattr(dist, "token_entropy", None)
        if entropy is None or entropy.shape != mask.shape or (torch.is_grad_enabled() and not entropy.requires_grad):
            given = "none" if entropy is None else f"{list(entropy.shape)}, requires_grad={entropy.requires_grad}"
            raise ValueError(
                f"entropy_weight={self.entropy_weight} requires a token_entropy {list(mask.shape)} with a gradient of "
                f"the actor's get_dist, got {given}; add it to that distribution, or set entropy_weight=0"
            )
        return torch.where(mask, entropy, 0.0)

    def _old_log_prob(self, rows: TensorDictBase, log_prob: Tensor) -> Tensor:
        """``[B, T]`` nats, on the device of ``log_prob`` (rows stay on the CPU with their PNGs)."""
        if self.old_policy == "current":
            return log_prob.detach()
        return self._stored(rows, self.tensor_keys.sample_log_prob, log_prob)

    def _stored(self, rows: TensorDictBase, key: NestedKey, log_prob: Tensor) -> Tensor:
        """An entry of the rows as ``[B, T]`` nats, on the device of ``log_prob``."""
        check_lengths(rows, key, self.tensor_keys.action)
        values = padded(rows, key, fill=0.0).to(log_prob.device)
        if values.shape != log_prob.shape:
            raise ValueError(f"{key!r} is {list(values.shape)}, the actor's log_prob {list(log_prob.shape)}")
        return values


def _check_finite(rows: TensorDictBase, key: NestedKey, values: Tensor, mask: Tensor) -> None:
    """Raises ValueError if values ``[B, T]`` are not finite where the mask is true; the message names the rows."""
    bad = (~torch.isfinite(values) & mask).any(-1)
    if bad.any():
        raise ValueError(
            f"{key!r} must be finite on responses; it is not on {row_names(rows, bad)}: what sampled or scored these "
            "rows returned NaN or infinity for one of their tokens"
        )
