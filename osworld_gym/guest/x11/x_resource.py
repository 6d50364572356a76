"""python-xlib's X-Resource extension, or an error with the fix if another package has replaced python-xlib's files.

python3-xlib, a fork of 2014 without X-Resource that pyautogui requires, installs the package ``Xlib`` too. Which of the
two is installed last, and with which files, depends on the installer.
"""

from __future__ import annotations

from types import ModuleType

from Xlib import ext

FIX = "pip install --force-reinstall --no-deps python-xlib"


def load() -> ModuleType:
    """The module ``Xlib.ext.res``.

    Raises:
        ImportError: it is missing, or the rest of Xlib does not know it; the message has the fix.
    """
    known = [module for _, module in ext.__extensions__]
    try:
        if "res" not in known:  # then connections to an X server do not get its requests, even if the file is there
            raise ImportError(f"Xlib.ext of {ext.__file__} lists {', '.join(known)}")
        from Xlib.ext import res
    except ImportError as error:
        problem = f"expected python-xlib with the X-Resource extension, got files of python3-xlib ({error})"
        raise ImportError(f"{problem}; fix: {FIX}") from error
    return res  # type: ignore[no-any-return]


res = load()
