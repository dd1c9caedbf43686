"""What each account, and each job, has used, forgotten by half in every half-life, and what it is charged for what runs.

Use grows at the rate of the GPUs that run (times the factor of their class) and decays; both have a closed form, so an account is brought up to date only when
somebody looks. A job that starts is charged `entry_s` ahead at once, on every level, and that charge goes when it ends: many starts in one cycle cannot all
come from the user who had used least, and a job that ends early pays for what it used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Meter:
    """GPU-seconds of an account, or of a job. Time never goes back: an earlier `now` counts as the latest one seen."""

    __slots__ = ("_at", "_decay", "_used", "rate")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._used = self._at = 0.0
        self.rate = 0.0  # GPUs that run now.

    def used(self, now: float) -> float:
        """Decayed."""
        kept = math.exp(-self._decay * max(0.0, now - self._at))
        return self._used * kept + self.rate * (1.0 - kept) / self._decay

    def change(self, rate: float, now: float) -> None:
        """From now on so much more is used, or less."""
        self.add(0.0, now)
        changed = self.rate + rate
        self.rate = changed if abs(changed) > 1e-9 else 0.0

    def add(self, amount: float, now: float) -> None:
        """So much more was used, all at once."""
        self._used = self.used(now) + amount
        self._at = max(now, self._at)


class Usage:
    """A meter for each account."""

    def __init__(self, *, half_life_s: float, entry_s: float) -> None:
        self._decay = math.log(2) / half_life_s
        self._entry_s = entry_s
        self._meters: list[Meter] = []

    def meter(self) -> Meter:
        """A new one, which forgets as all of them do."""
        return Meter(self._decay)

    def grow(self, accounts: int) -> None:
        """Room for so many accounts; new ones have used nothing."""
        self._meters += [self.meter() for _ in range(accounts - len(self._meters))]

    def used(self, account: int, now: float) -> float:
        """Decayed GPU-seconds, without the entry charge."""
        return self._meters[account].used(now)

    def charged(self, account: int, now: float) -> float:
        """What the order goes by: what was used, and the entry charge of what runs."""
        meter = self._meters[account]
        return meter.used(now) + meter.rate * self._entry_s

    def change(self, accounts: Iterable[int], rate: float, now: float) -> None:
        """From now on these use so much more, or less."""
        for account in accounts:
            self._meters[account].change(rate, now)

    def add(self, accounts: Iterable[int], amount: float, now: float) -> None:
        """These have used so much more, all at once."""
        for account in accounts:
            self._meters[account].add(amount, now)
