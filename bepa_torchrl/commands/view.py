"""``bepa view RUN…``: pages that show runs, evaluations, expert logs and self-rollouts, step by step."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bepa_torchrl.commands.arguments import check_new
from osworld_gym.commands.arguments import require_free

_HELP = "pages that show runs, evaluations, expert logs and self-rollouts: curves, episodes step by step, groups, cache"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("view", help=_HELP, description=f"Writes {_HELP}. The runs are only read.")
    text = "a run's folder, such as runs/NAME; NAME:FOLDER of an expert's logs; a folder of traces or self-rollouts"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=text)
    parser.add_argument("--out", type=Path, help="the folder of pages; it must not exist (default: ./view-NAME)")
    parser.add_argument("--serve", action="store_true", help="serve the pages on this machine and follow a running run")
    parser.add_argument("--port", type=int, help="port of --serve (default: a free one)")
    parser.set_defaults(program=view, needs_extra=False)


def view(options: argparse.Namespace) -> int:
    """Writes the pages, and serves them until it is interrupted if ``--serve`` is given.

    Pages that are served without ``--out`` are in a temporary folder, which is removed at the end.
    """
    from osworld_gym.extras import require_extra

    require_extra("view", "bepa view")
    if options.port is not None and not options.serve:
        raise ValueError(f"--port {options.port} is read with --serve only; add it, or leave --port out")
    port = options.port or 0
    if not 0 <= port < 65536:
        raise ValueError(f"--port: expected 0 to 65535, got {port}")
    if options.serve:
        require_free(port)
    if options.serve and options.out is None:
        with tempfile.TemporaryDirectory(prefix="bepa-view-") as folder:
            return _serve(options.runs, port, Path(folder))
    from bepa_torchrl.viewer.site import Site
    from osworld_gym.atomic import new_folder

    out = options.out or Path(f"view-{Path(options.runs[0]).absolute().name}")
    check_new(out, "--out")
    if options.serve:
        return _serve(options.runs, port, out)
    with new_folder(out) as part:
        Site(options.runs, part).write()
    print(f"{out / 'index.html'}")
    return 0


def _serve(runs: Sequence[str], port: int, out: Path) -> int:
    from bepa_torchrl.viewer.serve import PagesServer
    from bepa_torchrl.viewer.site import Site

    site = Site(runs, out)
    out.mkdir(parents=True, exist_ok=True)
    site.write()
    with PagesServer(site, port) as server:
        print(f"{server.address}  (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    return 0
