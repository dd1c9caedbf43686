"""A GPU holder: a process with memory on a GPU of a node, as the driver tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolder:
    pid: int
    user: str
    held_bytes: int
    gpu: int = -1  # As the driver counts.
    ours: bool = False  # Of this job.
