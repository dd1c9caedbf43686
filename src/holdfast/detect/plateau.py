"""Plateau: a number that came down well and then, for half of the run, no further than its own noise.

Sees        the training loss, or the number the job has a target for, with the learning rate and the share of the run that is done, once a second.
Says        `plateau` when over the last `share` of the run so far nothing points down: neither a trend that chance would not give, nor more than `less` of
            all progress. Worth knowing, and no more; with a target that is not reached, a warning. It stands until the number falls again beyond its noise.
Is silent   during the first `history` looks, and as long as what is flat is less than `part` of the whole run, where its length is known. As long as means
            over parts of the run still differ by `fine` of all progress from one to the next: then it cannot be told. Without a target: about what never
            came down (an adversarial game, reinforcement learning), what is all but learned, and while the learning rate moves: a schedule is at work then.
Is wrong    when the next step of a schedule would have moved it: it says what is so, not what comes.
Misses      a loss that falls so slowly that half a run of it is more than noise: that is progress.
Costs       some 500 comparisons whenever a block is whole, at most one look in 32 of the run so far; 64 rows of memory, however long the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from holdfast.detect.blocks import Blocks, Floats, leaning, noise
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.job import MET_LOOKS, Target

_COME_DOWN = 0.3  # Of the first value.
_LEARNED = 0.05  # Of the first value: there is not much more to come down.
_MOVES = 1.01  # A learning rate that is so many times what it was has a schedule.
_FALLS, _FALLS_AGAIN = -1.0, -3.0  # Standard deviations: a plateau has not even a hint of falling; what ends one is sure.


@dataclass(slots=True)
class Plateau:
    """One job's number, over all its generations."""

    target: Target | None = None
    name: str = "the loss"
    share: float = 0.5
    part: float = 0.25
    less: float = 0.01
    fine: float = 0.005
    history: int = 600
    _blocks: Blocks = field(default_factory=lambda: Blocks(2))  # The number, and the learning rate.
    _first: list[float] = field(default_factory=list)
    _lowest: float = float("inf")
    _count: int = 0
    _met: int = 0
    _reached: bool = False
    _standing: Finding | None = None

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, value: float, learning_rate: float, progress: float, now: float) -> None:
        """Take one look's numbers. The learning rate and the share of the run that is done are NaN when they are not known."""
        if not isfinite(value):
            return
        if self.target is not None:
            self._met = self._met + 1 if self.target.is_met_by(value) else 0
            self._reached = self._reached or self._met >= MET_LOOKS
            value = value if self.target.below else -value
        self._count += 1
        if len(self._first) < 5:
            self._first.append(value)
        if self._blocks.take((value, learning_rate if isfinite(learning_rate) else 0.0)):
            self._lowest = min(self._lowest, float(self._blocks.rows[-1, 0]))
            if self._reached:
                self._standing = None
            elif self._standing is not None:
                self._end_if_falling()
            elif self._count >= self.history and not self.share * progress < self.part:
                self._judge(now)

    def _judge(self, now: float) -> None:
        flat, rates = self._blocks.rows[-round(self.share * len(self._blocks)) :].T
        start = float(np.median(self._first))
        progress = start - self._lowest
        scale = progress if self.target is None else max(progress, _COME_DOWN * abs(start))
        if len(flat) < 12 or leaning(flat) < _FALLS or _fell(flat) > self.less * scale or noise(flat) > self.fine * scale:
            return
        level = float(np.median(flat))
        learned = progress > _COME_DOWN * abs(start) and abs(level) > _LEARNED * abs(start)
        if self.target is not None or (learned and rates.max() <= _MOVES * rates.min()):
            self._standing = self._say(flat, level, now)

    def _end_if_falling(self) -> None:
        rows = self._blocks.rows[:, 0]
        lately = rows[-max(12, len(rows) // 4) :]
        if leaning(lately) < _FALLS_AGAIN and _fell(lately) > self.less * (float(np.median(self._first)) - self._lowest):
            self._standing = None

    def _say(self, flat: Floats, level: float, now: float) -> Finding:
        looks = self._blocks.per * len(flat)
        shown = level if self.target is None or self.target.below else -level
        wanted = f"; the target is {self.target}" if self.target is not None else ""
        return Finding(
            kind="plateau", since=now - looks, severity=Severity.INFO if self.target is None else Severity.WARNING,
            because=f"{self.name} has not improved beyond its noise over the last {self.share:.0%} of the run: it is {shown:.4g}{wanted}",
            evidence=(f"{len(flat)} means of {self._blocks.per} looks, {flat.min():.4g} to {flat.max():.4g}; one differs from the next by {noise(flat):.2g}",),
        )  # fmt: skip


def _fell(values: Floats) -> float:
    """From the first third to the last."""
    third = max(1, len(values) // 3)
    return float(np.median(values[:third]) - np.median(values[-third:]))
