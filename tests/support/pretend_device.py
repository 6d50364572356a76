"""A pretend accelerator: tensors of device ``gpu:0`` whose data is on the CPU, and which refuse what a GPU's refuse.

They do not mix with CPU tensors (except scalars and copies), have no numpy array, and cannot be pickled or written to a
file: whatever leaves the process must have been copied to the CPU before. What a real GPU does with its own kernels
(rounding, memory, speed) is not imitated.

torch cannot forget a backend (PrivateUse1) that was registered: use it in a process of its own
(:func:`process_groups.run_ranks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import safetensors.torch
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "gpu:0"
aten = torch.ops.aten
#: operations that take tensors of both: copies, and indices on the CPU for a tensor on the accelerator
_COPIES = {aten.copy_.default, aten._to_copy.default}
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class MixedDevicesError(RuntimeError):
    """An operation got tensors of the pretend accelerator and of the CPU."""


class LeftTheDeviceError(RuntimeError):
    """A tensor of the pretend accelerator was about to leave the process."""


class PretendTensor(Tensor):
    """A tensor of the pretend accelerator.

    Args:
        data: its values, on the CPU.
    """

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> PretendTensor:
        made: PretendTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            layout=data.layout,
            device=DEVICE,
        )
        made.data_on_cpu = data
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.data_on_cpu.tolist()

    def data_ptr(self) -> int:
        return self.data_on_cpu.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.data_on_cpu.untyped_storage()

    def numpy(self, **_options: Any) -> NoReturn:  # type: ignore[override]
        raise LeftTheDeviceError("can't convert a tensor of the accelerator to numpy; copy it to the CPU first")

    def __array__(self, *_arguments: Any, **_options: Any) -> NoReturn:  # type: ignore[override]
        self.numpy()

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise LeftTheDeviceError(f"a tensor {list(self.shape)} of the accelerator is pickled for another process")

    def __repr__(self, **_options: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({list(self.shape)}, {self.dtype})"


def on_device(value: Any) -> bool:
    """Whether a tensor, or a device, is that of the pretend accelerator."""
    if isinstance(value, PretendTensor):
        return True
    return isinstance(value, (str, torch.device)) and torch.device(value).type == "gpu"


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One operation of torch on the data of its arguments."""
    flat, spec = tree_flatten((args, kwargs))
    ours = [value for value in flat if isinstance(value, PretendTensor)]
    others = [value for value in flat if isinstance(value, Tensor) and not isinstance(value, PretendTensor)]
    _check_devices(func, args, ours, others)
    plain = [_on_cpu(value) for value in flat]
    plain_args, plain_kwargs = tree_unflatten(plain, spec)
    result = func(*plain_args, **plain_kwargs)
    device = kwargs.get("device")
    if device is not None:
        wanted = on_device(device)
    elif func is aten.copy_.default:
        wanted = on_device(args[0])
    else:
        wanted = bool(ours)
    if not wanted:
        return result
    wrapped = tree_map(lambda value: PretendTensor(value) if isinstance(value, Tensor) else value, result)
    if func._schema.is_mutable and isinstance(args[0], (list, tuple)):  # foreach operations return nothing
        return wrapped
    return return_and_correct_aliasing(func, args, dict(kwargs), wrapped) if ours else wrapped


def _on_cpu(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.data_on_cpu
    return torch.device("cpu") if isinstance(value, torch.device) and on_device(value) else value


def _check_devices(func: Any, args: Sequence[Any], ours: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Raises MixedDevicesError where CUDA would; scalars of the CPU are allowed."""
    large = [value for value in others if value.dim() > 0]
    if func in _INDEXING and ours and not on_device(args[0]):
        raise MixedDevicesError(f"{func}: indices should be on the CPU, as the tensor that is indexed")
    if func in _INDEXING and len(args) > 2 and isinstance(args[2], Tensor) and args[2].dim() and not on_device(args[2]):
        raise MixedDevicesError(f"{func}: the values are on the CPU, the tensor is on the accelerator")
    if ours and large and func not in _COPIES | _INDEXING:
        shapes = [[list(value.shape) for value in values] for values in (ours, large)]
        raise MixedDevicesError(
            f"expected all tensors to be on the same device, but {func} got {shapes[0]} on the accelerator and "
            f"{shapes[1]} on the CPU"
        )


class _Mode(TorchDispatchMode):
    """Operations without a tensor as an argument, such as ``torch.zeros(2, device="gpu")``."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        ours = on_device(kwargs.get("device")) or any(isinstance(value, PretendTensor) for value in flat)
        return _run(func, args, kwargs) if ours else func(*args, **kwargs)


@contextmanager
def pretend_device() -> Iterator[None]:
    """torch has the device ``gpu`` in this block. The backend stays registered afterwards."""
    if not hasattr(torch, "gpu"):
        _setup_privateuseone_for_python_backend("gpu")
    torch.gpu.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore[attr-defined]
    _device_constructors()  # torch remembers which functions make tensors: these ones, not what replaces them here
    functional = torch.nn.functional
    with ExitStack() as stack:
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", _attention(functional)))
        for name in ("tensor", "as_tensor"):
            stack.enter_context(patch.object(torch, name, _made_on_device(getattr(torch, name))))
        stack.enter_context(patch.object(safetensors.torch, "_flatten_as_ptr", _only_cpu()))
        stack.enter_context(_Mode())
        yield


@contextmanager
def moves_in_place() -> Iterator[None]:
    """``module.to`` keeps a parameter's identity in this block, and so its ties, as it does for a real device."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _attention(functional: Any) -> Callable[..., Tensor]:
    """The fused kernels know no PrivateUse1 tensors with gradients: those are computed by its formula."""
    fused = functional.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if not on_device(query):
            made: Tensor = fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            return made
        if enable_gqa:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = (query @ key.transpose(-1, -2)).float() * (scale or 1 / math.sqrt(query.shape[-1]))
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1).to(value.dtype) @ value

    return attention


def _made_on_device(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.tensor`` and ``as_tensor`` fill a tensor of the device by address: here from one on the CPU."""

    def made(data: Any, *, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
        if not on_device(device):
            more = {"requires_grad": True} if requires_grad else {}
            return make(data, device=device, **more, **options)
        return make(data, **options).to(device).requires_grad_(requires_grad)

    return made


def _only_cpu() -> Callable[..., Any]:
    """safetensors would copy tensors of an accelerator itself: all of them, before it writes the first."""
    flatten = safetensors.torch._flatten_as_ptr

    def checked(tensors: Mapping[str, Tensor], *arguments: Any) -> Any:
        if left := [name for name, tensor in tensors.items() if on_device(tensor)]:
            raise LeftTheDeviceError(f"safetensors gets {len(left)} tensors of the accelerator, such as {left[0]}")
        return flatten(tensors, *arguments)

    return checked
