"""Held: one rank's state of one step, as some node has it in its memory, its own or as a copy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Whole or not at all: what is still being written is not held."""

    generation: int  # Of the gang that saved it.
    step: int
    rank: int
    world_size: int  # How many ranks make the state whole.
