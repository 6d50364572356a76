"""``osworld-gym install-official``: installs OSWorld's evaluators in a separate folder, without dependencies."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from osworld_gym.commands.output import INFRASTRUCTURE
from osworld_gym.folders import data_folder
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators, OfficialLocation

VERSION = "1.0.2"
STUB = '''"""A substitute: easyocr would replace torch and download models; only compare_image_text uses it."""


class Reader:
    def __init__(self, *arguments, **options):
        raise ImportError("compare_image_text requires easyocr, which is not installed; fix: install it for the "
                          "interpreter that OSWORLD_OFFICIAL_PYTHON names, and delete this stub")
'''


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "OSWorld's own evaluators, for tasks whose metrics we do not have"
    parser = commands.add_parser("install-official", help=text, description=text)
    parser.add_argument("--folder", type=Path, help="destination (default: the folder in which they are searched)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has their dependencies")
    parser.add_argument(
        "--wheel", default=f"desktop-env=={VERSION}", help="what pip installs (a requirement or a file)"
    )
    parser.set_defaults(command=_install)


def _install(arguments: argparse.Namespace) -> int:
    folder = arguments.folder or data_folder("official")
    print(f"pip install --no-deps {arguments.wheel} into {folder}: its pins would replace torch and numpy")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "desktop_env", ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    if subprocess.run([*pip, arguments.wheel], check=False).returncode:
        print("osworld-gym: pip could not install it", file=sys.stderr)
        return INFRASTRUCTURE
    (folder / "easyocr.py").write_text(STUB, encoding="utf-8")
    pool = OfficialEvaluators(OfficialLocation(folder, arguments.python))
    metrics, getters = pool.known()  # a DesktopError names what cannot be imported, and the fix
    pool.close()
    print(f"{len(metrics)} names of metrics and {len(getters)} of getters can be imported in a separate process")
    return 0
