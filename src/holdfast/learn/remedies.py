"""Remedies: which rung worked against which cause, how often, and what it cost. What recovery chooses by is made here; how it chooses is in `recover/`.

Counted for each cause and, within it, for each fingerprint; a first try apart from one that follows a failed one in the same incident. Decayed, and at most
`ROWS` rows: those with the most behind them. A rung that was never tried has no row; recovery then believes what it believed before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.domain.learned import Remedy
from holdfast.domain.past import PastIncident
from holdfast.learn.decay import DAY_S, weight

HALF_LIFE_S: Final = 30 * DAY_S
ROWS: Final = 64
LEAST: Final = 0.05  # Decayed tries below which a row says nothing any more.

Key = tuple[str, str, str, bool]  # Cause, fingerprint, rung, again.


@dataclass(slots=True)
class _Sum:
    worked: float = 0.0
    failed: float = 0.0
    worked_s: float = 0.0
    failed_s: float = 0.0

    def add(self, worked: bool, cost_s: float, heavy: float) -> None:
        if worked:
            self.worked += heavy
            self.worked_s += heavy * cost_s
        else:
            self.failed += heavy
            self.failed_s += heavy * cost_s


def remedies(past: Iterable[PastIncident], now: float, half_life_s: float = HALF_LIFE_S) -> tuple[Remedy, ...]:
    """The table, by cause, fingerprint and rung. The order of `past` does not matter."""
    sums: dict[Key, _Sum] = {}
    for incident in sorted(past, key=lambda one: (one.opened_at, one.job, one.number)):
        heavy = weight(incident.opened_at, now, half_life_s)
        for place, tried in enumerate(incident.remedies):
            for fingerprint in {"", incident.fingerprint}:
                sums.setdefault((incident.cause, fingerprint, tried.rung, place > 0), _Sum()).add(tried.worked, tried.cost_s, heavy)
    rows = [_row(key, one) for key, one in sums.items() if one.worked + one.failed >= LEAST]
    heaviest = sorted(rows, key=lambda row: (bool(row.fingerprint), -(row.worked + row.failed), row.cause, row.fingerprint, row.rung, row.again))[:ROWS]
    return tuple(sorted(heaviest, key=lambda row: (row.cause, row.fingerprint, row.rung, row.again)))


def _row(key: Key, one: _Sum) -> Remedy:
    cause, fingerprint, rung, again = key
    return Remedy(
        cause=cause, fingerprint=fingerprint, rung=rung, again=again, worked=one.worked, failed=one.failed,
        worked_s=one.worked_s / one.worked if one.worked else 0.0, failed_s=one.failed_s / one.failed if one.failed else 0.0,
    )  # fmt: skip
