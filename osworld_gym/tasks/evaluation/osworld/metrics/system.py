"""Metrics on the desktop itself: favourites, time zone, text size, folders, the clipboard."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

Rules = Mapping[str, Any]


def check_gnome_favorite_apps(favourites: str, rules: Rules) -> float:
    """1 when GNOME's favourites (``['a.desktop', …]``) are ``rules["expected"]``, in any order."""
    found = ast.literal_eval(favourites)
    return float(len(found) == len(rules["expected"]) and set(found) == set(rules["expected"]))


def is_utc_0(output: str) -> float:
    """1 when the fourth line of ``timedatectl`` ends with ``+0000)``."""
    return float(output.split("\n")[3].endswith("+0000)"))


def check_text_enlarged(factor: str) -> float:
    """1 when the text scaling factor is above 1."""
    return float(float(factor) > 1.0)


def check_moved_jpgs(folder: Mapping[str, Any], rules: Rules) -> float:
    """1 when the folder (a directory tree) contains exactly the files ``rules["expected"]``."""
    found = [node["name"] for node in folder["children"]]
    return float(len(found) == len(rules["expected"]) and set(found) == set(rules["expected"]))


def is_in_vm_clickboard(rules: Rules, output: str) -> float:
    """1 when the text, or every text, of ``expected`` is in the output. Name and argument order are OSWorld's."""
    wanted = rules["expected"]
    return float(all(part in output for part in (wanted if isinstance(wanted, list) else [wanted])))


ALL = (check_gnome_favorite_apps, is_utc_0, check_text_enlarged, check_moved_jpgs, is_in_vm_clickboard)
