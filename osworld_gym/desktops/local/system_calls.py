"""The system calls that a sandbox refuses, as a filter of the kernel (seccomp).

These leave the namespaces: the keyrings of the session in which this program was started are shared with every process
of it, and sockets of some families, such as those between virtual machines (vsock), belong to no network namespace.
"""

from __future__ import annotations

import errno
import os
import struct

#: machine → its number in a filter, and its numbers of socket, add_key, request_key and keyctl
_MACHINES = {"x86_64": (0xC000003E, 41, (248, 249, 250)), "aarch64": (0xC00000B7, 198, (217, 218, 219))}
_IO_URING_SETUP = 425  # which opens sockets without socket()
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink: they have namespaces
_X32 = 0x40000000  # system calls from here on are those of a second interface with 32-bit addresses

_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets of a call's data; the argument's lower half
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of the filter's machine
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def refused_calls(machine: str | None = None) -> bytes:
    """The filter as bubblewrap's ``--seccomp`` takes it; empty for a machine whose numbers are not known here.

    Keyrings, io_uring and programs of another machine's interface (32-bit ones) get ENOSYS; a socket that is not of a
    Unix, internet or netlink family gets EAFNOSUPPORT.

    Args:
        machine: as of ``os.uname().machine``; None: this machine.
    """
    known = _MACHINES.get(machine or os.uname().machine)
    if known is None:
        return b""
    number, socket, keys = known
    none, other, allow = "none", "other", "allow"
    program: list[tuple[int, int, str, str]] = [(_LOAD, _MACHINE, "", ""), (_EQUAL, number, "", none)]
    program += [(_LOAD, _NUMBER, "", ""), (_AT_LEAST, _X32, none, "")]
    program += [(_EQUAL, call, none, "") for call in (*keys, _IO_URING_SETUP)]
    program += [(_EQUAL, socket, "", allow), (_LOAD, _FIRST_ARGUMENT, "", "")]
    program += [(_EQUAL, family, allow, "") for family in _FAMILIES]
    ends = {other: len(program), none: len(program) + 1, allow: len(program) + 2}
    out = [
        struct.pack("=HBBI", code, *(ends[place] - i - 1 if place else 0 for place in (yes, no)), value)
        for i, (code, value, yes, no) in enumerate(program)
    ]
    returns = (_ERROR | errno.EAFNOSUPPORT, _ERROR | errno.ENOSYS, _ALLOW)
    return b"".join([*out, *(struct.pack("=HBBI", _RETURN, 0, 0, value) for value in returns)])
