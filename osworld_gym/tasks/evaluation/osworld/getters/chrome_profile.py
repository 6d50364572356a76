"""Getters of Chrome's profile on disk: preferences, bookmarks, cookies, history, shortcuts.

Where OSWorld's getter returns a default for an unreadable profile, ours returns the same: task scores depend on it.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from osworld_gym.tasks.evaluation.osworld.getters.guest import directory_tree
from osworld_gym.tasks.evaluation.osworld.getters.values import Config, read
from osworld_gym.tasks.setup.run import TaskRun

CHROME = "/home/user/.config/google-chrome"
PROFILE = f"{CHROME}/Default"


def _json(run: TaskRun, path: str) -> dict[str, Any] | None:
    """A settings file of Chrome; None if it is missing or unreadable."""
    try:
        data = json.loads(read(run, path))
    except (FileNotFoundError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _preferences(run: TaskRun) -> dict[str, Any] | None:
    return _json(run, f"{PROFILE}/Preferences")


def default_search_engine(run: TaskRun, config: Config) -> str:
    """Short name of the default search engine; ``Google`` if none was ever chosen."""
    del config
    chosen = (_preferences(run) or {}).get("default_search_provider_data", {}).get("template_url_data", {})
    return str(chosen.get("short_name", "Google"))


def profile_name(run: TaskRun, config: Config) -> str | None:
    """The profile's name."""
    del config
    name: str | None = (_preferences(run) or {}).get("profile", {}).get("name")
    return name


def enable_do_not_track(run: TaskRun, config: Config) -> str:
    """``true`` or ``false``."""
    del config
    return _word((_preferences(run) or {}).get("enable_do_not_track"))


def enable_safe_browsing(run: TaskRun, config: Config) -> str:
    """``true`` when safe browsing is on, enhanced or not, else ``false``."""
    del config
    safety = (_preferences(run) or {}).get("safebrowsing", {})
    return _word(safety.get("enabled") or safety.get("enhanced"))


def enable_enhanced_safety_browsing(run: TaskRun, config: Config) -> str:
    """``true`` or ``false``; ``Google`` for an unreadable profile, as OSWorld returns."""
    del config
    preferences = _preferences(run)
    return "Google" if preferences is None else _word(preferences.get("safebrowsing", {}).get("enhanced"))


def new_startup_page(run: TaskRun, config: Config) -> str:
    """``true`` when Chrome starts with a new tab page (never set, or code 5), else ``false``."""
    del config
    preferences = _preferences(run)
    if preferences is None:
        return "Google"
    return _word("session" not in preferences or preferences["session"].get("restore_on_startup") == 5)


def data_delete_automacally(run: TaskRun, config: Config) -> str:
    """``true`` when the profile has default content settings (OSWorld's sign of auto-deletion, and its spelling)."""
    del config
    preferences = _preferences(run)
    if preferences is None or "profile" not in preferences:
        return "Google"
    return _word(preferences["profile"].get("default_content_setting_values") is not None)


def _word(value: object) -> str:
    return "true" if value else "false"


def chrome_font_size(run: TaskRun, config: Config) -> dict[str, int]:
    """The font sizes under ``webkit.webprefs``, such as ``default_font_size``, in pixels; 16 if never set."""
    del config
    preferences = _preferences(run)
    never_set = {"default_fixed_font_size": 13, "default_font_size": 16}
    if preferences is None:
        return never_set
    sizes: dict[str, int] = preferences.get("webkit", {}).get("webprefs", never_set | {"minimum_font_size": 13})
    return sizes


def chrome_language(run: TaskRun, config: Config) -> str:
    """The interface language; ``en-US`` if never set."""
    del config
    return str((_json(run, f"{CHROME}/Local State") or {}).get("intl", {}).get("app_locale", "en-US"))


def enabled_experiments(run: TaskRun, config: Config) -> list[str]:
    """Names of the flags that are on, each with its ``@choice``."""
    del config
    return list((_json(run, f"{CHROME}/Local State") or {}).get("browser", {}).get("enabled_labs_experiments", []))


def find_unpacked_extension_path(run: TaskRun, config: Config) -> list[str] | str:
    """Folders of all extensions; ``Google`` if one has no folder or the profile is unreadable, as OSWorld returns."""
    del config
    return _of_extensions(run, "path")


def find_installed_extension_name(run: TaskRun, config: Config) -> list[str] | str:
    """Names of all extensions; ``Google`` if one has no name or the profile is unreadable, as OSWorld returns."""
    del config
    return _of_extensions(run, "manifest", "name")


def _of_extensions(run: TaskRun, *path: str) -> list[str] | str:
    preferences = _preferences(run)
    if preferences is None:
        return "Google"
    extensions = []
    for extension in preferences.get("extensions", {}).get("settings", {}).values():
        for name in path:
            if name not in extension:
                return "Google"
            extension = extension[name]
        extensions.append(extension)
    return extensions


def bookmarks(run: TaskRun, config: Config) -> dict[str, Any] | list[Any]:
    """``roots`` of Chrome's bookmarks file; an empty list if there is no such file."""
    del config
    try:
        content = read(run, f"{PROFILE}/Bookmarks")
    except FileNotFoundError:
        return []
    roots: dict[str, Any] | list[Any] = json.loads(content).get("roots", {})
    return roots


def cookie_data(run: TaskRun, config: Config) -> list[tuple[Any, ...]] | None:
    """All rows of the cookie store (the second column is the domain); None if it cannot be read."""
    del config
    return _rows(run, f"{PROFILE}/Cookies", "SELECT * FROM cookies")


def history(run: TaskRun, config: Config) -> list[tuple[Any, ...]] | None:
    """(url, title, last visit) of every visited page; None if there is no history."""
    del config
    return _rows(run, f"{PROFILE}/History", "SELECT url, title, last_visit_time FROM urls")


def _rows(run: TaskRun, path: str, query: str) -> list[tuple[Any, ...]] | None:
    try:
        content = read(run, path)
    except FileNotFoundError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "store"
        copy.write_bytes(content)
        with closing(sqlite3.connect(copy)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.DatabaseError:
                return None


def shortcuts_on_desktop(run: TaskRun, config: Config) -> dict[str, str]:
    """File name → text of each ``.desktop`` file on the desktop."""
    del config
    folder = "/home/user/Desktop"
    names = [node["name"] for node in directory_tree(run, folder)["children"] if node["name"].endswith(".desktop")]
    return {name: read(run, f"{folder}/{name}").decode("utf-8", "replace") for name in names}
