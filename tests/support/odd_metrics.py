"""Metrics and getters that fail in some way. Evaluator processes import them by name."""

import os
import signal
import time


def no_numpy(*_):
    raise ImportError("no numpy")


def disk_full(*_):
    raise OSError(28, "no space left")


def times_out(*_):
    raise TimeoutError


def sleeps(*_):
    time.sleep(60)


def computes(*_):
    while True:
        pass


def allocates(*_):
    return len(bytearray(1 << 40))


def crashes(*_):
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def starts_a_program_and_computes(*_):
    import subprocess

    subprocess.Popen(["sleep", "600"])
    while True:
        pass


def pid(run, _):
    """The number of the evaluator process."""
    del run
    return str(os.getpid())


def records(result, rules):
    with open(rules["path"], "a") as file:
        file.write(f"{result}\n")
    return 1.0
