"""Phases: how long each phase of a rank usually lasts, learned from those that ended. A step is a phase; so are the start, an evaluation, a save.

Costs one small window for each phase. Runs in the agent, which reads beats many times a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

FACTOR: Final = 3.0
FLOOR_S: Final = 20.0  # Steps shorter than a third of this are not judged more tightly: a file server may take that long to answer.
FIRST_S: Final = 300.0  # For a phase that was never seen to end: the first step compiles, the first evaluation loads data.
FEW_S: Final = 60.0  # For one that was seen to end less often than this:
KNOWN_AFTER: Final = 4
QUICK_STEPS: Final = 100  # So many steps that are shorter than this make a rank quick,
QUICK_S: Final = 1.0
_SELDOM: Final = 0.02  # unless more than this share of them is longer.
_WINDOW: Final = 512


@dataclass(slots=True)
class Phases:
    """The durations of each phase of the ranks of one node."""

    _durations: dict[str, deque[float]] = field(default_factory=dict)
    _rough: dict[str, deque[float]] = field(default_factory=dict)  # The start or the first step is in them: they count until something better is known.
    _quick: int = 0
    _slow: int = 0

    def usual_s(self, phase: str) -> float:
        """Returns how long `phase` may last: the slowest in a hundred times a factor. The less often it was seen to end, the more generous."""
        seen = self._seen(phase)
        if not seen:
            return FIRST_S
        if len(seen) < KNOWN_AFTER:
            return max(FEW_S, 10 * max(seen))
        return max(FLOOR_S, FACTOR * self._slowest(phase))

    def late_after_s(self, phase: str) -> float:
        """Returns how long `phase` lasts at most as a rule: a rank that takes longer is worth a look."""
        return self._slowest(phase) if len(self._seen(phase)) >= KNOWN_AFTER else self.usual_s(phase) / FACTOR

    @property
    def quick(self) -> bool:
        """Whether many steps were short, and hardly any long."""
        return self._quick >= QUICK_STEPS and self._slow <= _SELDOM * self._quick

    def note(self, phase: str, seconds: float, *, times: int = 1, rough: bool = False) -> None:
        """Adds a phase that ended. Short steps pass by the dozen between two looks; a few of them are kept, so that the first seconds teach something. `rough`:
        the start of the script or its first step is in it."""
        if not phase or seconds <= 0:
            return
        kept = self._rough if rough else self._durations
        kept.setdefault(phase, deque(maxlen=_WINDOW)).extend([seconds] * min(times, KNOWN_AFTER))
        if phase == "step" and seconds <= QUICK_S:
            self._quick += times
        elif phase == "step" and not rough:
            self._slow += times

    def seen(self, phase: str) -> bool:
        return bool(self._seen(phase))

    def learned(self) -> dict[str, list[float]]:
        """Returns all durations, for an agent that takes over from this one."""
        return {phase: list(seen) for phase, seen in sorted(self._durations.items())}

    def learn(self, learned: Mapping[str, Sequence[float]]) -> None:
        for phase, seen in learned.items():
            self._durations.setdefault(phase, deque(maxlen=_WINDOW)).extend(seen)

    def _slowest(self, phase: str) -> float:
        """The slowest in a hundred."""
        ordered = sorted(self._seen(phase))
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else float("inf")

    def _seen(self, phase: str) -> Sequence[float]:
        known = self._durations.get(phase, ())
        return known if len(known) >= KNOWN_AFTER else (*known, *self._rough.get(phase, ()))
