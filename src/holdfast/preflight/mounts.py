"""Mounts: on which one a path lies, by what the kernel lists. The path itself is not touched: on a dead mount that would never return."""

from __future__ import annotations

import os
from pathlib import Path


def mount_of(path: str) -> str:
    """By the words of the path alone: a symbolic link on the way is not followed."""
    path = os.path.abspath(path)
    points = (line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return max((point for point in points if Path(path).is_relative_to(point)), key=len, default="/")
