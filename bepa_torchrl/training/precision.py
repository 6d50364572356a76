"""MasterWeights: AdamW with float32 master weights for half-precision models, so that small updates are not lost.

bfloat16 has 8 significant bits: near ``|w| = 0.02`` neighbouring values are 1.2e-4 apart. An AdamW update is about as
large as the learning rate, 1e-6 in the paper, so added to a bfloat16 weight it is lost to rounding. The optimiser
therefore updates a float32 copy of each such weight, and the model's weight is set to the copy, rounded to its dtype.

Bytes per trained parameter (weight + gradient + master + Adam's two moments):

- float32, ``torch.optim.AdamW``: 4 + 4 + 0 + 8 = 16;
- bfloat16 or float16, :class:`MasterAdamW`: 2 + 4 + 4 + 8 = 18;
- bfloat16 or float16, :class:`~bepa_torchrl.training.adam_8bit.MasterAdamW8bit`: 2 + 4 + 4 + 2 = 12;
- bfloat16 or float16 without master weights: 2 + 2 + 0 + 4 = 8, but it does not learn at a rate of 1e-6.

The gradient is accumulated in float32, too (``Tensor.grad_dtype``), so that a sum over many micro-batches is not
rounded to half precision; a master has its weight's gradient as its own. For 7.6e9 parameters 18 bytes are
137 GB; sampling and scoring use the half-precision weights alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from bepa_torchrl.policies.out_of_memory import optimizer_advice
from bepa_torchrl.training.local_shards import LocalShards
from osworld_gym.extras import require_extra

#: weights, or parameter groups ``{"params": weights, "lr": …}``
Parameters = Iterable[Tensor] | Iterable[Mapping[str, Any]]

HALF_PRECISION = (torch.bfloat16, torch.float16)

#: model weight → the latest :class:`MasterWeights` of it
_owners: WeakIdKeyDictionary = WeakIdKeyDictionary()


class MasterWeights(Optimizer):
    """An optimiser of float32 copies of the given weights; each step sets the weights to the copies, rounded.

    To be combined with an optimiser: ``class MasterAdamW(MasterWeights, AdamW)``.

    ``param_groups`` contains the float32 copies. A weight's ``grad`` is the float32 sum of all gradients since
    ``zero_grad`` of the optimiser or of the module, and its copy has the same tensor, so clipping and schedulers work
    as usual. A gradient that is set by hand counts likewise; it must be float32. A weight belongs to the optimiser
    created last; an earlier one raises in ``step``.

    Args:
        parameters: the model's weights, of any floating dtypes, or parameter groups of them.
        **options: options of the optimiser.

    Raises:
        ValueError: ``parameters`` is empty.
    """

    def __init__(self, parameters: Parameters, **options: Any) -> None:
        groups = _groups(parameters)
        self.weights: list[Tensor] = _members(groups)
        copies = [{**group, "params": [_copy_of(weight) for weight in group["params"]]} for group in groups]
        self.masters: list[Tensor] = _members(copies)
        self._masters = WeakIdKeyDictionary(dict(zip(self.weights, self.masters, strict=True)))
        super().__init__(copies, **options)
        me = weakref.ref(self)
        for weight, master in zip(self.weights, self.masters, strict=True):
            _owners[weight] = me
            weight.grad = None if weight.grad is None else weight.grad.to(torch.float32)
            weight.grad_dtype = torch.float32
            weight.register_post_accumulate_grad_hook(_sharer(me, weakref.ref(master)))

    def master_of(self, weight: Tensor) -> Tensor:
        """The float32 copy of a weight; a weight that is not trained itself."""
        master: Tensor = self._masters.get(weight, weight)
        return master

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on the float32 copies, then the model's weights are set to them, rounded.

        Raises:
            RuntimeError: a later optimiser has taken over one of the weights.
        """
        if any(_owners.get(weight) is None or _owners[weight]() is not self for weight in self.weights):
            raise RuntimeError("another optimiser was made for these weights later; step that one, or make a new one")
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = weight.grad  # set by hand, or removed by the module's zero_grad
        result: float | None = super().step(closure)
        self._round()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients of the weights and of their copies, or sets them to 0."""
        super().zero_grad(set_to_none)
        for weight in self.weights:
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    @torch.no_grad()
    def _round(self) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and, as ``master``, the float32 weights by index."""
        return {**super().state_dict(), "master": {i: master.detach() for i, master in enumerate(self.masters)}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the moments, the float32 weights and the model's weights.

        Raises:
            ValueError: the state has no master weights, or weights of other shapes; nothing is changed.
        """
        saved = state_dict.get("master")
        if saved is None:
            raise ValueError(
                "the optimiser's state has no master weights: it was saved with float32 weights; "
                "resume with the settings that it was saved with, above all policy.dtype"
            )
        shapes = [tuple(saved[name].shape) for name in sorted(saved, key=int)]
        expected = [tuple(master.shape) for master in self.masters]
        if shapes != expected:
            raise ValueError(
                f"the saved master weights do not fit: {len(shapes)} of them for {len(expected)} trained parameters, "
                "or other shapes; resume with the same policy, train.frozen and optimizer.vision_lr"
            )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "master"})
        for name, value in saved.items():
            self.masters[int(name)].copy_(value)
        self._round()


class MasterAdamW(MasterWeights, AdamW):
    """``torch.optim.AdamW`` with float32 master weights."""


def master_of(optimizer: Optimizer, weight: Tensor) -> Tensor:
    """What an optimiser updates for a weight of the model: its float32 copy, or the weight itself."""
    return optimizer.master_of(weight) if isinstance(optimizer, MasterWeights) else weight


def make_adamw(
    parameters: Parameters,
    *,
    kind: Literal["adamw", "adamw_8bit"] = "adamw",
    master_weights: bool = True,
    **options: Any,
) -> Optimizer:
    """AdamW, with float32 master weights if a parameter is of half precision.

    Args:
        parameters: the trained weights, or parameter groups of them.
        kind: ``adamw``, or ``adamw_8bit`` with moments of 8 bits (:mod:`bepa_torchrl.training.adam_8bit`); of weights
            that are sharded over ranks each rank's rows have their own blocks
            (:class:`~bepa_torchrl.training.local_shards.LocalShards`).
        master_weights: False: never copies; for half-precision weights only sensible at learning rates far above 1e-4
            of the weights.
        **options: options of ``torch.optim.AdamW``.

    Raises:
        MissingExtraError: ``adamw_8bit`` requires bitsandbytes, which is not installed.
        ValueError: there are no weights; or ``adamw_8bit`` for half-precision weights that are sharded over ranks.
        DeviceMemoryError: the device has no room for the master weights.
    """
    groups = _groups(parameters)
    weights = _members(groups)
    masters = master_weights and any(weight.dtype in HALF_PRECISION for weight in weights)
    if not masters:
        for weight in weights:
            weight.grad_dtype = weight.dtype  # an earlier optimiser with master weights may have made it float32
    plain, with_masters = _eight_bit(weights) if kind == "adamw_8bit" else (AdamW, MasterAdamW)
    with optimizer_advice("the optimiser copies", weights):
        return with_masters(groups, **options) if masters else plain(groups, **options)


def _eight_bit(weights: Iterable[Tensor]) -> tuple[Callable[..., Optimizer], Callable[..., Optimizer]]:
    """8-bit AdamW without and with master weights; raises as :func:`make_adamw`."""
    require_extra("adam8bit", "optimizer.kind=adamw_8bit")
    from bepa_torchrl.training.adam_8bit import AdamW8bit, MasterAdamW8bit

    if not any(isinstance(weight, DTensor) for weight in weights):
        return AdamW8bit, MasterAdamW8bit
    if any(weight.dtype in HALF_PRECISION for weight in weights):
        raise ValueError(
            "optimizer.kind=adamw_8bit expects float32 weights if they are divided over ranks (DTensor), got half "
            "precision; load the policy with dtype=float32 and set compute_dtype of shard_policy"
        )
    sharded = partial(LocalShards, AdamW8bit)
    return sharded, sharded


def _groups(parameters: Parameters) -> list[dict[str, Any]]:
    """The parameter groups, as torch's optimisers read them; one group for plain weights."""
    given = list(parameters)
    groups = [{**group, "params": list(group["params"])} for group in given if isinstance(group, Mapping)]
    return groups or [{"params": given}]


def _members(groups: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    """The weights of all groups, in the order of the optimiser's state."""
    return [weight for group in groups for weight in group["params"]]


def _copy_of(weight: Tensor) -> Tensor:
    return torch.nn.Parameter(weight.detach().to(torch.float32, copy=True))


def _sharer(
    owner: weakref.ReferenceType[MasterWeights], master: weakref.ReferenceType[Tensor]
) -> Callable[[Tensor], None]:
    """A hook after a backward pass: the copy has its weight's gradient, without a copy of it."""

    def share(weight: Tensor) -> None:
        copy = master()
        if copy is not None and _owners.get(weight) is owner:
            copy.grad = weight.grad

    return share
