"""Rates: how often something fails, from how often it was seen to, and between which limits the true rate lies.

Sees        how many failures, in how long. As many GPUs as were watched count as much as the time they were watched.
Says        the rate, and its exact interval (Garwood 1936): the lowest and the highest rate that do not make what was seen a rarity.
Is wrong    when failures come in bursts, or from a few bad nodes: the interval is then too narrow. When the count was looked at because it was high.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.rate import gamma_quantile

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Failures counted while `gpus` were watched for `over_s`. State whose clock it is: here it is always the wall's."""

    failures: float
    over_s: float
    gpus: int
    counted: bool = True  # Else it is a rate that somebody gave, and has no limits but itself.

    def per_s(self, gpus: int) -> float:
        """Of a job on so many GPUs: each GPU brings its share."""
        return self.failures / self.over_s * gpus / self.gpus

    def limits_per_s(self, gpus: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
        low, high = count_limits(self.failures, confidence=confidence) if self.counted else (self.failures, self.failures)
        scale = gpus / self.gpus / self.over_s
        return low * scale, high * scale


def count_limits(failures: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Between which means a count of `failures` is no surprise. Of none seen, only the upper limit says something, and it has the whole confidence."""
    if failures <= 0.0:
        return 0.0, gamma_quantile(1.0, confidence)
    tail = (1.0 - confidence) / 2.0
    return gamma_quantile(failures, tail), gamma_quantile(failures + 1.0, 1.0 - tail)


def given(mean_s: float, gpus: int) -> Seen:
    """A mean time between failures that somebody gave as such."""
    return Seen(failures=1.0, over_s=mean_s, gpus=gpus, counted=False)
