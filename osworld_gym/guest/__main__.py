"""Starts the guest, as ``python -m osworld_gym.guest`` or as a plain folder: ``python path/to/guest``.

When started as a folder, its modules are loaded under the package name ``osworld_guest``, so that neither
``osworld_gym`` nor its dependencies are needed.
"""

from __future__ import annotations

import os
import sys


def _package() -> str:
    if __package__:
        return __package__
    folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != folder]
    name = "osworld_guest"
    package = type(sys)(name)  # importlib.util would delay the start by milliseconds; __init__.py contains no code
    package.__path__ = [folder]
    sys.modules[name] = package
    return name


if __name__ == "__main__":
    raise SystemExit(__import__(f"{_package()}.main", fromlist=["main"]).main())
