"""Standstill: what each rank of a gang that gets no further is doing, told from what the agents see of them.

    moves     it has beaten lately, or it is not known not to
    stopped   the kernel does not run it: SIGSTOP, a suspended terminal
    waits     in a collective, on the processor or on its GPU, and nothing of it is at work: it waits for the others, whatever processor time that takes
    works     outside a collective: it computes, reads or writes, or a process below it does
    idle      outside a collective, and nothing of it is at work: it sleeps, or waits for a socket, a pipe, a file, a lock, a process
    unseen    its stack could not be read

Only waiting and being stopped can be proof of a hang, and only when all ranks do it: everything else may end by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.domain.signs import BEGUN, COLLECTIVE, DATA, ELSEWHERE, Signs

STOPPED_S: Final = 3.0  # A process that is stopped for this long is not stopped by chance.
IDLE_S: Final = 3.0  # A process that uses no processor for this long does nothing.
_SAMPLE_OLD_S: Final = 5.0  # A stack of longer ago says nothing about now, where the rank has been quiet for a short time,
_SAMPLE_OLD_SHARE: Final = 0.2  # and this share of that time where it has been for long: it is asked more rarely then.


class Doing(StrEnum):
    MOVES = "moves"
    STOPPED = "stopped"
    WAITS = "waits"
    WORKS = "works"
    IDLE = "idle"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One rank, as control knows it."""

    rank: int
    node: str
    phase: str  # Empty: it does not beat.
    step: int
    signs: Signs | None  # None: it moves.
    heard: bool = True  # Its agent spoke lately.
    alone: bool = False  # It is a gang of one: there is nobody to wait for in a collective.

    @property
    def doing(self) -> Doing:
        signs = self.signs
        if signs is None:
            return Doing.MOVES
        if signs.process_state == "T":
            return Doing.STOPPED if signs.stopped_s >= STOPPED_S else Doing.MOVES
        if not self.phase:
            return Doing.MOVES  # A script without our lines: whether it gets further is not known.
        if not _is_sampled(signs):
            return Doing.WORKS if self.is_busy else Doing.UNSEEN
        if self._waits(signs):
            return Doing.WORKS if self._gets_further(signs) else Doing.WAITS
        computes = signs.inside == BEGUN and signs.main_idle_s < IDLE_S
        return Doing.WORKS if self.is_busy or computes else Doing.IDLE

    @property
    def is_busy(self) -> bool:
        signs = self.signs
        return signs is not None and min(signs.own_idle_s, signs.children_idle_s, signs.io_idle_s) < IDLE_S

    @property
    def quiet_s(self) -> float:
        return self.signs.quiet_s if self.signs is not None else 0.0

    @property
    def has_late_data(self) -> bool:
        return self.signs is not None and self.signs.inside == DATA

    @property
    def waits_on_gpu(self) -> bool:
        """Whether its main thread waits for a GPU, by running all the while, and the GPU for a collective: `loss.item()` while the others are elsewhere."""
        signs = self.signs
        if signs is None or self.alone or not signs.on_gpu or signs.inside not in (BEGUN, ELSEWHERE):
            return False
        return signs.main_idle_s < IDLE_S and signs.pending_s is not None and signs.pending_s >= IDLE_S

    def _waits(self, signs: Signs) -> bool:
        """Where collectives were begun before, a main thread that runs computes, and one that does not waits for them."""
        if self.alone:
            return False
        return signs.inside == COLLECTIVE or (signs.inside == BEGUN and signs.main_idle_s >= IDLE_S) or self.waits_on_gpu

    def _gets_further(self, signs: Signs) -> bool:
        """Whether something is at work although its stack is that of a wait: a child, a transfer, or the thread itself, from one collective to the next."""
        runs = signs.main_idle_s < IDLE_S and not signs.on_gpu  # Where a GPU is waited for the thread runs all the while.
        return runs or signs.children_idle_s < IDLE_S or signs.io_idle_s < IDLE_S

    def __str__(self) -> str:
        """Says where it is and what it does there."""
        signs = self.signs
        if signs is None:
            return "moves"
        at = f"in {signs.where}" if signs.where else "at a place that cannot be seen"
        if self.waits_on_gpu:
            return f"{at}: it waits for its GPU, which is in a collective"
        busy = [
            said for said, idle_s in (("computes", signs.own_idle_s), ("its processes compute", signs.children_idle_s), ("reads or writes", signs.io_idle_s))
            if idle_s < IDLE_S
        ]  # fmt: skip
        does = " and ".join(busy) or signs.doing or ("is stopped" if signs.process_state == "T" else "")
        return f"{at}{': it ' if does and not does.startswith('its') else ': ' if does else ''}{does}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _is_sampled(signs: Signs) -> bool:
    return signs.sampled_s is not None and signs.sampled_s <= max(_SAMPLE_OLD_S, _SAMPLE_OLD_SHARE * signs.quiet_s) and bool(signs.inside)
