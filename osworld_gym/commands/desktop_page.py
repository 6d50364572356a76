"""The web page of ``osworld-gym desktop``: shows the screen, sends clicks and keys. Served on 127.0.0.1 only."""

from __future__ import annotations

import html
import json
import re
import secrets
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from osworld_gym.commands.manual_session import ManualSession
from osworld_gym.errors import DesktopError

MAX_BODY = 100_000  # largest action in bytes

PAGE = """<!doctype html><meta charset="utf-8"><title>desktop</title>
<style>
 body {{ margin: 0; font: 14px sans-serif; background: #222; color: #ddd }}
 header {{ padding: 6px 10px; display: flex; gap: 10px; align-items: center }}
 img {{ display: block; width: 100%; max-width: {width}px; cursor: crosshair }}
 #said {{ color: #9c9; flex: 1 }}
</style>
<header><b>{instruction}</b><span id="said"></span>
<button id="verify">verify</button><button id="fail">give up</button><button id="reset">reset</button></header>
<img id="screen" draggable="false" alt="the desktop's screen">
<script>
const screen_ = document.getElementById("screen"), said = document.getElementById("said");
const queue = []; let busy = false, down = null, timer = null;
async function post(what, text) {{
  const reply = await fetch(what, {{method: "POST", body: JSON.stringify({{text: text || ""}})}});
  said.textContent = (await reply.json()).said;
}}
async function drain() {{
  if (busy) return;
  busy = true;
  while (queue.length) {{ const text = queue.shift(); await post("act", text); }}
  busy = false;
}}
function act(text) {{ queue.push(text); drain(); }}
function quoted(text) {{ return "'" + text.replace(/[\\\\']/g, "\\\\$&").replace(/\\n/g, "\\\\n") + "'"; }}
function box(event) {{
  const r = screen_.getBoundingClientRect();
  const x = Math.floor((event.clientX - r.left) * {width} / r.width);
  const y = Math.floor((event.clientY - r.top) * {height} / r.height);
  return "(" + x + "," + y + ")";
}}
const far = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) > 6;
screen_.addEventListener("mousedown", e => {{ if (e.button === 0) down = e; e.preventDefault(); }});
screen_.addEventListener("mouseup", e => {{
  if (e.button !== 0 || !down) return;
  const start = down; down = null;
  if (far(start, e)) return act(`drag(start_box='${{box(start)}}', end_box='${{box(e)}}')`);
  clearTimeout(timer);
  const kind = e.detail >= 2 ? "left_double" : "click";
  timer = setTimeout(() => act(`${{kind}}(start_box='${{box(e)}}')`), e.detail >= 2 ? 0 : 250);
}});
screen_.addEventListener("contextmenu", e => {{ e.preventDefault(); act(`right_single(start_box='${{box(e)}}')`); }});
screen_.addEventListener("wheel", e => {{
  e.preventDefault();
  if (!queue.length) act(`scroll(start_box='${{box(e)}}', direction='${{e.deltaY < 0 ? "up" : "down"}}')`);
}}, {{passive: false}});
document.addEventListener("keydown", e => {{
  const names = {{" ": "space", "ArrowLeft": "left", "ArrowRight": "right", "ArrowUp": "up", "ArrowDown": "down",
    "PageUp": "pageup", "PageDown": "pagedown", "Escape": "esc"}};
  if (["Control", "Alt", "Shift", "Meta", "AltGraph", "CapsLock"].includes(e.key)) return;
  e.preventDefault();
  if (e.key.length === 1 && !e.ctrlKey && !e.altKey && !e.metaKey) return act(`type(content=${{quoted(e.key)}})`);
  const keys = [e.ctrlKey && "ctrl", e.altKey && "alt", e.shiftKey && "shift", e.metaKey && "win"].filter(Boolean);
  keys.push(names[e.key] || e.key.toLowerCase());
  act(`hotkey(key='${{keys.join(" ")}}')`);
}});
for (const what of ["verify", "fail", "reset"]) {{
  document.getElementById(what).onclick = e => {{ e.target.blur(); post(what); }};
}}
async function watch() {{
  try {{
    const reply = await fetch("frame");
    if (reply.ok) {{
      const old = screen_.src;
      screen_.src = URL.createObjectURL(await reply.blob());
      await screen_.decode().catch(() => 0);
      if (old) URL.revokeObjectURL(old);
    }} else said.textContent = await reply.text();
  }} catch (error) {{ said.textContent = "the desktop was closed"; }}
  setTimeout(watch, 150);
}}
watch();
</script>
"""


class Page(ThreadingHTTPServer):
    """Serves the page of one session. The address contains a secret that other users and web sites do not know.

    Args:
        session: the session that the page shows and controls.
        port: port on 127.0.0.1; 0: a free one.
    """

    daemon_threads = True

    def __init__(self, session: ManualSession, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.session, self.secret = session, secrets.token_urlsafe(16)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        """The URL to open."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.secret}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints what went wrong; a browser that leaves before it has everything is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    server: Page
    protocol_version = "HTTP/1.1"
    timeout = 60  #: seconds that a connection may be silent

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the user works in the terminal."""

    def do_GET(self) -> None:
        what = self._asked()
        if what == "":
            self._answer(200, "text/html; charset=utf-8", self._page())
        elif what == "frame":
            try:
                self._answer(200, "image/png", self.server.session.frame())
            except DesktopError as error:
                self._answer(503, "text/plain; charset=utf-8", str(error).encode())
        else:
            self._answer(404, "text/plain", b"no such page")

    def do_POST(self) -> None:
        what, session = self._asked(), self.server.session
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MAX_BODY:
            self.close_connection = True
            return self._answer(413, "text/plain", b"the body is too large")
        body = self.rfile.read(int(length))
        orders: dict[str | None, Callable[[], str]] = {
            "verify": session.verify,
            "reset": session.reset,
            "fail": lambda: session.verify(given_up=True),
        }
        if what == "act":
            try:
                said = session.act(str(json.loads(body)["text"]))
            except (ValueError, KeyError, TypeError, RecursionError):
                return self._answer(400, "text/plain", b'expected {"text": ...}')
        elif what in orders:
            said = orders[what]()
        else:
            return self._answer(404, "text/plain", b"no such page")
        self._answer(200, "application/json", json.dumps({"said": said}).encode())

    def _asked(self) -> str | None:
        """The part of the path after the secret; None if the secret is missing or wrong."""
        prefix = f"/{self.server.secret}/"
        return self.path.removeprefix(prefix) if self.path.startswith(prefix) else None

    def _page(self) -> bytes:
        width, height = self.server.session.desktop.screen_size
        instruction = html.escape(self.server.session.instruction)
        return PAGE.format(width=width, height=height, instruction=instruction).encode()

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
