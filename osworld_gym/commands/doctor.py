"""``osworld-gym doctor``: reports which providers work on this machine, what is missing, and how to fix it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

from osworld_gym import __version__
from osworld_gym.commands.arguments import add_import
from osworld_gym.commands.output import BAD_INPUT, FAILED, INFRASTRUCTURE
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.checks import KNOWN_DIFFERENCES, run_checks
from osworld_gym.desktops.home_template import apt
from osworld_gym.desktops.local.desktop import PROGRAMS
from osworld_gym.desktops.registry import PROVIDERS, make_desktop, provider_class, required_options
from osworld_gym.errors import DesktopError, ExtensionError, FailureReason, TaskError
from osworld_gym.extensions import raised_at
from osworld_gym.folders import osworld_root
from osworld_gym.tasks.suites.registry import OSWORLD, load_suite
from osworld_gym.tasks.usable import lists_unsupported, not_supported

APPLICATIONS = ("mousepad", "pcmanfm", "xterm")  # programs that have their package's name
LIBRARIES = ("gymnasium", "torch", "torchrl", "transformers")
_FAILURES = (DesktopError, ExtensionError, ImportError, OSError)
BUILT_IN = PROVIDERS.built_in
RESET_BY = "OSWORLD_RESET_BY"  # environment variable: the remote provider's reset_by, for --checks


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    about = "Reports which providers work on this machine, what is missing, and the command that fixes it."
    doctor = commands.add_parser("doctor", help="which providers work on this machine", description=about)
    doctor.add_argument("--provider", help="only this provider; exit 3 if it does not work")
    add_import(doctor)
    doctor.add_argument(
        "--checks", action="store_true", help="run all checks of the Desktop contract; exit 1 if one fails"
    )
    doctor.add_argument(
        "--packages", action="store_true", help="only the Debian packages of a real desktop; exit 2 if one is missing"
    )
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.packages:
        if arguments.provider or arguments.checks:
            raise ValueError("--packages looks at the Debian packages only; leave --provider and --checks out")
        return _packages()
    print(f"osworld-gym {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {_version(name)}" for name in LIBRARIES))
    if not arguments.provider and osworld_root() is not None:
        print(_osworld())
    required = {} if arguments.provider else _required()
    names = [arguments.provider] if arguments.provider else [name for name in PROVIDERS if name not in required]
    brief = {} if arguments.provider or arguments.checks else BRIEF
    # a wrong OSWORLD_SERVER_URL is bad input of its own provider, and no end of a report on all
    expected = _FAILURES if arguments.provider else (*_FAILURES, ValueError)
    works = [_try_provider(name, brief.get(name, _open_one), expected) for name in names]
    for name, options in required.items():
        print(f"{name:10} not tried: it requires {', '.join(f'{option}=...' for option in options)}")
    if not any(works):
        return INFRASTRUCTURE
    if not arguments.checks:
        return 0
    sound = [_contract(name) for name, fine in zip(names, works, strict=True) if fine]
    return 0 if all(sound) else FAILED


def _osworld() -> str:
    """One line on the checkout at ``OSWORLD_ROOT``."""
    try:
        suite = load_suite(OSWORLD)
    except TaskError as error:
        return f"{OSWORLD:10} cannot be read: {error}"
    count = len(not_supported(suite.tasks))
    more = f"; {count} are not supported: {lists_unsupported(suite)} has why" if count else ""
    return f"{OSWORLD:10} {len(suite.tasks)} tasks at OSWORLD_ROOT={osworld_root()}{more}"


def _required() -> dict[str, list[str]]:
    """Provider → the options without which it has no desktop, for those that have such options."""
    found = {}
    for name in PROVIDERS:
        try:
            found[name] = required_options(provider_class(name))
        except (ExtensionError, ImportError):  # is reported when it is tried
            continue
    return {name: options for name, options in found.items() if options}


def _packages() -> int:
    """Prints which packages of ``scripts/apt-packages.txt`` are missing, and the command that installs them.

    A program that was installed in another way than by apt counts as well; without dpkg only programs are looked for.
    """
    wanted = apt.BASIC.read_text(encoding="utf-8").split()
    programs = {package: program for program, package in PROGRAMS.items()} | {name: name for name in APPLICATIONS}
    dpkg = shutil.which("dpkg-query") is not None
    absent = [package for package in wanted if shutil.which(programs.get(package, "")) is None]
    lacking = apt.missing(absent) if dpkg else [package for package in absent if package in programs]
    if not lacking:
        print(f"all {len(wanted)} packages of a real desktop are installed")
        return 0
    print(f"a real desktop lacks {len(lacking)} of {len(wanted)} packages: {' '.join(lacking)}", file=sys.stderr)
    print(f"fix: sudo apt-get update && sudo {' '.join([*apt.INSTALL, *lacking])}", file=sys.stderr)
    return BAD_INPUT


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _try_provider(name: str, probe: Callable[[str], str], expected: tuple[type[Exception], ...]) -> bool:
    """Prints one line on whether the provider works; returns whether it does.

    Other errors than those are raised, unless they are of a provider of the user's own, which may raise anything.
    """
    try:
        result = probe(name)
    except expected as error:
        print(f"{name:10} does not work here: {error}")
        return False
    except Exception as error:
        if name in BUILT_IN or isinstance(error, ValueError):
            raise
        print(f"{name:10} does not work: {type(error).__name__}: {error}{raised_at(error)}")
        return False
    print(f"{name:10} works: {result}")
    return True


def _make(name: str) -> Desktop:
    """Creates a desktop. A remote one is not reset unless ``OSWORLD_RESET_BY`` names a reset hook."""
    if name != "remote":
        return make_desktop(name)
    hook = os.environ.get(RESET_BY)
    width, height = _remote_size()
    return make_desktop(name, reset_by=hook, allow_dirty=hook is None, width=width, height=height)


def _open_one(name: str) -> str:
    """Creates one desktop, resets it and takes a screenshot."""
    start = perf_counter()
    with _make(name) as desktop:
        desktop.reset(0)
        width, height = desktop.screenshot().size
    return f"{width}×{height}, first screenshot after {perf_counter() - start:.2f} s"


def _vm_without_boot(name: str) -> str:
    """Checks everything but the boot, which takes minutes."""
    from osworld_gym.desktops.vm.kvm_probe import kvm_problem

    make_desktop(name).close()
    problem = kvm_problem()
    kvm = f"KVM does not ({problem}), so QEMU emulates, slowly" if problem else "KVM runs guests"
    return f"engine, image and disk are there; {kvm}; not booted: osworld-gym doctor --provider vm boots one"


def _remote_servers(_name: str) -> str:
    """Describes each listed server without resetting it."""
    from osworld_gym.desktops.remote.desktop import describe, listed

    report = [describe(server) for server in listed(None)]
    fine = [text for text, works in report if works]
    if not fine:
        raise DesktopError(FailureReason.never_ready, "; ".join(text for text, _ in report))
    return "; ".join(text for text, _ in report)


def _remote_size() -> tuple[int, int]:
    from osworld_gym.desktops.remote.desktop import listed, screen_of

    return screen_of(listed(None)[0])


#: cheaper probes, used instead of opening a desktop when all providers are checked
BRIEF: dict[str, Callable[[str], str]] = {"vm": _vm_without_boot, "remote": _remote_servers}


def _contract(name: str) -> bool:
    results = run_checks(lambda: _make(name), KNOWN_DIFFERENCES.get(name))
    for result in results:
        print(f"  {name}: {result.outcome:6} {result.name} ({result.seconds:.2f} s) {result.detail}".rstrip())
    return all(result.outcome != "failed" for result in results)
