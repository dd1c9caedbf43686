"""Growth: memory that a rank takes more of with every step, told from memory that was never enough.

Sees        what a rank holds, with the steps it has done, a few times a second.
Says        a leak: by how much it grows with each step, when three quarters of what was seen rise steadily, do not flatten, and are a tenth of all.
Is wrong    when something grows up to a size (a cache, samples that become longer): it is told as a leak, and starting again does not bring the job further.
Misses      leaks of scripts that say no steps, a leak that fills all there is within eight looks, and one that is less than what comes and goes in a step.
Costs       a comparison a look; at most 64 looks are kept, spaced out evenly over the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Final

from holdfast.domain.resources import size

_KEPT: Final = 64
_LOOKS: Final = 8  # At least, and after what is left out.
_WARM_UP: Final = 4  # The first quarter is left out: caches fill, allocators find their size.
_STEADY: Final = 0.9  # Of the pairs of points half of all apart, so many rise.
_SHARE: Final = 0.1  # Of what is held at the end, so much has come.


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that grows and grows."""

    rate: float  # Bytes a step.
    steps: int
    before: int
    now: int

    def __str__(self) -> str:
        return f"memory grew by {_words(self.rate)} a step over {self.steps} steps, from {_words(self.before)} to {_words(self.now)}"


@dataclass(slots=True)
class Growth:
    """One kind of memory of one rank."""

    _points: list[tuple[int, int]] = field(default_factory=list)
    _last: tuple[int, int] = (-1, 0)
    _spacing: float = 0.0  # The fewest steps from one point to the next.

    def look(self, step: int, held: int) -> None:
        """A look at which no step was done since the last says nothing new."""
        if step <= self._last[0]:
            return
        self._last = (step, held)
        if self._points and step - self._points[-1][0] < self._spacing:
            return
        self._points.append(self._last)
        if len(self._points) == _KEPT:
            self._points = self._points[::2]
            self._spacing = 2 * (self._points[-1][0] - self._points[0][0]) / _KEPT

    def leak(self) -> Leak | None:
        """Whether what is held now came by growing."""
        points = self._points if not self._points or self._points[-1] == self._last else [*self._points, self._last]
        points = points[len(points) // _WARM_UP :]
        if len(points) < _LOOKS:
            return None
        half = len(points) // 2
        slopes = [(later[1] - sooner[1]) / (later[0] - sooner[0]) for sooner, later in zip(points, points[half:], strict=False)]
        (first, before), (middle, between), (last, now) = points[0], points[half], points[-1]
        flattens = (now - between) / (last - middle) < 0.5 * (between - before) / (middle - first)
        if sum(slope > 0 for slope in slopes) < _STEADY * len(slopes) or flattens or now - before < _SHARE * now:
            return None
        return Leak(rate=median(slopes), steps=last - first, before=before, now=now)


def _words(number_bytes: float) -> str:
    return size(round(number_bytes / 1e5) * 100_000) if number_bytes >= 1e6 else f"{number_bytes / 1e3:.3g} kB"
