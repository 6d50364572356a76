"""``osworld-gym doctor``: which providers work on this machine."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

from osworld_gym import __version__
from osworld_gym.commands.status import FAILED, INFRASTRUCTURE
from osworld_gym.desktops.checks import KNOWN_DIFFERENCES, run_checks
from osworld_gym.desktops.registry import PROVIDERS, make_desktop
from osworld_gym.errors import DesktopError

LIBRARIES = ("gymnasium", "torch", "torchrl", "transformers")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    doctor = commands.add_parser("doctor", help="which providers work on this machine")
    doctor.add_argument("--provider", choices=sorted(PROVIDERS), help="this one only; exit 3 when it does not work")
    doctor.add_argument("--checks", action="store_true", help="run the whole Desktop contract, exit 1 when it fails")
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    print(f"osworld-gym {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {_version(name)}" for name in LIBRARIES))
    names = [arguments.provider] if arguments.provider else list(PROVIDERS)
    works = [_try_provider(name) for name in names]
    if not any(works):
        return INFRASTRUCTURE
    if not arguments.checks:
        return 0
    sound = [_contract(name) for name, fine in zip(names, works, strict=True) if fine]
    return 0 if all(sound) else FAILED


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _try_provider(name: str) -> bool:
    """Makes one desktop, resets it, looks at it; prints one line."""
    start = perf_counter()
    try:
        with make_desktop(name) as desktop:
            desktop.reset(0)
            width, height = desktop.screenshot().size
    except (DesktopError, ImportError, OSError) as error:
        print(f"{name:10} does not work here: {error}")
        return False
    print(f"{name:10} works: {width}×{height}, first screenshot after {perf_counter() - start:.2f} s")
    return True


def _contract(name: str) -> bool:
    results = run_checks(lambda: make_desktop(name), KNOWN_DIFFERENCES.get(name))
    for result in results:
        print(f"  {name}: {result.outcome:6} {result.name} ({result.seconds:.2f} s) {result.detail}".rstrip())
    return all(result.outcome != "failed" for result in results)
