"""Maps exceptions to exit codes and one-line messages.

Imports no large package: an exception class of a package that is not imported cannot have been raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from osworld_gym.commands.output import output_closed
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.extras import MissingExtraError

BAD_INPUT, INFRASTRUCTURE, INTERRUPTED = 2, 3, 130


def exit_code(error: BaseException) -> int | None:
    """2 for bad input, 3 for infrastructure (a desktop, the disk, a GPU's memory); None for a bug of the program."""
    refused_by_disk = _is(error, "bepa_torchrl.storage.folder", "FolderError") and isinstance(error.__cause__, OSError)
    if refused_by_disk or isinstance(error, DesktopError | OSError) or _is(error, "safetensors", "SafetensorError"):
        return INFRASTRUCTURE
    if _is(error, "bepa_torchrl.scale.engine.errors", "EngineError"):
        return INFRASTRUCTURE
    if _is(error, "bepa_torchrl.endpoint", "EndpointError"):
        return INFRASTRUCTURE
    if _is(error, "bepa_torchrl.policies.out_of_memory", "DeviceMemoryError") or _out_of_memory(error):
        return INFRASTRUCTURE
    if isinstance(error, ValueError | TaskError | MissingExtraError):
        return BAD_INPUT
    if _is(error, "bepa_torchrl.policies.finite", "NonFiniteError"):
        return BAD_INPUT  # the settings' fault: the same command would diverge again
    if _is(error, "torchrl.checkpoint", "CheckpointError"):
        return BAD_INPUT
    return None


def guarded(program: Callable[[], int], name: str) -> int:
    """Runs a program; an expected error becomes one line on standard error and an exit code.

    The error's notes follow in the same line. A bug keeps its traceback; Ctrl-C returns 130. A closed standard output
    (``bepa plan | head``) is no error.
    """
    try:
        return program()
    except KeyboardInterrupt as error:
        print(f"{name}: interrupted{_notes(error)}", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # a signal that ends the program
        if _notes(error):
            print(f"{name}: ended{_notes(error)}", file=sys.stderr)
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and output_closed():
            return 0
        code = exit_code(error)
        if code is None:
            raise
        print(f"{name}: {_line(error)}{_notes(error)}", file=sys.stderr)
        return code


def _line(error: Exception) -> str:
    """The message in one line; torch's of a GPU that is out of memory has several sentences, and no setting."""
    text = " ".join(str(error).split())
    if not _out_of_memory(error):
        return text
    return f"{text.partition('. ')[0]}; lower policy.max_batch_tokens or train.max_tokens, or free the device's memory"


def _notes(error: BaseException) -> str:
    """What was noted about the error, such as the command that continues a run."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()))


def _out_of_memory(error: BaseException) -> bool:
    return _is(error, "torch", "OutOfMemoryError")


def _is(error: BaseException, module: str, name: str) -> bool:
    """Whether the error is an instance of this class, without importing its module."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(error, kind)
