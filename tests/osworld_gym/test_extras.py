"""A missing extra is reported with the command that installs it; the Gymnasium environment requires none."""

import ast
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest
from repository import ROOT

from osworld_gym.extras import EXTRAS, missing_extra, require_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder
class Without(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
import importlib.util
there = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name.partition(".")[0] in {names!r} else there(name, package)
importlib.util.find_spec = find_spec
"""


def run_without(names, code):
    """Runs code in a Python without the given modules."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED.format(names=tuple(names)) + code], capture_output=True, text=True, timeout=100
    )


def test_nothing_is_missing_here():
    """The environment of the default tests has every extra but Ray, which `make test-ray` installs."""
    assert {missing_extra(extra, "x") for extra in EXTRAS if extra != "ray"} == {""}


def test_the_message_names_modules_and_command(monkeypatch):
    monkeypatch.setitem(EXTRAS, "torchrl", ("torch", "no_such_module_here"))
    fix = r"no_such_module_here, not installed; fix: pip install 'osworld-gym\[torchrl\]'"
    with pytest.raises(ImportError, match=fix):
        require_extra("torchrl", "the environment")


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import osworld_gym.torchrl_env", "torchrl"),
        ("from bepa_torchrl import BEPALoss", "bepa"),
        ("import sys; from bepa_torchrl.__main__ import main; sys.exit(main(['train']))", "bepa"),
    ],
)
def test_without_torch(code, extra):
    done = run_without(["torch", "torchrl", "tensordict"], code)
    assert done.returncode != 0
    assert f"pip install 'osworld-gym[{extra}]'" in done.stderr.splitlines()[-1]


def test_the_program_without_training_prints_one_line():
    done = run_without(["torch", "transformers"], "from bepa_torchrl.__main__ import main; print(main(['train']))")
    assert done.stdout == "2\n"
    assert len(done.stderr.splitlines()) == 1


def test_gymnasium_loop_without_torch():
    code = f"import runpy; runpy.run_path({str(ROOT / 'examples' / 'gymnasium_loop.py')!r}, run_name='loop')['main'](1)"
    modules = {name for names in EXTRAS.values() for name in names} | {"docker", "Xlib", "pyautogui", "psutil"}
    done = run_without(modules, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reward" in done.stdout


def test_modules_of_the_gymnasium_use_import_base_dependencies_only():
    """Every third-party import at the top of a host module of osworld_gym is a base dependency."""
    base = {"gymnasium", "numpy", "PIL", "platformdirs", "requests"}
    foreign = {}
    for path in (ROOT / "osworld_gym").rglob("*.py"):
        inside = path.relative_to(ROOT / "osworld_gym").parts
        if inside[0] in ("guest", "torchrl_env") or inside == ("testing.py",):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            found = {n.partition(".")[0] for n in names} - set(sys.stdlib_module_names) - base - {"osworld_gym"}
            if found:
                foreign["/".join(inside)] = found
    foreign.pop("tasks/evaluation/sidecar/official_evaluators.py", None)  # a process with the extra official-eval
    assert foreign == {}


def test_extras_exist():
    assert set(EXTRAS) <= set(PROJECT["optional-dependencies"])
    assert not any(line.startswith(("torch", "tensordict", "transformers")) for line in PROJECT["dependencies"])


@pytest.mark.parametrize("name", PROJECT["scripts"])
def test_scripts_are_functions(name):
    module, _, function = PROJECT["scripts"][name].partition(":")
    assert callable(getattr(import_module(module), function))
