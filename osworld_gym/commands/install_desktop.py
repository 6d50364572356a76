"""``osworld-gym install-desktop``: installs the full desktop's applications and builds the home template."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys

from osworld_gym.commands.output import BAD_INPUT, INFRASTRUCTURE
from osworld_gym.desktops.home_template import apt
from osworld_gym.desktops.home_template.build import build_template
from osworld_gym.desktops.home_template.find import find_template, template_folder, template_version
from osworld_gym.desktops.local.desktop import LocalDesktop

MEGABYTE = 1_000_000
SCREEN = (1920, 1080)  # OSWorld's
MODULES = ("Xlib", "PIL", "six", "pyautogui")  # modules of the extra "guest"; checked before anything is downloaded


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "install LibreOffice, Chromium, GIMP, VLC, Thunderbird, … and make the template of their settings"
    parser = commands.add_parser("install-desktop", help=text, description=text)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    parser.set_defaults(command=_install)


def _install(arguments: argparse.Namespace) -> int:
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        problem = f"this Python lacks {', '.join(modules)}, which the desktops require"
        print(f"osworld-gym: {problem}; fix: pip install 'osworld-gym[guest]'", file=sys.stderr)
        if not arguments.dry_run:
            return INFRASTRUCTURE
    lacking = apt.missing(apt.required())
    _explain(lacking)
    if arguments.dry_run or (not lacking and find_template() is not None):
        return 0
    if lacking and os.geteuid() != 0:
        print(
            f"osworld-gym: installing packages requires root; fix: sudo {' '.join([*apt.INSTALL, *lacking])}",
            file=sys.stderr,
        )
        return INFRASTRUCTURE
    if not arguments.yes and not _agreed():
        return BAD_INPUT
    if lacking:
        apt.install(lacking)
    if os.environ.get("SUDO_USER"):
        print("the template belongs to the user who runs desktops: now run it again, without sudo")
        return 0
    template = build_template(lambda: LocalDesktop(*SCREEN, template=None), lambda line: print(f"  {line}"))
    print(f"template {template.version}: {_size()} in {template.path}")
    return 0


def _explain(lacking: list[str]) -> None:
    if lacking:
        plan = apt.plan(lacking)
        print(f"packages: {len(lacking)} of {len(apt.required())} are missing: {' '.join(lacking)}")
        print(f"  apt-get would add {len(plan.packages)}, {plan.fetch / MEGABYTE:.0f} MB to fetch, ", end="")
        print(f"{plan.disk / MEGABYTE:.0f} MB on disk")
    else:
        print(f"packages: all {len(apt.required())} are installed")
    found = None if lacking else find_template()
    if found is not None:
        print(f"template {found.version}: {_size()} in {found.path}")
    else:
        where = template_folder("VERSION" if lacking else template_version())
        print(f"template: none for these applications; would be built in {where}")
        print("  starts each application once in a separate desktop; about 8 MB and a minute; older templates are kept")


def _size() -> str:
    """Number and size of the current template's files, from its manifest, as text."""
    manifest = json.loads((template_folder(template_version()) / "manifest.json").read_text(encoding="utf-8"))
    return f"{len(manifest['files'])} files, {manifest['bytes'] / MEGABYTE:.1f} MB"


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("osworld-gym: confirmation requires a terminal; fix: pass --yes", file=sys.stderr)
        return False
    return input("go on? [y/N] ").strip().lower() in ("y", "yes")
