"""Which process is control, and which is the agent of a node: found by what they were started with, so that anybody on the machine can ask."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.launch.layout import JobDirectory

CONTROL = "control"


def process_of(directory: JobDirectory, name: str) -> int | None:
    """Of control or of a node's agent, as it runs now; None while there is none."""
    program, where = ("holdfast.control", directory.path) if name == CONTROL else ("holdfast.agent", directory.node_spec(name))
    wanted = [b"-m", program.encode(), os.fsencode(where)]
    return next((pid for pid, words in _command_lines() if words[1:4] == wanted), None)


def _command_lines() -> Iterator[tuple[int, list[bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    yield int(name), file.read().split(b"\0")
            except OSError:  # Gone meanwhile.
                continue
