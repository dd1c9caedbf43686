"""A collective: the newest one that a rank has entered in a process group, as torch's flight recorder tells it. Who is behind has not entered the others'."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    group: str  # The name of the process group.
    sequence: int  # Counted within the group, the same on all its ranks.
    operation: str  # "gloo:all_reduce"; empty: not known.
    done: bool  # It has left it again.
    members: tuple[int, ...] = ()  # The ranks of the group; empty: not known.
