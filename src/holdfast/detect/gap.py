"""Gap: the validation loss rises while the training loss goes on falling. What is learned now is no longer of use.

Sees        the training loss once a second, and the validation loss whenever there is a new one.
Says        `gap` when the validation loss has turned: it was lowest some `points` validations ago or more, has risen since beyond its own noise and by a
            share of all it had gained, and the training loss has fallen meanwhile, both surely. It stands until half of the rise is gone.
Is silent   with fewer than `history` validations; about one bad validation, and about both losses rising, which is no gap (the loss detector sees that).
Is wrong    where a second fall follows the rise (double descent), and where the validation loss rises as the model grows sure of itself while what is asked
            of it (accuracy) still improves.
Misses      a validation that is worse than training from the start and stays as it is.
Costs       some thousand comparisons a validation; 64 rows of memory, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from holdfast.detect.blocks import Blocks, Floats, leaning, noise
from holdfast.domain.finding import Finding, Severity

_SURE = 2.0  # Standard deviations.
_NOISES = 4.0
_SHARE = 0.1  # Of what the validation loss had gained,
_OF_LOWEST = 0.02  # and of its lowest value.


@dataclass(slots=True)
class Gap:
    """One job's losses, over all its generations."""

    history: int = 8
    points: int = 4
    _blocks: Blocks = field(default_factory=lambda: Blocks(2))
    _training: float = 0.0  # Sum and number since the last validation.
    _looks: int = 0
    _last: float = float("nan")
    _standing: Finding | None = None
    _passes_below: float = 0.0

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, training: float, validation: float, now: float) -> None:
        """Take one look's numbers. The same validation loss as at the last look is the same validation."""
        if isfinite(training):
            self._training += training
            self._looks += 1
        if not isfinite(validation) or validation == self._last or not self._looks:
            return
        self._last = validation
        whole = self._blocks.take((self._training / self._looks, validation))
        self._training, self._looks = 0.0, 0
        if whole and len(self._blocks) >= self.history:
            self._judge(now)

    def _judge(self, now: float) -> None:
        training, validation = self._blocks.rows.T
        smooth = _medians_of_three(validation)
        if self._standing is not None:
            if smooth[-1] < self._passes_below:
                self._standing = None
            return
        best = int(smooth.argmin())
        since = len(smooth) - 1 - best
        lowest = float(smooth[best])
        level = float(np.median(validation[-min(self.points, max(1, since)) :]))
        needed = max(_NOISES * noise(validation[: best + 1]), 2 * noise(validation[best:]), _SHARE * (float(smooth[0]) - lowest), _OF_LOWEST * abs(lowest))
        turned = since >= self.points and level - lowest > needed and leaning(validation[best:]) > _SURE and leaning(training[best:]) < -_SURE
        if turned:
            self._passes_below = lowest + 0.5 * (level - lowest)
            self._standing = self._say(training, lowest, level, best, now)

    def _say(self, training: Floats, lowest: float, level: float, best: int, now: float) -> Finding:
        ago = (len(training) - 1 - best) * self._blocks.per
        fell = f"the training loss fell from {training[best]:.4g} to {training[-1]:.4g}"
        return Finding(
            kind="gap", since=now, severity=Severity.WARNING,
            because=f"the validation loss was lowest {ago} validations ago at {lowest:.4g} and has risen to {level:.4g}, while {fell}",
            evidence=("the checkpoint nearest to the lowest validation loss is likely the best one there is",),
        )  # fmt: skip


def _medians_of_three(values: Floats) -> Floats:
    """Each with its neighbours, so that one lucky validation is not the best there ever was."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    return np.asarray(np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0))
