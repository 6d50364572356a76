"""Runs a program whose standard output nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys


def run_unread(module: str, *arguments: str, unbuffered: bool) -> tuple[int, str]:
    """Exit code and standard error of ``python -m module``; without buffers the first print meets the closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONUNBUFFERED": "1" if unbuffered else ""}
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, env=environment, check=False
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


def run_into(module: str, *arguments: str, output: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of ``python -m module`` with its output redirected, as by ``>/dev/full``."""
    command = ["sh", "-c", f'exec "$@" {output}', "sh", sys.executable, "-m", module, *arguments]
    variables = os.environ | {"PYTHONUNBUFFERED": ""} | environment
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, env=variables, check=False)
    return done.returncode, done.stderr
