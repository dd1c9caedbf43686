"""Gradient: its norm explodes, or all but vanishes, against what it was in this run.

Sees        the mean norm since the last look, once a second.
Says        `gradient_explosion` when for `looks` looks it is `up` times the usual and far above all it ever was; `gradient_vanishing` when for ten times as
            long it is below a `down`-th of the usual. Each stands until the norm is back within half the way, as factors go.
            What was told is not part of what ever was: the next explosion is told as well.
Is silent   during the first `history` looks, and without a reported norm.
Is wrong    after a deliberate change (another loss, unfrozen layers): it is told, and stands.
Costs       one median over some hundred numbers, a second.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import median

from holdfast.domain.finding import Finding, Severity


@dataclass(slots=True)
class Gradient:
    looks: int = 5
    history: int = 60
    up: float = 20.0
    down: float = 1000.0
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=600))
    _standing: Finding | None = None
    _usual: float = 0.0
    _back: int = 0  # Looks in a row at which it was.

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, norm: float, now: float) -> None:
        """Take one look's number. An infinite norm says nothing: a loss scaler works with them."""
        if not isfinite(norm):
            return
        if self._standing is not None:
            self._end_if_back(norm)
            return
        self._seen.append(norm)
        if len(self._seen) >= self.history + self.looks:
            self._judge(now)

    def _judge(self, now: float) -> None:
        every = list(self._seen)
        before, lately = every[: -self.looks], every[-self.looks :]
        self._usual = median(before)
        if self._usual <= 0:
            return
        if min(lately) > max(self.up * self._usual, 3 * max(before)):
            self._standing = self._say("gradient_explosion", Severity.CRITICAL, median(lately), now)
        elif len(before) >= 10 * self.looks and max(every[-10 * self.looks :]) < median(before[: -9 * self.looks]) / self.down:
            self._usual = median(before[: -9 * self.looks])
            self._standing = self._say("gradient_vanishing", Severity.WARNING, median(lately), now)

    def _end_if_back(self, norm: float) -> None:
        self._back = self._back + 1 if self._usual / sqrt(self.down) < norm < self._usual * sqrt(self.up) else 0
        if self._back >= self.looks:
            self._standing = None

    def _say(self, kind: str, severity: Severity, level: float, now: float) -> Finding:
        for _ in range(self.looks if kind == "gradient_explosion" else 10 * self.looks):
            self._seen.pop()
        self._back = 0
        because = f"the norm of the gradient is {level:.3g}, where {self._usual:.3g} was usual"
        return Finding(kind=kind, since=now - self.looks, severity=severity, because=because)
