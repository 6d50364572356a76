"""Metrics on settings: files of GIMP, LibreOffice and Thunderbird; the desktop's favourites, text size, clipboard."""

from __future__ import annotations

import ast
import fnmatch
import io
import json
import re
from collections.abc import Mapping
from typing import Any

from osworld_gym.tasks.evaluation.osworld.metrics.rules import matches, record_matches
from osworld_gym.tasks.evaluation.osworld.metrics.text import as_text
from osworld_gym.tasks.evaluation.parsing import parse_xml

_OOR = "{http://openoffice.org/2001/registry}"
_PREFERENCE = re.compile(r'^user_pref\("(?P<key>(?:[^"]|\\")+)", (?P<value>.+)\);$')
_CONDITION = re.compile(r"""\b(?:AND|OR) \((?:[\w ]+),(?:[\w ']+),(?:"(?:(?:[^"]|")+)"|(?:[^)]+))\)|\bALL\b""")
_FILTER_KEYS = ("name", "enabled", "type", "action", "actionValue")


def check_config_status(config: bytes | None, rules: Rules) -> float:
    """1 when a line ``(key … value)`` of GIMP's settings has the rule's key (one word, or the first two) and value."""
    if config is None:
        return 0.0
    for line in io.StringIO(as_text(config)):
        if line.startswith("#") or line == "\n":
            continue
        words = line.strip().lstrip("(").rstrip(")\n").split()
        if not words:
            raise ValueError(f"expected a setting in each line, got {line!r}")
        keys = [rules["key"]] if isinstance(rules["key"], str) else list(rules["key"])
        if len(keys) <= 2 and words[: len(keys)] == keys and words[-1] == rules["value"]:
            return 1.0
    return 0.0


def _values(config: bytes, path: str, name: str) -> list[list[list[str]]]:
    """Values of a property in LibreOffice's registry file: items with the path → their properties → texts."""
    items = [item for item in parse_xml(config).iter("item") if item.get(f"{_OOR}path") == path]
    properties = ([prop for prop in item.iter("prop") if prop.get(f"{_OOR}name") == name] for item in items)
    return [[[value.text or "" for value in prop.findall("value")] for prop in props] for props in properties if props]


def find_default_font(config: bytes | None, rules: Rules) -> float:
    """1 when Writer's default font is ``rules["font_name"]``."""
    if not config:
        return 0.0
    items = _values(config, "/org.openoffice.Office.Writer/DefaultFont", "Standard")
    fonts = [font for item in items for values in item for font in values]
    return float(bool(fonts) and fonts[-1] == rules["font_name"])


def check_presenter_console_disable(config: bytes) -> float:
    """1 when Impress' presenter console is off, by the first entry of the file."""
    items = _values(config, "/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen")
    return float(bool(items) and items[0][0][0].lower() == "false")


def check_auto_saving_time(config: bytes, rules: Rules) -> float:
    """1 when LibreOffice's autosave interval is ``rules["minutes"]`` minutes, by the first entry of the last item."""
    items = _values(config, "/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall")
    return float(bool(items) and int(items[-1][0][0]) == rules["minutes"])


def check_libre_locale(config: bytes, rules: Rules) -> float:
    """1 when LibreOffice's locale matches one of the patterns ``rules["locale_set"]``."""
    locales: dict[str, str] = {}
    for item in parse_xml(config).iter("item"):
        if item.get(f"{_OOR}path", "").endswith("L10N"):
            for prop in item.findall("prop"):
                locales.setdefault(prop.get(f"{_OOR}name", ""), prop.findtext("value") or "")
    locale = locales["ooSetupSystemLocale"] if "ooSetupSystemLocale" in locales else locales["ooLocale"]
    return float(any(fnmatch.fnmatchcase(locale, pattern) for pattern in rules["locale_set"]))


def check_left_panel(tree: str) -> float:
    """1 when the accessibility tree contains Impress' slide panel."""
    return float(any(frame.get("name") == "Slides View" for frame in parse_xml(tree).iter("document-frame")))


def check_thunderbird_prefs(config: bytes | None, rules: Rules) -> float:
    """1 when every preference of ``expect`` exists and satisfies its rule, and none of ``unexpect`` does."""
    if config is None:
        return 0.0
    met = dict.fromkeys(rules.get("expect", {}), False)
    for line in io.StringIO(as_text(config)):
        match = _PREFERENCE.match(line.strip())
        if match is None:
            continue
        key, value = match["key"], json.loads(match["value"])
        if key in met:
            met[key] = matches(value, rules["expect"][key])
        elif key in rules.get("unexpect", {}) and matches(value, rules["unexpect"][key]):
            return 0.0
    return float(all(met.values()))


def check_thunderbird_filter(config: bytes | None, rules: Rules) -> float:
    """1 when each record of ``expect`` matches some message filter and no record of ``unexpect`` matches any.

    A filter has ``name``, ``enabled``, ``type``, ``action``, ``actionValue`` and the list ``condition``.
    """
    if config is None:
        return 0.0
    filters = _filters(as_text(config))
    included = all(any(record_matches(one, wanted) for one in filters) for wanted in rules.get("expect", ()))
    return float(included and not any(record_matches(one, bad) for one in filters for bad in rules.get("unexpect", ())))


def _filters(text: str) -> list[dict[str, Any]]:
    filters: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    for line in io.StringIO(text):
        key, _, quoted = line.partition("=")
        value = quoted[1:-2].replace('\\"', '"').replace("\\\\", "\\")
        if key == "name":
            current = {"name": value}
        elif not current and key in (*_FILTER_KEYS, "condition"):
            raise ValueError(f"expected a filter to begin with its name, got {key!r}")
        elif key in _FILTER_KEYS:
            current[key] = value
        elif key == "condition":
            current["condition"] = _CONDITION.findall(value)
            filters.append(current)
    return filters


Rules = Mapping[str, Any]


def check_gnome_favorite_apps(favourites: str, rules: Rules) -> float:
    """1 when GNOME's favourites (``['a.desktop', …]``) are ``rules["expected"]``, in any order."""
    names = ast.literal_eval(favourites)
    return float(len(names) == len(rules["expected"]) and set(names) == set(rules["expected"]))


def is_utc_0(output: str) -> float:
    """1 when the fourth line of ``timedatectl`` ends with ``+0000)``."""
    return float(output.split("\n")[3].endswith("+0000)"))


def check_text_enlarged(factor: str) -> float:
    """1 when the text scaling factor is above 1."""
    return float(float(factor) > 1.0)


def check_moved_jpgs(folder: Mapping[str, Any], rules: Rules) -> float:
    """1 when the folder (a directory tree) contains exactly the files ``rules["expected"]``."""
    names = [node["name"] for node in folder["children"]]
    return float(len(names) == len(rules["expected"]) and set(names) == set(rules["expected"]))


def is_in_vm_clickboard(rules: Rules, output: str) -> float:
    """1 when the text, or every text, of ``expected`` is in the output. Name and argument order are OSWorld's."""
    wanted = rules["expected"]
    return float(all(part in output for part in (wanted if isinstance(wanted, list) else [wanted])))
