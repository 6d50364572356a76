"""Made-up web sites on this machine, with tasks, a scripted policy and a stand-in judge.

They show that playing and judging fit together, without the web:

    python -m scripts.web_sites FOLDER

writes FOLDER/sites.json, serves until it is interrupted, and prints the command that plays the tasks. The sites' server
is an HTTP proxy: whoever allows it to a desktop allows these sites and nothing else. The policy knows the tasks, and
does one of them wrong; the judge looks for texts among the actions. **Scores say nothing about a policy or a judge.**
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from osworld_gym.atomic import write_text

_STYLE = (
    "body{font:22px sans-serif;margin:20px}input,button{font:22px sans-serif;position:absolute;left:200px;width:400px}"
)


@dataclass(frozen=True, slots=True)
class SiteTask:
    """A task on one of the sites.

    Args:
        text: what is to be done.
        site: the host.
        level: of Online-Mind2Web.
        responses: of the scripted policy, in UI-TARS's words; points are thousandths of the screen.
        evidence: texts that the stand-in judge looks for among the actions, in their order.
    """

    text: str
    site: str
    level: str
    responses: tuple[str, ...]
    evidence: tuple[str, ...]


def _said(thought: str, action: str) -> str:
    return f"Thought: {thought}\nAction: {action}"


_NAME, _GUESTS = "click(start_box='(300,265)')", "click(start_box='(300,348)')"
_FIELD = _NAME  # of the search
TASKS = {
    "table": SiteTask(
        "Book a table for 4 guests under the name Weber.",
        "table.example",
        "easy",
        (
            _said("The field of the name comes first.", _NAME),
            _said("I type the name.", "type(content='Weber')"),
            _said("Now the guests.", _GUESTS),
            _said("There are four, and the line end sends the form.", "type(content='4\\n')"),
            _said("The site says thank you.", "finished(content='The table is booked.')"),
        ),
        ('TYPE -> "Weber"', 'TYPE -> "4\\n"'),
    ),
    "search": SiteTask(
        "Search for lighthouse and say how many books there are.",
        "books.example",
        "easy",
        (
            _said("I need the search.", _FIELD),
            _said("I search.", "type(content='lighthouse\\n')"),
            _said("Three books are listed.", "finished(content='3')"),
        ),
        ('TYPE -> "lighthouse\\n"',),
    ),
    "cheapest": SiteTask(
        "Search for lighthouse and name the cheapest book, sorted by price.",
        "books.example",
        "medium",
        (
            _said("I need the search.", _FIELD),
            _said("I search, and look for the lowest price myself.", "type(content='lighthouse\\n')"),
            _said("It costs 5.", "finished(content='The keeper')"),  # wrong: the task says to sort
        ),
        ('TYPE -> "lighthouse\\n"', "CLICK coords(82, 257)"),
    ),
    "list": SiteTask(
        "Open the page of the train to Bergen and say when it leaves.",
        "trains.example",
        "easy",
        (
            _said("Bergen is the second in the list.", "click(start_box='(39,357)')"),
            _said("The page says when.", "finished(content='10:15')"),
        ),
        ("CLICK coords(50, 257)",),
    ),
    "closed": SiteTask("Say what is sold here.", "closed.example", "hard", (), ()),
}
_BOOKS = {"To the lighthouse": 9, "The keeper": 5, "Lamps of the coast": 12}


def page(host: str, path: str, query: Mapping[str, list[str]]) -> str | None:
    """A page of a site as HTML; None if there is no such site."""
    if host == "table.example":
        name, guests = query.get("name", [""])[0], query.get("guests", [""])[0]
        if path == "/thanks":
            return _html("Thank you", f"<p>{_plain(name)}, a table for {_plain(guests)} guests</p>")
        fields = "<p>Name <input name=name style='top:90px'><p>Guests <input name=guests style='top:150px'>"
        return _html("Book a table", f"<form action=/thanks>{fields}<button style='top:210px'>Book</button></form>")
    if host == "books.example":
        form = "<form action=/search><p>Search <input name=q style='top:90px'></form>"
        if path != "/search":
            return _html("Books", form)
        books = sorted(_BOOKS, key=_BOOKS.__getitem__) if "sort" in query else list(_BOOKS)
        listed = "".join(f"<li>{book}, {_BOOKS[book]} euros" for book in books)
        return _html(
            f"{len(books)} books", f"{form}<p><a href='/search?q=x&sort=price'>Sort by price</a><ul>{listed}</ul>"
        )
    if host == "trains.example":
        if path == "/bergen":
            return _html("Bergen", "<p>10:15")
        return _html("Trains", "<p><a href=/oslo>Oslo</a><p><a href=/bergen>Bergen</a>")
    return None


def _html(title: str, body: str) -> str:
    return f"<!DOCTYPE html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>{body}"


def _plain(text: str) -> str:
    return re.sub(r"[^\w ]", "", text)


class SitesHandler(BaseHTTPRequestHandler):
    """An HTTP proxy that knows the sites alone, each by its host's name."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        text = page(url.hostname or "", url.path, parse_qs(url.query))
        _send(self, 502 if text is None else 200, "text/html", text or "no such site")

    def do_CONNECT(self) -> None:
        _send(self, 502, "text/plain", "no such site")

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


class ChatHandler(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint with the models ``scripted`` (the policy) and ``stand-in`` (the judge)."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = MODELS[request["model"]](request["messages"])
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"], "choices": [choice]}
        _send(self, 200, "application/json", json.dumps(answer))

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


def _send(handler: BaseHTTPRequestHandler, status: int, kind: str, text: str) -> None:
    data = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def policy(messages: list[dict[str, Any]]) -> str:
    """The scripted policy: the next response of the task in the messages."""
    task = _task_in(json.dumps(messages))
    return task.responses[sum(each["role"] == "assistant" for each in messages)]


def judge(messages: list[dict[str, Any]]) -> str:
    """The stand-in judge: success if the evidence is among the actions, in its order."""
    system, text = messages[0]["content"], messages[1]["content"][0]["text"]
    if "**Score**" in system:
        return "**Reasoning**: a page of the site.\n**Score**: 3"
    if "Status:" not in system:
        return "**Key Points**:\n1. what the task says"
    place, found = 0, True
    for evidence in _task_in(json.dumps(text)).evidence:
        at = text.find(evidence, place)
        found, place = found and at >= 0, max(at, place)
    return f"Thoughts: a program looked for texts among the actions.\nStatus: {'success' if found else 'failure'}"


MODELS: dict[str, Callable[[list[dict[str, Any]]], str]] = {"scripted": policy, "stand-in": judge}


def _task_in(text: str) -> SiteTask:
    return next(task for task in TASKS.values() if task.text in text)


def write_tasks(folder: Path) -> Path:
    """Writes ``sites.json``, in the format of Online-Mind2Web; returns its path."""
    lines = [
        {
            "task_id": name,
            "confirmed_task": task.text,
            "website": f"http://{task.site}/",
            "reference_length": max(1, len(task.responses)),
            "level": task.level,
        }
        for name, task in TASKS.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sites.json"
    write_text(path, json.dumps(lines, indent=1) + "\n")
    return path


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[int]:
    """A server on this machine, whose port is given; 0: a free one."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10.0)


def command(data: Path, sites: int, chat: int) -> list[str]:
    """The arguments of ``bepa`` that play the tasks by the scripted policy, and judge them by the stand-in."""
    url = f"http://127.0.0.1:{chat}/v1"
    return [
        *("eval", "suite=online_mind2web", "policy=uitars15_7b", f"env.options.proxy=127.0.0.1:{sites}"),
        *("--data", str(data), "--policy-model", "scripted", "--policy-url", url, "--policy-points", "thousandths"),
        *("--judge-model", "stand-in", "--judge-url", url),
    ]


def main() -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where sites.json is written")
    parser.add_argument("--port", type=int, default=8101, help="of the sites; the endpoint has the next one")
    options = parser.parse_args()
    data = write_tasks(options.folder)
    with serving(SitesHandler, options.port) as sites, serving(ChatHandler, options.port + 1) as chat:
        print("bepa", *command(data, sites, chat), "--card --out evaluations/sites", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
