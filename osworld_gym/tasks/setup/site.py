"""Setup step ``open_site``: opens a web site in Chrome, after a look at whether the desktop's network leads to it.

Chrome shows a page of its own when a site cannot be reached, on which a policy would fail: that is no failure of the
policy, so that the step fails instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason

LOOK = 60.0  # seconds for the look
#: Python script; argument: a URL. Exits with 0 if something answers there, through http_proxy or https_proxy if set.
#: A proxy's own answers (502 to 504, and any status but 200 of a tunnel) say that nothing does.
_REACHED = """
import http.client, os, socket, sys
from urllib.parse import urlsplit
url = urlsplit(sys.argv[1])
port = url.port or (443 if url.scheme == "https" else 80)
proxy = os.environ.get(url.scheme + "_proxy")
if url.hostname in ("localhost", "127.0.0.1") or not proxy:
    socket.create_connection((url.hostname, port), 20).close()
    sys.exit()
to = urlsplit(proxy if "//" in proxy else "//" + proxy)
connection = http.client.HTTPConnection(to.hostname, to.port, timeout=20)
if url.scheme == "https":
    connection.set_tunnel(url.hostname, port)
    connection.connect()
else:
    connection.request("GET", url.geturl())
    status = connection.getresponse().status
    sys.exit("the proxy answered %d" % status if status in (502, 503, 504) else 0)
"""


def open_site(desktop: Desktop, parameters: Mapping[str, Any]) -> None:
    """Opens ``parameters["url"]`` as the only tab of the Chrome that the task has started.

    Raises:
        DesktopError: ``setup_failed``: the site cannot be reached, or Chrome does not answer.
        TaskError: this provider does not forward Chrome's port.
    """
    from osworld_gym.tasks.setup.chrome import open_tabs  # most tasks have no site

    url = str(parameters["url"])
    found = desktop.run(["python3", "-c", _REACHED, url], timeout=LOOK)
    if found.returncode:
        lines = found.error.strip().splitlines() or [f"exit status {found.returncode}"]
        message = f"{url} cannot be reached through the desktop's network: {lines[-1][:200]}"
        raise DesktopError(FailureReason.setup_failed, message)
    open_tabs(desktop, [url])
