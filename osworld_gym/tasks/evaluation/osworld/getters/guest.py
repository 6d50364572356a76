"""Getters that query the guest server: accessibility tree, terminal, wallpaper, window size, folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from osworld_gym.desktops.guest_server.http_client import GuestClient, Reply
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation.osworld.getters.values import Config, key
from osworld_gym.tasks.setup.run import TaskRun

ANSWER = 60.0  # seconds; the accessibility tree of many applications takes several


def ask(run: TaskRun, what: str, path: str, form: Mapping[str, str] | None = None, *, method: str = "POST") -> Reply:
    """Sends one request to the desktop's guest server; ``what`` is the getter's name, for errors.

    Raises:
        TaskError: this provider has no guest server.
        DesktopError: the server did not respond in time.
    """
    server = run.desktop.server
    if server is None:
        raise TaskError(f"getter {what!r} asks a guest server, and this provider's desktops have none")
    address = urlsplit(server[0])
    with closing(GuestClient(address.hostname or "127.0.0.1", address.port or 80, server[1])) as client:
        if method == "GET":
            return client.get(path, timeout=ANSWER)
        return client.post_form(path, dict(form or {}), timeout=ANSWER)


def _needed(reply: Reply, what: str) -> Reply:
    if not reply.ok:
        raise DesktopError(FailureReason.evaluator_failed, f"getter {what!r}: status {reply.status}: {reply.message}")
    return reply


def accessibility_tree(run: TaskRun, config: Config) -> str:
    """The AT-SPI tree of the desktop in OSWorld's XML format.

    Raises:
        DesktopError: ``evaluator_failed`` when the server reports an error or an incomplete tree.
    """
    del config
    what = "accessibility_tree"
    reply = _needed(ask(run, what, "/accessibility", method="GET"), what).json()
    if reply.get("truncated"):
        message = f"getter {what!r}: a program did not answer in time, so the tree is incomplete"
        raise DesktopError(FailureReason.evaluator_failed, message)
    return str(reply["AT"])


def vm_terminal_output(run: TaskRun, config: Config) -> str | None:
    """The text of the active terminal; None if there is none."""
    del config
    output = _needed(ask(run, "vm_terminal_output", "/terminal", method="GET"), "vm_terminal_output").json()["output"]
    return None if output is None else str(output)


def vm_window_size(run: TaskRun, config: Config) -> dict[str, int] | None:
    """``{"width", "height"}`` in pixels of the window of class ``app_class_name``; None if there is none."""
    reply = ask(run, "vm_window_size", "/window_size", {"app_class_name": str(key(config, "app_class_name"))})
    if reply.status == 404:
        return None
    return dict(_needed(reply, "vm_window_size").json())


def vm_wallpaper(run: TaskRun, config: Config) -> bytes:
    """The bytes of the wallpaper image; empty if none is set (OSWorld: an empty file)."""
    del config
    reply = ask(run, "vm_wallpaper", "/wallpaper")
    return b"" if reply.status == 404 else _needed(reply, "vm_wallpaper").body


def list_directory(run: TaskRun, config: Config) -> dict[str, Any]:
    """The tree below ``path``: ``{"type", "name", "children"}``.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    return directory_tree(run, str(key(config, "path")))


def directory_tree(run: TaskRun, path: str) -> dict[str, Any]:
    """As :func:`list_directory`, for a path; ``~`` is the home folder inside the desktop. Raises as it.

    Of a link to a folder below it ``children`` is empty: two links to a folder around them would have no end.
    """
    script = (
        "import json,os,sys\n"
        "def tree(p,top=True):\n"
        "    node={'type':'directory' if os.path.isdir(p) else 'file','name':os.path.basename(p)}\n"
        "    names=sorted(os.listdir(p)) if node['type']=='directory' and (top or not os.path.islink(p)) else []\n"
        "    if node['type']=='directory': node['children']=[tree(os.path.join(p,n),False) for n in names]\n"
        "    return node\n"
        "print(json.dumps(tree(os.path.expanduser(sys.argv[1]))))"
    )
    result = run.desktop.run(["python3", "-c", script, path])
    if result.returncode:
        raise FileNotFoundError(path)
    tree: dict[str, Any] = json.loads(result.output)
    return tree
