"""What the pretend accelerator refuses and keeps; called in a process of its own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import safetensors.torch
import torch
from pretend_device import LeftTheDeviceError, MixedDevicesError, moves_in_place, on_device, pretend_device


def check_refusals(_folder: Path) -> None:
    """Mixed devices, and every way out of the process that is not a copy to the CPU."""
    with pretend_device():
        ours, plain = torch.ones(2, 3, device="gpu"), torch.ones(2, 3)
        mixed: list[Callable[[], object]] = [
            lambda: ours + plain,
            lambda: torch.cat([ours, plain]),
            lambda: ours @ plain.T,
            lambda: plain.add_(ours),
            lambda: torch.where(plain > 0, ours, 0.0),
            lambda: plain[torch.tensor([0], device="gpu")],
            lambda: ours.index_select(0, torch.tensor([0])),
            lambda: torch.nn.functional.embedding(torch.tensor([0]), ours),
            lambda: ours.__setitem__(0, torch.ones(3)) or ours.index_put_((torch.tensor([0]),), torch.ones(1, 3)),
        ]
        for operation in mixed:
            with pytest.raises(MixedDevicesError):
                operation()
        leaving: list[Callable[[], object]] = [
            ours.numpy,
            lambda: np.asarray(ours),
            lambda: pickle.dumps([("weight", ours)]),
            lambda: cloudpickle.dumps({"weight": ours.detach()}),
            lambda: safetensors.torch.save({"weight": ours}),
        ]
        for operation in leaving:
            with pytest.raises(LeftTheDeviceError):
                operation()
        # as on a GPU: scalars of the CPU, indices of the CPU for a tensor on the accelerator, copies both ways
        assert on_device(ours * torch.tensor(2.0))
        assert on_device(ours[torch.tensor([1, 0])])
        plain.copy_(ours)
        assert pickle.loads(pickle.dumps(ours.cpu())).equal(plain)
    assert torch.nn.functional.scaled_dot_product_attention.__module__ != "pretend_device"


def check_ties(_folder: Path) -> None:
    """A module keeps its tied weights, gradients flow to both uses, and views share memory."""
    with pretend_device():
        embedding, head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)
        head.weight = embedding.weight
        with moves_in_place():
            both = torch.nn.ModuleDict({"embedding": embedding, "head": head}).to("gpu")
        assert both["head"].weight is both["embedding"].weight
        tokens = torch.tensor([1, 3], device="gpu")
        both["head"](both["embedding"](tokens)).sum().backward()
        gradient = both["head"].weight.grad
        assert on_device(gradient)
        weight = embedding.weight.detach().cpu().requires_grad_()
        torch.nn.functional.linear(torch.nn.functional.embedding(tokens.cpu(), weight), weight).sum().backward()
        torch.testing.assert_close(gradient.cpu(), weight.grad)
        both["head"].weight.data[0] = 7.0
        assert both["embedding"].weight[0].tolist() == [7.0] * 4
