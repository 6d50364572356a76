"""Getters of a running Chrome: open tabs (DevTools), and the active tab's address (accessibility tree)."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.osworld.getters.guest import accessibility_tree
from osworld_gym.tasks.evaluation.osworld.getters.values import Config, key, listens
from osworld_gym.tasks.evaluation.parsing import parse_xml
from osworld_gym.tasks.setup.chrome import CHROME_PORT, Chrome, Tab
from osworld_gym.tasks.setup.run import TaskRun

ADDRESS_BAR = "Address and search bar"


def open_tabs_info(run: TaskRun, config: Config) -> list[dict[str, str]]:
    """``{"title", "url"}`` of every tab; raises as :func:`_tabs`."""
    del config
    return [{"title": tab.title, "url": tab.url} for tab in _tabs(run)]


def _tabs(run: TaskRun) -> list[Tab]:
    """Chrome's tabs.

    Raises:
        FileNotFoundError: no process listens on Chrome's port: the policy closed Chrome (OSWorld would restart it,
            without the tabs).
        DesktopError: a process listens but does not respond, or the desktop failed.
    """
    try:
        return Chrome(run.desktop).tabs()
    except DesktopError as error:
        if error.reason is FailureReason.setup_failed and not listens(run, CHROME_PORT):
            raise FileNotFoundError("Chrome's tabs") from error
        raise


def active_url_from_accessTree(run: TaskRun, config: Config) -> str | None:
    """The text of Chrome's address bar, prefixed with ``goto_prefix`` (default ``https://``); None if not found."""
    return active_url(accessibility_tree(run, config), str(config.get("goto_prefix", "https://")))


def active_url(tree: str, prefix: str) -> str | None:
    """As :func:`active_url_from_accessTree`, from the tree's XML."""
    bars = [
        entry
        for application in parse_xml(tree).iter("application")
        if application.get("name") == "Google Chrome"
        for entry in application.iter("entry")
        if entry.get("name") == ADDRESS_BAR
    ]
    if not bars or not bars[-1].text:
        return None
    return f"{prefix}{bars[0].text}"


def active_tab_info(run: TaskRun, config: Config) -> dict[str, str] | None:
    """``{"title", "url"}`` of the active tab (OSWorld also loads the address again, for the page's HTML)."""
    url = active_url_from_accessTree(run, config)
    if url is None:
        return None
    titles = {tab.url: tab.title for tab in _tabs(run)}
    return {"title": titles.get(url, ""), "url": url}


def active_tab_url_parse(run: TaskRun, config: Config) -> dict[str, str] | None:
    """The query parameters ``parse_keys`` of the active tab's address, "" for a missing one.

    ``replace`` renames them; ``split_list`` splits each value at commas into a list.
    """
    url = active_url_from_accessTree(run, config)
    if url is None:
        return None
    query = parse_qs(urlsplit(url).query)
    parameters = {name: query.get(name, [""])[0] for name in key(config, "parse_keys")}
    for old, new in (config.get("replace") or {}).items():
        parameters[new] = parameters.pop(old)
    if config.get("split_list"):
        return {name: value.split(",") for name, value in parameters.items()}  # type: ignore[misc]
    return parameters
