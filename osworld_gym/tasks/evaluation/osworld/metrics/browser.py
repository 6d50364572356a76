"""Metrics on Chrome: its tabs, addresses, bookmarks, cookies, history and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from osworld_gym.tasks.evaluation.sidecar.calling import RuleError
from osworld_gym.tasks.evaluation.urls import same_url

Rules = Mapping[str, Any]


def _kind(rules: Rules, metric: str, *known: str) -> str:
    """``rules["type"]``, or a RuleError that names the metric."""
    if rules["type"] not in known:
        raise RuleError(f"{metric}: the rules' type must be {' or '.join(map(repr, known))}, got {rules['type']!r}")
    return str(rules["type"])


def _address(tab: Any) -> str | None:
    """The address of a tab; ``tab`` may be the address itself."""
    return tab.get("url") if isinstance(tab, Mapping) else tab


def is_expected_active_tab(tab: Any, rules: Rules) -> float:
    """1 when the active tab shows ``rules["url"]`` (``type`` ``url``)."""
    if not tab:
        return 0.0
    _kind(rules, "is_expected_active_tab", "url")
    return float(same_url(rules["url"], _address(tab)))


def is_expected_active_tab_approximate(tab: Any, rules: Rules) -> float:
    """1 when the active tab's address is ``rules["url"]``, ignoring the query."""
    if not tab:
        return 0.0
    _kind(rules, "is_expected_active_tab_approximate", "url")
    return float(_without_query(rules["url"]) == _without_query(_address(tab) or ""))


def _without_query(url: str) -> str:
    return urlunsplit(urlsplit(url)._replace(query=""))


def is_expected_url_pattern_match(tab: Any, rules: Rules) -> float:
    """1 when each regex of ``rules["expected"]`` is found in the active tab's address."""
    address = _address(tab) if tab else None
    return float(bool(address) and all(re.search(pattern, address or "") for pattern in rules["expected"]))


def is_expected_tabs(tabs: Sequence[Mapping[str, str]] | None, rules: Rules) -> float:
    """1 when there are as many tabs as ``rules["urls"]`` and each of these URLs is open."""
    if not tabs:
        return 0.0
    _kind(rules, "is_expected_tabs", "url")
    urls = [tab["url"] for tab in tabs]
    every = all(any(same_url(wanted, url) for url in urls) for wanted in rules["urls"])
    return float(len(urls) == len(rules["urls"]) and every)


def is_expected_search_query(tab: Mapping[str, str] | None, rules: Rules) -> float:
    """1 when the regex ``rules["expect"]["pattern"]`` is found in the tab's address."""
    return float(bool(tab) and bool(re.search(rules["expect"]["pattern"], (tab or {})["url"])))


def is_expected_bookmarks(bookmarks: Any, rules: Rules) -> float:
    """1 when the bookmark bar contains exactly these folders (``names``) or pages (``urls``), by ``rules["type"]``.

    ``liked_authors_websites_urls``: the folder *Liked Authors* contains exactly these pages; an entry may be a
    list of alternatives.
    """
    if not bookmarks:
        return 0.0
    kinds = ("bookmark_bar_folders_names", "bookmark_bar_websites_urls", "liked_authors_websites_urls")
    kind, bar = _kind(rules, "is_expected_bookmarks", *kinds), bookmarks["bookmark_bar"]["children"]
    if kind == kinds[0]:
        return float({entry["name"] for entry in bar if entry["type"] == "folder"} == set(rules["names"]))
    if kind == kinds[1]:
        return float(_pages(bar) == set(rules["urls"]))
    folders = [entry for entry in bar if entry["type"] == "folder" and entry["name"] == "Liked Authors"]
    choices = product(*([url] if isinstance(url, str) else url for url in rules["urls"]))
    return float(bool(folders) and any(set(choice) == _pages(folders[0]["children"]) for choice in choices))


def _pages(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    return {entry["url"] for entry in entries if entry["type"] == "url"}


def is_expected_installed_extensions(names: Sequence[str] | None, rules: Rules) -> float:
    """1 when every extension of ``rules["expected"]`` is installed."""
    return float(bool(names) and set(rules["expected"]) <= set(names or ()))


def is_cookie_deleted(rows: Iterable[Sequence[Any]], rules: Rules) -> float:
    """1 when no cookie (second column: the domain) is of ``rules["domains"]``."""
    _kind(rules, "is_cookie_deleted", "domains")
    hosts = [row[1] for row in rows]
    return float(not any(same_url(domain, other) for domain in rules["domains"] for other in hosts))


def check_history_deleted(rows: Iterable[Sequence[Any]], rules: Rules) -> float:
    """1 when no address of the history (first column) contains one of ``rules["keywords"]``."""
    _kind(rules, "check_history_deleted", "keywords")
    addresses = [row[0] for row in rows]
    return float(not any(keyword in address for keyword in rules["keywords"] for address in addresses))


def is_shortcut_on_desktop(shortcuts: Mapping[str, str], rules: Rules) -> float:
    """1 when some desktop file has the line ``Name=`` or ``Exec=`` of the rule (``type`` ``name`` or ``exec``)."""
    kind = _kind(rules, "is_shortcut_on_desktop", "name", "exec")
    line = f"{kind.capitalize()}={rules[kind]}\n"
    return float(any(line in text for text in shortcuts.values()))


def check_enabled_experiments(flags: Sequence[str], rules: Rules) -> float:
    """1 when the enabled flags are ``rules["names"]``, in this order."""
    _kind(rules, "check_enabled_experiments", "names")
    return float([flag.split("@")[0] for flag in flags] == rules["names"])


def check_font_size(sizes: Mapping[str, int], rules: Rules) -> float:
    """1 when the default font size is ``rules["value"]``, or between ``min`` and ``max`` (``type`` ``range``)."""
    size = sizes["default_font_size"]
    if _kind(rules, "check_font_size", "value", "range") == "value":
        return float(size == rules["value"])
    return float(rules["min"] < size < rules["max"])
