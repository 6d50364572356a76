"""Commands that install what a provider or an evaluator requires.

``osworld-gym build-image``: the image of the container provider. ``install-desktop``: the full desktop's applications
and the home template. ``install-official``: OSWorld's evaluators, in a separate folder, without dependencies.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from osworld_gym.commands.output import BAD_INPUT, INFRASTRUCTURE
from osworld_gym.desktops.container.build import build, host_template
from osworld_gym.desktops.container.engine import engine
from osworld_gym.desktops.container.image import DEBIAN, VARIANTS, tag, write_context
from osworld_gym.desktops.home_template import apt
from osworld_gym.desktops.home_template.build import build_template
from osworld_gym.desktops.home_template.find import find_template, template_folder, template_version
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.folders import data_folder
from osworld_gym.tasks.evaluation.official_pool import INSTALL_OFFICIAL, OfficialEvaluators, OfficialLocation

MEGABYTE = 1_000_000
SCREEN = (1920, 1080)  # OSWorld's
MODULES = ("Xlib", "PIL", "six", "pyautogui")  # modules of the extra "guest"; checked before anything is downloaded
OFFICIAL_VERSION = "1.0.2"
#: what the evaluators of that version import, from the extra ``official-eval``
OFFICIAL_IMPORTS = (
    *("PIL", "PyPDF2", "acoustid", "borb", "bs4", "cssselect", "cv2", "docx", "fastdtw", "fitz", "formulas"),
    *("imagehash", "librosa", "lxml", "mutagen", "numpy", "odf", "openpyxl", "pandas", "pdfplumber", "playwright"),
    *("pptx", "pydrive", "pypdf", "pytz", "rapidfuzz", "requests", "scipy", "skimage", "tldextract", "xmltodict"),
    "yaml",
)
_FIND = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
_OFFICIAL_WHEEL = f"desktop-env=={OFFICIAL_VERSION}"
EASYOCR_STUB = '''"""A substitute: easyocr would replace torch and download models; only compare_image_text uses it."""


class Reader:
    def __init__(self, *arguments, **options):
        raise ImportError("compare_image_text requires easyocr, which is not installed; fix: install it for the "
                          "interpreter that OSWORLD_OFFICIAL_PYTHON names, and delete this stub")
'''


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands."""
    _add_build_image(commands)
    _add_install_desktop(commands)
    _add_install_official(commands)


def _add_build_image(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "build the desktop image of the container provider"
    command = commands.add_parser("build-image", help=text, description=text)
    command.add_argument("--variant", choices=sorted(VARIANTS), default="basic", help="default: %(default)s")
    command.add_argument("--base", help=f"image to build on (default: {DEBIAN}, or one made by debootstrap as root)")
    command.add_argument("--mirror", help="Debian mirror (default: that of this machine)")
    command.add_argument("--dockerfile", metavar="FOLDER", type=Path, help="only write the build folder")
    command.add_argument("--quiet", action="store_true", help="print only the result")
    command.set_defaults(command=_build_image)


def _build_image(arguments: argparse.Namespace) -> int:
    if arguments.dockerfile is not None:
        base, template = arguments.base or DEBIAN, host_template(arguments.variant)
        try:
            write_context(arguments.dockerfile, arguments.variant, base, template)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            problem = f"it cannot be made ({error.strerror}); fix: choose a new folder" if error.strerror else error
            raise ValueError(f"--dockerfile {arguments.dockerfile}: {problem}") from error
        print(f"{arguments.dockerfile}; build it: docker build --tag {tag(arguments.variant)} {arguments.dockerfile}")
        return 0
    start = perf_counter()
    client = engine()
    name = build(client, arguments.variant, arguments.base, arguments.mirror, _silent if arguments.quiet else print)
    size = client.images.get(name).attrs["Size"]
    print(f"{name}: {size / 1e6:.0f} MB, {perf_counter() - start:.0f} s")
    return 0


def _silent(_line: str) -> None:
    """Prints nothing, for ``--quiet``."""


def _add_install_desktop(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "install LibreOffice, Chromium, GIMP, VLC, Thunderbird, … and make the template of their settings"
    parser = commands.add_parser("install-desktop", help=text, description=text)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    parser.set_defaults(command=_install_desktop)


def _install_desktop(arguments: argparse.Namespace) -> int:
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        problem = f"this Python lacks {', '.join(modules)}, which the desktops require"
        print(f"osworld-gym: {problem}; fix: pip install 'osworld-gym[guest]'", file=sys.stderr)
        if not arguments.dry_run:
            return INFRASTRUCTURE
    lacking = apt.missing(apt.required())
    _explain_packages(lacking)
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
    print(f"template {template.version}: {_template_size()} in {template.path}")
    return 0


def _explain_packages(lacking: list[str]) -> None:
    if lacking:
        plan = apt.plan(lacking)
        print(f"packages: {len(lacking)} of {len(apt.required())} are missing: {' '.join(lacking)}")
        print(f"  apt-get would add {len(plan.packages)}, {plan.fetch / MEGABYTE:.0f} MB to fetch, ", end="")
        print(f"{plan.disk / MEGABYTE:.0f} MB on disk")
    else:
        print(f"packages: all {len(apt.required())} are installed")
    template = None if lacking else find_template()
    if template is not None:
        print(f"template {template.version}: {_template_size()} in {template.path}")
    else:
        where = template_folder("VERSION" if lacking else template_version())
        print(f"template: none for these applications; would be built in {where}")
        print("  starts each application once in a separate desktop; about 8 MB and a minute; older templates are kept")


def _template_size() -> str:
    """Number and size of the current template's files, from its manifest, as text."""
    manifest = json.loads((template_folder(template_version()) / "manifest.json").read_text(encoding="utf-8"))
    return f"{len(manifest['files'])} files, {manifest['bytes'] / MEGABYTE:.1f} MB"


def _agreed() -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        print("osworld-gym: confirmation requires a terminal; fix: pass --yes", file=sys.stderr)
        return False
    return input("go on? [y/N] ").strip().lower() in ("y", "yes")


def _add_install_official(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "OSWorld's own evaluators, for tasks whose metrics we do not have"
    parser = commands.add_parser("install-official", help=text, description=text)
    parser.add_argument("--folder", type=Path, help="destination (default: the folder in which they are searched)")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter that has their dependencies (default: this one)"
    )
    parser.add_argument(
        "--wheel",
        default=_OFFICIAL_WHEEL,
        help="what pip installs, a requirement or a file (default: %(default)s)",
    )
    parser.set_defaults(command=_install_official)


def _lacking(python: str) -> list[str]:
    """Which of :data:`OFFICIAL_IMPORTS` an interpreter does not have. Raises ValueError if it cannot be run."""
    try:
        found = subprocess.run([python, "-c", _FIND, *OFFICIAL_IMPORTS], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"--python {python} cannot be run ({error}); name an interpreter of Python") from error
    return found.stdout.split()


def _install_official(arguments: argparse.Namespace) -> int:
    folder = arguments.folder or data_folder("official")
    if (folder / "desktop_env").exists() and not any(folder.glob("desktop_env-*.dist-info")):
        raise ValueError(f"--folder {folder} has a desktop_env that pip has not installed; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--folder {folder} cannot be made ({error.strerror}); choose another folder") from error
    lacking = _lacking(arguments.python)
    if lacking and arguments.wheel == _OFFICIAL_WHEEL:  # what others import is not known before they are installed
        problem = f"{arguments.python} lacks {', '.join(lacking)}, which OSWorld's evaluators import"
        print(f"osworld-gym: {problem}; {INSTALL_OFFICIAL}", file=sys.stderr)
        return INFRASTRUCTURE
    print(f"pip install --no-deps {arguments.wheel} into {folder}: its pins would replace torch and numpy")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    if subprocess.run([*pip, arguments.wheel], check=False).returncode:
        print("osworld-gym: pip could not install it", file=sys.stderr)
        return INFRASTRUCTURE
    (folder / "easyocr.py").write_text(EASYOCR_STUB, encoding="utf-8")
    pool = OfficialEvaluators(OfficialLocation(folder, arguments.python))
    metrics, getters = pool.known()  # a DesktopError names what cannot be imported, and the fix
    pool.close()
    print(f"{len(metrics)} names of metrics and {len(getters)} of getters can be imported in a separate process")
    return 0
