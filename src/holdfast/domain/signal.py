"""A signal: one measured value. Its metric and what it is of make its series; the node and the time stand on the message that carries it."""

from __future__ import annotations

from typing import NamedTuple


class Signal(NamedTuple):
    metric: str  # A name of `domain.metric.METRICS`, or `user_<name>`.
    value: float
    of: str = ""  # "3" for rank 3, "0" for GPU 0, "/dev/shm" for a disk; empty for the node itself.
