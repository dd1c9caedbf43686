"""What a condition is worth now, for all its series at once. Where a series has no value, nothing holds: not even `!=`."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.rules.rule import Aggregate, Compare, Condition, Function, Term
from holdfast.detect.series import Floats, Keys, Layout, Rings, Truths
from holdfast.domain.metric import Scope

PEERS_MIN = 3  # A median of fewer says little about who differs.
_NODE_BITS = ~0xFFFFFFFF  # What two series of one node have in common in their keys.
_WHOLE_JOB: Keys = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One entry for each subject, by ascending key."""

    keys: Keys
    values: Floats  # NaN where there is none.
    holds: Truths


@dataclass(slots=True)
class Conditions:
    """Works conditions out over the rings. What several rules ask is worked out once a look."""

    rings: Rings
    _now: float = 0.0
    _values: dict[Term, Floats] = field(default_factory=dict)
    _chosen: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Layout, NDArray[np.int64]]] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        self._now = now
        self._values.clear()
        self.rings.advance(now)

    def outcome(self, condition: Condition) -> Outcome:
        keys, values = self._subjects(condition)
        return Outcome(keys, values, _holds(condition, values))

    def _subjects(self, condition: Condition) -> tuple[Keys, Floats]:
        term, other = condition.term, condition.other
        layout = self.rings.layout(term.metric)
        keys, values = layout.keys, self._term(term)
        if condition.where:
            chosen = self._choose(term.metric, condition.where, layout)
            keys, values = keys[chosen], values[chosen]
        if term.function is Function.ABSENT:
            return _WHOLE_JOB, np.array([0.0 if np.any(values < term.window_s) else 1.0])
        if other is not None:
            against = matched(keys, self.rings.layout(other.metric).keys, self._term(other), other.scope if other.scope is not term.scope else None)
            values = _divided(values, against) if condition.operator == "/" else values - against
        return (keys, values) if condition.aggregate is Aggregate.EACH else _aggregated(condition, keys, values)

    def _choose(self, metric: str, where: tuple[tuple[str, str], ...], layout: Layout) -> NDArray[np.int64]:
        """Which of the metric's series the labels choose; looked at again when one came or went."""
        known = self._chosen.get((metric, where))
        if known is not None and known[0] is layout:
            return known[1]
        named = [self.rings.name(metric, int(key)) for key in layout.keys]
        fits = [all(fnmatchcase(one.node if label == "node" else one.of, pattern) for label, pattern in where) for one in named]
        chosen = np.flatnonzero(fits)
        self._chosen[metric, where] = (layout, chosen)
        return chosen

    def _term(self, term: Term) -> Floats:
        found = self._values.get(term)
        if found is None:
            found = self._values[term] = self._work_out(term)
        return found

    def _work_out(self, term: Term) -> Floats:
        rings, columns, window_s, now = self.rings, self.rings.layout(term.metric).columns, term.window_s, self._now
        if not len(columns):
            return np.empty(0)
        match term.function:
            case Function.LAST:
                return rings.newest(columns, window_s, now)
            case Function.MEAN:
                return rings.mean(columns, window_s)
            case Function.MIN:
                return rings.min(columns, window_s)
            case Function.MAX:
                return rings.max(columns, window_s)
            case Function.SUM | Function.INCREASE:
                return rings.sum(columns, window_s)
            case Function.RATE:
                return rings.sum(columns, window_s) / window_s
            case Function.COUNT:
                return rings.count(columns, window_s)
            case Function.QUANTILE:
                return rings.quantile(columns, window_s, term.argument)
            case Function.NOT_FINITE:
                return rings.is_not_finite(columns, window_s, now)
            case Function.STALE | Function.ABSENT:
                return rings.age_s(columns, now)
            case Function.WILL_REACH:
                slope, last = rings.slope(columns, window_s), rings.newest(columns, 60.0, now)
                left = _divided(term.argument - last, slope)
                return np.where(left >= 0, left, np.nan)


def matched(keys: Keys, others: Keys, values: Floats, scope: Scope | None) -> Floats:
    """For each key the value of the same subject, or of its node, or of its job; NaN where there is none."""
    if scope is None and len(keys) == len(others) and np.array_equal(keys, others):
        return values
    if not len(others):
        return np.full(len(keys), np.nan)
    wanted = keys if scope is None else keys & _NODE_BITS if scope is Scope.NODE else np.zeros_like(keys)
    place = np.minimum(np.searchsorted(others, wanted), len(others) - 1)
    return np.where(others[place] == wanted, values[place], np.nan)


def _divided(values: Floats, by: Floats) -> Floats:
    """What is divided by nothing has no value."""
    return np.asarray(np.divide(values, by, out=np.full(len(values), np.nan), where=by != 0), np.float64)


def _holds(condition: Condition, values: Floats) -> Truths:
    low, high = condition.low, condition.high
    match condition.compare:
        case Compare.ABOVE:
            holds = values > low
        case Compare.BELOW:
            holds = values < low
        case Compare.AT_LEAST:
            holds = values >= low
        case Compare.AT_MOST:
            holds = values <= low
        case Compare.EQUAL:
            holds = values == low
        case Compare.UNEQUAL:
            holds = (values != low) & ~np.isnan(values)
        case Compare.BETWEEN:
            holds = (values >= low) & (values <= high)
        case Compare.OUTSIDE:
            holds = (values < low) | (values > high)
    return np.asarray(holds, np.bool_)


def _aggregated(condition: Condition, keys: Keys, values: Floats) -> tuple[Keys, Floats]:
    if not len(keys):
        return keys, values
    groups = np.zeros_like(keys) if condition.by is Scope.JOB else keys & _NODE_BITS
    begins = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    there = ~np.isnan(values)
    number = np.add.reduceat(there, begins, dtype=np.int64)
    match condition.aggregate:
        case Aggregate.OVER_MEDIAN:
            return keys, _over_median(groups, begins, number, values)
        case Aggregate.MAX:
            made = np.fmax.reduceat(values, begins)
        case Aggregate.MIN:
            made = np.fmin.reduceat(values, begins)
        case Aggregate.SPREAD:
            made = np.fmax.reduceat(values, begins) - np.fmin.reduceat(values, begins)
        case Aggregate.COUNT:
            made = number.astype(np.float64)
        case _:
            made = np.add.reduceat(np.where(there, values, 0.0), begins)
            if condition.aggregate is Aggregate.MEAN:
                made = made / np.maximum(number, 1)
    return groups[begins], np.where(number > 0, made, np.nan)


def _over_median(groups: Keys, begins: NDArray[np.intp], number: NDArray[np.int64], values: Floats) -> Floats:
    ordered = values[np.lexsort((values, groups))]  # NaN sorts last within its group.
    low, high = begins + np.maximum(number - 1, 0) // 2, begins + number // 2
    medians = (ordered[low] + ordered[np.minimum(high, len(ordered) - 1)]) / 2
    medians[(number < PEERS_MIN) | ~(medians > 0)] = np.nan
    sizes = np.diff(np.append(begins, len(values)))
    return np.asarray(values / np.repeat(medians, sizes), np.float64)
