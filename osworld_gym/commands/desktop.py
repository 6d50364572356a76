"""``osworld-gym desktop``: opens a desktop of any provider, shows it in a browser, runs a task by hand."""

from __future__ import annotations

import argparse
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

from osworld_gym.commands.arguments import add_import, port_number, require_free
from osworld_gym.commands.desktop_page import Page
from osworld_gym.commands.manual_session import ManualSession
from osworld_gym.desktops.registry import make_desktop, provider_class
from osworld_gym.errors import TaskError
from osworld_gym.tasks.providers import SIM, check_tasks_of_provider
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task

HELP = """lines:
  click(start_box='(100,200)')   an action in the UI-TARS form, points in screen pixels; also left_double, right_single,
                                 drag, scroll, type, hotkey
  verify                         the task's score in the desktop's present state
  fail                           the same, as if the policy had given up (OSWorld's FAIL)
  reset                          a fresh desktop, with the task's setup
  shot FILE                      the screen as PNG
  help, quit"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "open a desktop, see it in a browser, try a task by hand"
    parser = commands.add_parser("desktop", help=text, description=text, epilog=HELP)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--provider", default="local", help="default: local")
    add_import(parser)
    parser.add_argument("--width", type=int, help="pixels (default: the provider's)")
    parser.add_argument("--height", type=int, help="pixels")
    parser.add_argument("--task", metavar="SUITE:ID", help="set up this task; its id, or the beginning of its id")
    parser.add_argument("--seed", type=int, default=0, help="seed of the resets (default: 0)")
    parser.add_argument(
        "--port", type=port_number, default=0, help="port of the page on 127.0.0.1 (default: a free one)"
    )
    parser.set_defaults(command=_desktop)


def _desktop(arguments: argparse.Namespace) -> int:
    require_free(arguments.port)
    task = _task(arguments.task, arguments.provider)
    session = ManualSession(make_desktop(arguments.provider, **_options(arguments)), task, arguments.seed)
    try:
        session.begin()
        with Page(session, arguments.port) as page:
            _talk(session, f"{arguments.provider}: {page.address}")
            page.shutdown()
    except KeyboardInterrupt:
        print()
    finally:
        session.close()
    return 0


def _talk(session: ManualSession, where: str) -> None:
    width, height = session.desktop.screen_size
    print(f"{where} shows it, {width}×{height} pixels")
    if session.task is not None:
        print(f"task {session.task.id}: {session.task.instruction}")
    print("help shows what can be typed here; quit ends it", flush=True)
    for line in _lines():
        print(_obey(session, line), flush=True)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The width and height that were given, as options of the provider.

    Raises:
        ValueError: the provider's screen has a fixed size.
    """
    given = {name: getattr(arguments, name) for name in ("width", "height") if getattr(arguments, name) is not None}
    known = inspect.signature(provider_class(arguments.provider)).parameters if given else {}
    for name in given:
        if name not in known:
            raise ValueError(
                f"provider {arguments.provider!r} has no option {name}, got --{name}={given[name]}; leave it out: the "
                "size of its screen is fixed"
            )
    return given


def _task(name: str | None, provider: str) -> Task | None:
    if name is None:
        return None
    suite_name, colon, ident = name.rpartition(":")
    if not colon:
        suite_name = SIM if provider == SIM else "desktop"
        raise TaskError(f"--task: expected SUITE:ID, such as {suite_name}:{name}, got {name!r}")
    suite = load_suite(suite_name)
    task = suite.find(ident)
    task.check_supported()
    check_tasks_of_provider(suite_name, [task], provider, others="a --task of another suite")
    return task


def _lines() -> Iterator[str]:
    """The lines that the user types, until ``quit`` or the end of the input; none if it is closed (``<&-``)."""
    if sys.stdin is None:
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are no text may be a file's name
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() in ("quit", "exit"):
            return
        if line.strip():
            yield line.strip()


def _obey(session: ManualSession, line: str) -> str:
    word, _, rest = line.partition(" ")
    if word == "shot":
        return session.shot(rest.strip()) if rest.strip() else "shot: expected a file, as shot /tmp/screen.png"
    orders: dict[str, Callable[[], str]] = {
        "verify": session.verify,
        "reset": session.reset,
        "fail": lambda: session.verify(given_up=True),
    }
    if line in orders:
        return orders[line]()
    return HELP if line == "help" else session.act(line)
