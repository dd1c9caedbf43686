"""A probe: one place that is looked at, over and over.

    for seen in probe.look(): …      signals, and now and then an event

A probe may take as long as it likes and may raise: `runner.py` gives each a thread, a time limit and a way back. What cannot be read on this machine
is left out, and is not a failure. A probe keeps what it needs between two looks (descriptors, the counters of the last one), so it has one reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal

Seen = Signal | KernelEvent


class Probe(Protocol):
    name: str  # Unique among the probes of a node.
    every_s: float  # From the beginning of one look to that of the next.
    timeout_s: float  # A look that takes longer is a finding.
    doing: str  # What the look is waiting for, for the sentence about one that hangs; empty where there is nothing to add.

    def look(self) -> Sequence[Seen]: ...
