"""What each account has used, forgotten by half in every half-life, and what it is charged for what runs.

Use grows at the rate of the GPUs that run (times the factor of their class) and decays; both have a closed form, so an account is brought up to date only when
somebody looks. A job that starts is charged `entry_s` ahead at once, on every level, and that charge goes when it ends: many starts in one cycle cannot all
come from the user who had used least, and a job that ends early pays for what it used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Usage:
    """GPU-seconds by account. Time never goes back: an earlier `now` counts as the latest one seen."""

    def __init__(self, *, half_life_s: float, entry_s: float) -> None:
        self._decay = math.log(2) / half_life_s
        self._entry_s = entry_s
        self._used: list[float] = []
        self._rate: list[float] = []
        self._at: list[float] = []

    def grow(self, accounts: int) -> None:
        """Room for so many accounts; new ones have used nothing."""
        for values in (self._used, self._rate, self._at):
            values += [0.0] * (accounts - len(values))

    def used(self, account: int, now: float) -> float:
        """Decayed GPU-seconds, without the entry charge."""
        kept = math.exp(-self._decay * max(0.0, now - self._at[account]))
        return self._used[account] * kept + self._rate[account] * (1.0 - kept) / self._decay

    def charged(self, account: int, now: float) -> float:
        """What the order goes by: what was used, and the entry charge of what runs."""
        return self.used(account, now) + self._rate[account] * self._entry_s

    def change(self, accounts: Iterable[int], rate: float, now: float) -> None:
        """From now on these use so much more, or less."""
        for account in accounts:
            self._used[account] = self.used(account, now)
            self._at[account] = max(now, self._at[account])
            changed = self._rate[account] + rate
            self._rate[account] = changed if abs(changed) > 1e-9 else 0.0

    def add(self, accounts: Iterable[int], amount: float, now: float) -> None:
        """These have used so much more, all at once."""
        for account in accounts:
            self._used[account] = self.used(account, now) + amount
            self._at[account] = max(now, self._at[account])
