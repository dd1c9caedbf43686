"""Hopelessly slow: the job moves, and so slowly that it will not end within any time that is of use.

Sees        how long a step takes, with its parts, and how long the job has been run and would still need, once a second.
Says        `hopelessly_slow` when for `lasts_s` nearly every step took `on` times as long as usual and the rest of the job would take over `worth_s` more at
            that pace; or, where a time was allowed, when at its pace the job will need `beyond` times that, for as long. It names the part of the step that
            grew most. It stands until half of the pace is back.
Is silent   until a pace was seen for `history` looks; about a job that stands still, which is a hang; where nobody says how much there is to do.
Is wrong    when steps become many times longer by design (much longer sequences, a larger batch): what is usual is the best quarter of the whole run, and
            that is never forgotten.
Misses      what is slow from the start and was allowed no time: nothing says that it could be faster.
Costs       two quantiles over a few hundred numbers, every `every` looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from holdfast.detect.blocks import Blocks
from holdfast.domain.finding import Finding, Severity

_PARTS = ("data", "compute", "communication", "save")
_WORDS = {"data": "waiting for data", "communication": "waiting for other ranks", "save": "saving", "compute": "computing"}
_LOOKS_MIN = 20


@dataclass(slots=True)
class HopelesslySlow:
    """One job's pace, over all its generations."""

    allowed_s: float | None = None
    on: float = 5.0
    beyond: float = 3.0
    lasts_s: float = 600.0
    worth_s: float = 3600.0
    history: int = 300
    every: int = 10
    _usual: Blocks = field(default_factory=lambda: Blocks(1 + len(_PARTS)))
    _recent: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=900))
    _count: int = 0
    _late_since: float | None = None  # That the job needs many times what was allowed.
    _standing: Finding | None = None

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, step_s: float, parts: Mapping[str, float], *, elapsed_s: float, needs_s: float | None, now: float) -> None:
        """Take one look's numbers. `needs_s` is how long the job will have been run at its end; None when that is not known."""
        if not (isfinite(step_s) and step_s > 0):
            return
        row = (step_s, *(max(0.0, seconds) if isfinite(seconds := parts.get(name, 0.0)) else 0.0 for name in _PARTS))
        if self._recent and now < self._recent[-1][0]:
            self._recent.clear()  # What was said to be later than now says nothing about how long it lasts.
        while self._recent and now - self._recent[0][0] > 1.5 * self.lasts_s:
            self._recent.popleft()
        self._recent.append((now, *row))
        self._usual.take(row)
        self._count += 1
        if self._count % self.every == 0 and needs_s is not None and isfinite(needs_s):
            self._judge(elapsed_s, needs_s, now)

    def _judge(self, elapsed_s: float, needs_s: float, now: float) -> None:
        recent, usual_rows = np.array(self._recent)[:, 1:], self._usual.rows
        if self._count < self.history or len(recent) < _LOOKS_MIN or self._recent[-1][0] - self._recent[0][0] < self.lasts_s:
            return
        usual, quick, middle = float(np.quantile(usual_rows[:, 0], 0.25)), float(np.quantile(recent[:, 0], 0.1)), float(np.median(recent[:, 0]))
        left_s = needs_s - elapsed_s
        late = self.allowed_s is not None and needs_s > self.beyond * self.allowed_s
        self._late_since = (self._late_since if self._late_since is not None else now) if late else None
        slow = quick > self.on * usual and left_s > self.worth_s
        too_late = self._late_since is not None and now - self._late_since >= self.lasts_s
        if self._standing is not None:
            if middle < (1 + self.on) / 2 * usual and not late:
                self._standing = None
        elif slow or too_late:
            self._standing = self._say(recent, usual_rows, usual, middle, left_s, needs_s, now)

    def _say(self, recent: np.ndarray, usual_rows: np.ndarray, usual: float, middle: float, left_s: float, needs_s: float, now: float) -> Finding:
        best = usual_rows[usual_rows[:, 0] <= max(usual, usual_rows[:, 0].min())]
        grown = dict(zip(_PARTS, (np.median(recent[:, 1:], axis=0) - np.median(best[:, 1:], axis=0)).tolist(), strict=True))
        shares = dict(zip(_PARTS, (np.median(recent[:, 1:], axis=0) / middle).tolist(), strict=True))
        slower = middle > 1.5 * usual
        worst = max(grown, key=lambda name: grown[name]) if slower else max(shares, key=lambda name: shares[name])
        what = f"most of it {_WORDS[worst]}" if slower and grown[worst] > 0.3 * (middle - usual) else f"{shares[worst]:.0%} of it {_WORDS[worst]}"
        pace = f"a step takes {middle:.3g} s, {middle / usual:.1f} times as long as it did, {what}" if slower else f"a step takes {middle:.3g} s, {what}"
        allowed = f", where {self.allowed_s / 3600:.3g} h are allowed" if self.allowed_s is not None else ""
        return Finding(
            kind="hopelessly_slow", since=now - self.lasts_s, severity=Severity.CRITICAL,
            because=f"at this pace the job needs {left_s / 3600:.3g} h more, {needs_s / 3600:.3g} h in all{allowed}: {pace}",
            evidence=tuple(f"{name}: {1000 * seconds:+.0f} ms a step against the best quarter of the run" for name, seconds in grown.items()),
        )  # fmt: skip
