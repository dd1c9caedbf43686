"""A rate of failures, and how well it is known: a Gamma distribution, which is what is left to believe after failures were counted for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Failures a second: as much is known as `failures` in `watched_s` say. (A Gamma distribution, shape and rate.)"""

    failures: float
    watched_s: float

    @property
    def mean(self) -> float:
        return self.failures / self.watched_s

    def quantile(self, share: float) -> float:
        return gamma_quantile(self.failures, share) / self.watched_s

    def points(self) -> list[tuple[float, float]]:
        """The distribution as few pairs of weight and rate: the means of slices, so that the mean of all is exact, and any cost linear in the rate too.

        Slices become thinner towards high rates, where the cost bends: each pair of them has half the weight of the pair before.
        """
        edges = [-math.expm1(-math.log(2.0) * half / 2.0) for half in range(25)]
        below = [gamma_share(self.failures + 1.0, gamma_quantile(self.failures, edge)) for edge in edges]  # Share of the mean, not of the weight.
        slices = zip(edges, [*edges[1:], 1.0], below, [*below[1:], 1.0], strict=True)
        return [(high - low, self.mean * (more - less) / (high - low)) for low, high, less, more in slices]


def believed(*, prior: float, per_s: float, failures: float, service_s: float) -> Rate:
    """What to believe of one node of a fleet that fails at `per_s`: what is known of the fleet counts as much as `prior` failures of its own would."""
    return Rate(failures=prior + failures, watched_s=prior / per_s + service_s)


def gamma_share(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(shape, x): the share of a Gamma distribution below x, in units of its scale."""
    if x <= 0.0:
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1.0:  # The series x^n / (shape (shape + 1) … (shape + n)).
        term = total = 1.0 / shape
        count = shape
        while term > total * 1e-17:
            count += 1.0
            term *= x / count
            total += term
        return front * total
    # The continued fraction of the share above x, from the front (Lentz).
    base = x + 1.0 - shape
    ratio, under = 1e300, 1.0 / base
    total = under
    for count in range(1, 10_000):
        part = count * (shape - count)
        base += 2.0
        under = 1.0 / (base + part * under)
        ratio = base + part / ratio
        total *= under * ratio
        if abs(under * ratio - 1.0) < 1e-16:
            break
    return 1.0 - front * total


def gamma_quantile(shape: float, share: float) -> float:
    """The x with gamma_share(shape, x) = share, by bisection on a log scale that becomes Newton's method as soon as that stays inside."""
    if share <= 0.0:
        return 0.0
    # Below x, P is less than x^shape / Γ(shape + 1): so the x at which that reaches the share lies below the quantile.
    low = (math.log(share) + math.lgamma(shape + 1.0)) / shape
    if low < -700.0:
        return 0.0  # Less than a float can tell from nothing.
    high = max(low, math.log(shape)) + 1.0
    while gamma_share(shape, math.exp(high)) < share:
        low, high = high, high + 1.0
    guess = low
    for _ in range(100):
        x = math.exp(guess)
        off = gamma_share(shape, x) - share
        low, high = (low, guess) if off > 0.0 else (guess, high)
        slope = math.exp(shape * guess - x - math.lgamma(shape))  # Of the share over log x.
        following = guess - off / slope if slope else math.inf
        following = following if low < following < high else (low + high) / 2.0
        if abs(following - guess) < 1e-14 * max(1.0, abs(guess)):
            break
        guess = following
    return math.exp(guess)
