"""Slow job: steps take longer than they used to, and it lasts.

Sees        how long a step takes, the slowest rank's, once a second; and how much of it is data, communication and save.
Says        `slow_job` when the median of the last `recent` looks is `on` times the one of the looks before them; or, when one part of the step makes most of
            the difference, what it is: `data_stall`, `slow_communication`, `slow_save`. It stands until half of the difference is gone.
Is silent   during the first `history` looks, of which it learns; about a step that was long once; about what was always so.
Is wrong    when the work of a step grows by design (longer sequences, a larger batch). After `forget_s` the new pace is the usual one.
Misses      what grows by less than the factor, and what was slow from the start; and what begins within `history` looks after the last time was over, since
            it learns anew then.
Costs       two medians over a few hundred numbers, a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from holdfast.domain.finding import Finding, Severity

_NAMES = {"data": "data_stall", "communication": "slow_communication", "save": "slow_save"}
_SAYS = {"data_stall": "waiting for data", "slow_communication": "waiting for other ranks", "slow_save": "saving"}


@dataclass(slots=True)
class SlowJob:
    """One generation's pace; the next one is learned anew."""

    recent: int = 15
    history: int = 60
    on: float = 1.3
    forget_s: float = 1800.0
    _looks: deque[tuple[float, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=300))  # A step's seconds, and those of its parts.
    _usual: float = 0.0
    _standing: Finding | None = None

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, step_s: float, parts: Mapping[str, float], now: float) -> None:
        """Take one look's numbers. `parts` are the seconds of data, communication and save within a step."""
        self._looks.append((step_s, parts))
        if len(self._looks) < self.recent + self.history:
            return
        steps = [seconds for seconds, _ in self._looks]
        lately = median(steps[-self.recent :])
        if self._standing is not None:
            passed = lately < self._usual * (1 + (self.on - 1) / 2)
            if passed or now - self._standing.since > self.forget_s:
                self._standing = None
                self._looks.clear()  # What was slow is no part of what is usual.
        else:
            before = steps[: -self.recent]
            self._usual = median(before)
            spread = median(abs(one - self._usual) for one in before)
            if lately > max(self._usual * self.on, self._usual + 6 * spread):
                self._standing = self._say(lately, now)

    def _say(self, lately: float, now: float) -> Finding:
        """Told by the slow ones of the recent looks: the first of those were as usual, or half and half."""
        slow = [look for look in list(self._looks)[-self.recent :] if look[0] >= (lately + self._usual) / 2]
        step_s = median(seconds for seconds, _ in slow)
        grown = self._grown([parts for _, parts in slow])
        worst = max(grown, key=lambda name: grown[name], default="")
        kind = _NAMES[worst] if worst and grown[worst] > 0.6 * (step_s - self._usual) else "slow_job"
        where = f", and {1000 * grown[worst]:.0f} ms of that is {_SAYS[kind]}" if kind in _SAYS else ""
        return Finding(
            kind=kind, since=now - self.recent, severity=Severity.WARNING,
            because=f"a step takes {1000 * step_s:.0f} ms, {step_s / self._usual:.1f} times as long as the {1000 * self._usual:.0f} ms it used to{where}",
            evidence=tuple(f"{name}: {1000 * seconds:+.1f} ms a step" for name, seconds in sorted(grown.items())), adds_s=step_s - self._usual,
        )  # fmt: skip

    def _grown(self, slow: list[Mapping[str, float]]) -> dict[str, float]:
        """By how much each part is longer than it used to be."""
        before = [parts for _, parts in list(self._looks)[: -self.recent]]
        return {name: _middle(slow, name) - _middle(before, name) for name in _NAMES if all(any(name in one for one in of) for of in (slow, before))}


def _middle(parts: list[Mapping[str, float]], name: str) -> float:
    return median(one[name] for one in parts if name in one)
