"""The layers: nothing imports upwards, folders and files stay small, the guest and the desktops import little."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: top to bottom; a part imports its own layer and those below
LAYERS = {
    "bepa_torchrl": (
        "cli __main__ commands",
        "testing",
        "viewer",
        "analysis",
        "experiment",
        "monitoring",
        "scale",
        "evaluation experts training",
        "methods",
        "rollout",
        "cache policies losses",
        "storage data functional failures sizing endpoint checkpoints torchrl_private",
    ),
    "osworld_gym": (
        "cli __main__ commands",
        "gymnasium_env torchrl_env assignment factory",
        "testing vector vector_worker",
        "episode",
        "tasks",
        "desktops",
        "action_text",
        "opencua qwen3vl",
        "uitars guest types errors exports extensions folders atomic extras counts",
    ),
}
GUEST = {"pyautogui", "Xlib", "PIL", "gi", "osworld_gym"}
FILES = sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Full names of the modules that a file imports, lazily or not; those for type checkers only are left out."""
    return tuple(read_imports(path))


def read_imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        n for i in ast.walk(tree) if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test) for n in ast.walk(i)
    }
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in typing:
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in typing:
            yield ".".join(
                (*package[: len(package) - node.level + 1], node.module or "") if node.level else (node.module or "",)
            )


def layer(package: str, part: str) -> int:
    return next(number for number, names in enumerate(LAYERS[package]) if part in names.split())


def test_nothing_imports_upwards() -> None:
    upward = []
    for path in FILES:
        package, part = path.relative_to(ROOT).with_suffix("").parts[:2]
        for name in imports(path):
            target, _, rest = name.partition(".")
            if target == "bepa_torchrl" and package == "osworld_gym":
                upward.append(f"{path.relative_to(ROOT)} → {name}")
            elif target == package and rest and part != "__init__":
                other = rest.split(".")[0]
                if layer(package, other) < layer(package, part):
                    upward.append(f"{path.relative_to(ROOT)} → {name}")
    assert not upward, "\n".join(upward)


@pytest.mark.parametrize("package", LAYERS)
def test_no_parts_of_a_package_import_each_other(package: str) -> None:
    """Directly or by others; a lazy import counts."""
    parts: dict[str, set[str]] = {}
    for path in FILES:
        own = path.relative_to(ROOT).with_suffix("").parts[:2]
        if own[0] == package and own[1] != "__init__":
            names = (name.split(".") for name in imports(path))
            parts.setdefault(own[1], set()).update(
                name[1] for name in names if name[0] == package and len(name) > 1 and name[1] != own[1]
            )
    TopologicalSorter(parts).prepare()  # raises CycleError, which names the parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_from_outside(path: Path) -> None:
    inside = path.relative_to(ROOT).as_posix()
    roots = {name.split(".")[0] for name in imports(path)}
    if inside.startswith("osworld_gym/guest/"):
        assert roots <= GUEST | set(sys.stdlib_module_names), roots - GUEST
    if inside.startswith("osworld_gym/") and not inside.startswith("osworld_gym/torchrl_env/"):
        assert not roots & {"torch", "torchrl", "tensordict"}
    if inside.startswith("bepa_torchrl/") and inside != "bepa_torchrl/experiment/config.py":
        assert "omegaconf" not in roots
    if not inside.startswith("bepa_torchrl/scale/engine/"):
        assert "vllm" not in roots, "vLLM is imported in bepa_torchrl/scale/engine only"
    if not inside.startswith(
        ("bepa_torchrl/policies/", "bepa_torchrl/testing/", "bepa_torchrl/scale/")
    ) and not inside.endswith("/factory.py"):
        assert "TransformersPolicy" not in path.read_text(encoding="utf-8")


def test_what_examples_and_how_to_pages_import_is_at_most_one_level_below_a_package() -> None:
    """``from bepa_torchrl.policies import load_policy``, not the module that defines it."""
    names = [
        (path.name, name)
        for path in [*(ROOT / "examples").glob("*.py"), *(ROOT / "docs" / "howto").glob("*.md")]
        for name in re.findall(r"^(?:from|import) ((?:osworld_gym|bepa_torchrl)[\w.]*)", path.read_text("utf-8"), re.M)
    ]
    assert len(names) > 30
    assert [each for each in names if each[1].count(".") > 1] == []


def test_no_test_module_imports_another() -> None:
    """What several need is in ``tests/support``, or a fixture of a ``conftest.py``."""
    modules = sorted((ROOT / "tests").rglob("*.py"))
    names = {path.stem for path in modules if path.name.startswith("test_")}
    assert {
        f"{path.name} → {name}" for path in modules for name in imports(path) if name.split(".")[-1] in names
    } == set()
