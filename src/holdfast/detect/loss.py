"""Loss: a jump that undoes what was learned, or that nothing in the run's own past is like.

Sees        the mean loss since the last look, and the learning rate, once a second.
Says        `loss_jump` once the loss has stood high for `looks` looks; it stands until half of the jump is gone again and it is not high any more. High means,
            for a run that has clearly come down, to less than half of its first loss: it lost `share` of all its progress within a minute. For one that has
            not (an adversarial game, reinforcement learning): it is as far above everything it ever was as twice its whole range. Both times also many times
            its own noise.
Is silent   during the first `history` looks. About rises that follow a rise of the learning rate (warm restarts), unless they go far above the first loss.
            About one bad batch: it does not last. About a jump of which half is gone again already (a learning rate at the edge of what is stable),
            unless it is far above the first loss.
Is wrong    when the task itself changes (another data set halfway): that is a jump, and may be meant.
Misses      a slow rise. The detector for one number over time sees that, and says less about it.
Costs       a few medians over a hundred numbers, a second.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median

from holdfast.domain.finding import Finding

_MINUTE = 60
_COME_DOWN = 0.5  # Of the first loss. The judge of an adversarial game comes down by a quarter or a third, and goes back to where it was.
_BEYOND = 3.0  # Of the progress. What is so far above the first loss has blown up, and is told even as it comes back.


@dataclass(slots=True)
class LossJump:
    """One job's loss, over all its generations."""

    looks: int = 5
    history: int = 60
    share: float = 0.7
    noises: float = 8.0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=2 * _MINUTE))
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=2 * _MINUTE))
    _steps: deque[int] = field(default_factory=lambda: deque(maxlen=2 * _MINUTE))
    _first: list[float] = field(default_factory=list)
    _count: int = 0
    _lowest: float = float("inf")  # Of the medians of `looks` looks, up to a few looks ago.
    _highest: float = float("-inf")
    _standing: Finding | None = None
    _passes_below: float = 0.0

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, loss: float, learning_rate: float, now: float, step: int = -1) -> None:
        """Take one look's numbers. `learning_rate` is NaN when it is not known, `step` is the last one that is in them, -1 when that is not known."""
        if not isfinite(loss):
            return
        self._recent.append(loss)
        self._rates.append(learning_rate)
        self._steps.append(step)
        self._count += 1
        if len(self._first) < self.looks:
            self._first.append(loss)
        if self._count <= 2 * self.looks:
            return
        every = list(self._recent)
        level = median(every[-self.looks :])
        if self._standing is not None:
            if level < self._passes_below:
                self._standing = None
        elif self._count >= self.history:
            self._judge(every, level, now)
        if self._standing is None and len(every) > 3 * self.looks:
            known = median(every[-3 * self.looks : -2 * self.looks])
            self._lowest, self._highest = min(self._lowest, known), max(self._highest, known)

    def _judge(self, every: list[float], level: float, now: float) -> None:
        before = every[: -2 * self.looks]
        if len(before) < 4 * self.looks:
            return
        usual, noise = median(before[-_MINUTE:]), _noise(before)
        start = median(self._first)
        progress = start - self._lowest
        falling = progress > max(10 * noise, _COME_DOWN * abs(start))
        if falling:
            limit = self._lowest + self.share * progress
            if self._rate_rose():
                limit = start + 0.5 * progress
        else:
            limit = self._highest + 2 * (self._highest - self._lowest)
        lately = every[-self.looks :]
        sudden = min(lately) > max(limit, usual + self.noises * noise)
        passing = every[-1] < usual + 0.5 * (max(every[-self.looks - 2 :]) - usual) and level < start + _BEYOND * progress
        if sudden and not passing and (falling or self._count >= 2 * self.history):
            lost = f"{(level - self._lowest) / progress:.0%} of all its progress is lost" if falling else "it was never near that before"
            self._passes_below = min(limit, usual + 0.5 * (level - usual))
            first = next(place for place in range(-self.looks, 0) if min(every[place:]) > usual + self.noises * noise)
            self._standing = Finding(
                kind="loss_jump", since=now - self.looks, step=self._steps[first], sound=self._steps[first - 1],
                because=f"the loss jumped from {usual:.4g} to {level:.4g}: {lost}",
                evidence=(f"first {start:.4g}, lowest {self._lowest:.4g}, noise from one second to the next {noise:.2g}",),
            )  # fmt: skip

    def _rate_rose(self) -> bool:
        known = [rate for rate in self._rates if isfinite(rate) and rate > 0]
        return len(known) > 1 and known[-1] > 1.5 * min(known)


def _noise(values: list[float]) -> float:
    """How much one look differs from the next, which no trend hides; nor does a jump before it, since nothing here is a mean."""
    steps = [abs(later - earlier) for earlier, later in pairwise(values)]
    return max(1e-12, 1e-4 * abs(median(values)), median(steps))
