"""A finding: a detector's claim that something is off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str  # Names the fault and not the cure: "worker_exited", "silent_rank", "stopped_rank", "silent_node", "poisoned_checkpoint".
    because: str
    node: str = ""
    ranks: tuple[int, ...] = ()
    since: float = 0.0  # When it went wrong, as far as can be told; the time it was noticed stands in the event.
    evidence: tuple[str, ...] = ()
    checkpoint: str = ""  # The one it is about, if it is about one,
    step: int = -1  # and its step.
