"""The sockets of a process group, and how they are shut.

Gloo cannot abort: a rank that waits for one that is stopped, or cut off, waits for good. Shut the connections from another thread, and the collective fails
where it waits. Which ones they are nobody says, so all TCP connections are taken that were opened since the process group was about to be made.

Is wrong    about connections of the script's own that were opened within the function that rejoins: they are shut with the others.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Set as AbstractSet


def opened() -> frozenset[str]:
    """Every socket this process has, by the kernel's name for it: descriptors are used again, these are not."""
    return frozenset(_sockets().values())


def shut(before: AbstractSet[str]) -> None:
    """Shut all TCP connections that were not there `before`."""
    for fd, name in _sockets().items():
        if name not in before:
            with contextlib.suppress(OSError):  # Closed meanwhile by its owner.
                _shut(os.dup(fd))


def _shut(fd: int) -> None:
    with socket.socket(fileno=fd) as one:
        # Not those who listen: gloo ends the process when it cannot accept any more.
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            one.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, str]:
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                found[fd] = name
    return found
