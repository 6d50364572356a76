"""Chrome client: lists, opens and closes a desktop's tabs through the HTTP endpoints of the DevTools protocol.

The endpoints are ``/json/list``, ``/json/new`` and ``/json/close``, on the debugging port that the task's setup opens
(9222 inside every desktop) and that the provider forwards (``Desktop.forwarded``). What answers there may be a program
of the policy: an answer has a deadline and a limit of bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.errors import DesktopError, FailureReason, ReplyTooLarge, TaskError
from osworld_gym.tasks.evaluation.urls import same_url

CHROME_PORT = 9222
STARTED = 60.0  # seconds for Chrome to answer after it was launched
ANSWER = 15.0  # seconds for one answer
MOST = 8 << 20  # bytes of one answer; the address of a page that is data has up to two megabytes
ADDRESS = 3.0  # seconds for the page's address, which is left out then
LONGEST_ADDRESS = 10_000  # characters of the page's address in an episode
LOADED = 20.0  # seconds for a new tab to leave the blank page
POLL = 0.1  # seconds between requests: these endpoints have no event to wait for


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab of Chrome: its DevTools id, URL and title."""

    id: str
    url: str
    title: str


class Chrome:
    """The Chrome of one desktop. Every method ends within its deadline.

    Args:
        desktop: the desktop.
        answer: seconds for one answer.

    Raises:
        DesktopError: (any method) ``setup_failed`` when Chrome does not respond.
        TaskError: this provider does not forward Chrome's port.
    """

    def __init__(self, desktop: Desktop, *, answer: float = ANSWER) -> None:
        address = desktop.forwarded(CHROME_PORT)
        if address is None:
            raise TaskError(
                f"the task queries Chrome on port {CHROME_PORT}, which this provider's desktops do not forward; "
                "use a provider that does: local, container, vm"
            )
        self._address, self._timeout = address, answer

    def await_started(self) -> None:
        """Waits until Chrome responds, at most ``STARTED`` seconds."""
        end = time.monotonic() + STARTED
        while True:
            try:
                self._ask("GET", "/json/version")
                return
            except (DesktopError, ValueError, RecursionError) as error:
                if time.monotonic() >= end:
                    message = f"Chrome did not answer on port {CHROME_PORT} within {STARTED:g} s: {error}"
                    raise DesktopError(FailureReason.setup_failed, message) from error
            time.sleep(POLL)

    def tabs(self) -> list[Tab]:
        """The open tabs, most recently used first."""
        pages = [page for page in self._answer("GET", "/json/list") if page.get("type") == "page"]
        return [Tab(str(page["id"]), str(page["url"]), str(page["title"])) for page in pages]

    def open(self, url: str) -> Tab:
        """Opens a tab; returns once it has left the blank page, or after ``LOADED`` seconds."""
        # Chrome takes the part before the first "&" and decodes it, so that every such character has to be encoded
        page = self._answer("PUT", f"/json/new?{quote(url, safe='')}")
        end = time.monotonic() + LOADED
        while time.monotonic() < end:
            for tab in self.tabs():
                if tab.id == page["id"] and tab.url not in ("", "about:blank"):
                    return tab
            time.sleep(POLL)
        return Tab(page["id"], page["url"], page["title"])

    def close(self, tab: Tab) -> None:
        """Closes a tab."""
        self._answer("GET", f"/json/close/{tab.id}")

    def _answer(self, method: str, path: str) -> Any:
        try:
            return self._ask(method, path)
        except ReplyTooLarge:
            raise
        except (DesktopError, ValueError, RecursionError) as error:
            raise DesktopError(FailureReason.setup_failed, f"Chrome, {method} {path}: {error}") from error

    def _ask(self, method: str, path: str) -> Any:
        client = GuestClient(*self._address, most=MOST)
        try:
            answer = (client.put if method == "PUT" else client.get)(path, timeout=self._timeout)
        finally:
            client.close()
        if not answer.ok:
            raise ValueError(f"status {answer.status}: {answer.body[:200]!r}")
        return json.loads(answer.body) if answer.body[:1] in (b"[", b"{") else answer.body.decode()


def page_url(desktop: Desktop) -> str:
    """The address of the page that was used last; empty if no Chrome answers, such as one that the policy closed.

    It is kept for every step, so only its first ``LONGEST_ADDRESS`` characters are returned, all of which UTF-8 has.
    """
    if desktop.forwarded(CHROME_PORT) is None:
        return ""
    try:
        tabs = Chrome(desktop, answer=ADDRESS).tabs()
    except (DesktopError, KeyError, TypeError, AttributeError):
        return ""
    return tabs[0].url[:LONGEST_ADDRESS].encode("utf-8", "replace").decode() if tabs else ""


def open_tabs(desktop: Desktop, urls: Sequence[str]) -> None:
    """OSWorld's ``chrome_open_tabs``: opens a tab for each URL in order and closes the tab that Chrome started with."""
    chrome = Chrome(desktop)
    chrome.await_started()
    for i, url in enumerate(urls):
        before = chrome.tabs()
        chrome.open(url)
        if i == 0:
            for tab in before[-1:]:
                chrome.close(tab)


def close_tabs(desktop: Desktop, urls: Sequence[str]) -> None:
    """OSWorld's ``chrome_close_tabs``: for each URL, closes one tab that shows it."""
    chrome = Chrome(desktop)
    chrome.await_started()
    for url in urls:
        for tab in chrome.tabs():
            if same_url(tab.url, url):
                chrome.close(tab)
                break
