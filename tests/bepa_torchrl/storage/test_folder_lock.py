"""One process per folder: the error names the lock's holder, and the lock ends with it, also by SIGKILL."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bepa_torchrl.storage.lock import LOCK, FolderInUseError, check_free, locked

HOLD = """
import sys
from pathlib import Path
from bepa_torchrl.storage.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_holder_is_gone(tmp_path: Path) -> None:
    check_free(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for attempt in (lambda: locked(tmp_path).__enter__(), lambda: check_free(tmp_path)):
            with pytest.raises(FolderInUseError, match=rf"in use by process {holder.pid}; wait for it.*another name="):
                attempt()
        holder.kill()
    check_free(tmp_path)
    with locked(tmp_path), pytest.raises(FolderInUseError), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_process_that_only_looks_does_not_refuse_one_that_begins(tmp_path: Path) -> None:
    """``bepa status`` and ``bepa view`` hold the lock with others for a moment, by which they see that it is free."""
    with locked(tmp_path):
        pass
    handle = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    ends = threading.Timer(0.1, os.close, [handle])
    ends.start()
    with locked(tmp_path):
        ends.join()
        with pytest.raises(FolderInUseError):
            check_free(tmp_path)
