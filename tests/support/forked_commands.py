"""Runs command lines of ``bepa`` in processes that a small one forks, so that each has imported nothing large before.

A process of its own for each would spend most of its time on importing what every command needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

#: packages that take seconds to import
LARGE = ("torch", "torchrl", "tensordict", "transformers", "matplotlib", "rich")

_SERVER = """
import json, os, sys
import bepa_torchrl.experiment.config, bepa_torchrl.experiment.settings
from bepa_torchrl.__main__ import main

LARGE = set(json.loads(sys.argv[1]))
for line in sys.stdin:
    arguments, folder, result = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    os.chdir(folder)
    os.dup2(os.open(result + ".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    sys.stderr.flush()
    with open(result, "w") as file:
        json.dump([code, sorted(LARGE & set(sys.modules))], file)
    os._exit(0)
"""


class Answer(NamedTuple):
    """What a command line did."""

    code: int  #: exit code
    large: list[str]  #: the packages of :data:`LARGE` that were imported
    error: str  #: standard error


class ForkedCommands:
    """The process that forks. Use :func:`forked_commands`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder

    def run(self, arguments: list[str], folder: Path) -> Answer:
        """Runs ``bepa`` with these arguments in a working directory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        result = self._folder / "result"
        self._process.stdin.write(json.dumps([arguments, str(folder), str(result)]) + "\n")
        self._process.stdin.flush()
        error = result.with_suffix(".err")
        status = self._process.stdout.readline().strip()
        assert status == "0", f"the process ended with the status {status!r}: {error.read_text()}"
        code, large = json.loads(result.read_text())
        return Answer(code, large, error.read_text())


@contextmanager
def forked_commands() -> Iterator[ForkedCommands]:
    """Starts the process, and ends it."""
    command = [sys.executable, "-c", _SERVER, json.dumps(LARGE)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        yield ForkedCommands(process, Path(folder))
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
