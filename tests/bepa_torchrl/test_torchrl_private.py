"""Private members of TorchRL are used in ``bepa_torchrl/torchrl_private.py`` only; classes extend public ones."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import bepa_torchrl
from bepa_torchrl import torchrl_private
from bepa_torchrl.cache.storage import TraceStorage
from bepa_torchrl.cache.writer import KeyedWriter
from bepa_torchrl.losses import SFTLoss
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.rollout.weight_sync import EngineWeightSync, ServiceWeightSync
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.storage import RowStorageCheckpointer
from bepa_torchrl.testing import LampEnv
from bepa_torchrl.training.optimization_step import GroupStepper

PACKAGE = Path(bepa_torchrl.__file__).parent
#: methods that TorchRL's base classes leave to their subclasses
HOOKS = {
    "_AcceptedKeys",
    "_forward_value_estimator_keys",
    "_init_on_sender_impl",
    "_reset",
    "_set_seed",
    "_step",
}
CLASSES = [
    *(getattr(bepa_torchrl, name) for name in bepa_torchrl.__all__),
    *(AsyncGroupCollector, EngineWeightSync, GroupStepper, KeyedWriter, LampEnv, OldLogProb),
    *(RowStorageCheckpointer, SFTLoss, ServiceWeightSync, TraceStorage),
]


def private_members(cls: type) -> set[str]:
    """Names with one underscore that TorchRL's parents of a class define or set on their instances."""
    names: set[str] = set()
    for parent in cls.__mro__:
        if parent.__module__.split(".")[0] != "torchrl":
            continue
        names |= {name for name in vars(parent) if re.fullmatch(r"_[a-zA-Z]\w*", name)}
        code = getattr(parent.__init__, "__code__", None)
        names |= set() if code is None else {name for name in code.co_names if re.fullmatch(r"_[a-z]\w*", name)}
    return names


def own_uses(cls: type) -> set[str]:
    """Attributes of ``self`` and methods with one underscore in the source of this project's parents of a class."""
    names: set[str] = set()
    for parent in cls.__mro__:
        if parent.__module__.split(".")[0] != "bepa_torchrl" or parent.__module__ == torchrl_private.__name__:
            continue
        tree = ast.parse(Path(sys.modules[parent.__module__].__file__ or "").read_text(encoding="utf-8"))
        (body,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == parent.__name__]
        for node in ast.walk(body):
            if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Call)):
                names.add(node.attr)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
    return names


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_uses_no_private_member_of_its_torchrl_parents(cls: type) -> None:
    assert private_members(cls) & own_uses(cls) <= HOOKS


def test_nothing_private_is_imported() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torchrl", "tensordict"):
                parts = [*(node.module or "").split("."), *(name.name for name in node.names)]
                if any(part.startswith("_") for part in parts):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert not found


def test_the_stated_versions_are_the_installed_ones() -> None:
    text = torchrl_private.__doc__ or ""
    for name, stated in re.findall(r"(torchrl|tensordict|torch) (\d[\d.]*\d)", text.split("``pyproject.toml``")[0]):
        assert version(name).startswith(stated)
