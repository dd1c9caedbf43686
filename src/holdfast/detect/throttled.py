"""Throttled: what holds a slow rank or a slow job down from outside the training. Only asked when something is slow.

Sees        the last half minute of the nodes that a slow finding is about: what throttles their GPUs, their clocks, the CPU quotas of ranks, disks, networks,
            swap, and the wait for cores.
Says        with the numbers, worth knowing and no more: `throttled` (heat, power brake, power limit, a clock below that of the other GPUs), `held_back` (a
            CPU quota), `slow_disk`, `lossy_network`, `swapping`, `busy_host`. Each becomes part of the incident it explains. It stands while it is so by half
            and something is still slow.
Is silent   when nothing is slow, whatever is throttled: that a GPU is hot for long, or a disk slow, the rules say. About what is the same on all nodes when
            only one rank is slow against the others.
Is wrong    about which rank a GPU is used by, when a script deals them out otherwise than by local rank; it is only told where a node has one GPU a rank.
            When two things are out of the ordinary on a node and the other one is the cause: both are told.
Misses      what no probe sees: a slow link between two GPUs, a bad kernel.
Costs       nothing while nothing is slow; then a pass over some ten metrics, a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.detect.series import Floats, Keys, Rings
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.metric import Series

WINDOW_S = 30.0
_DISK_WINDOW_S = 120.0  # Its probe looks every half minute.
_READINGS_MIN = 15
_TIMES = 2.0  # What the others have, where one is compared with them.
_TOLD_MAX = 4  # Of one kind: when all are alike, a few say it.
_BUSY = 0.5  # A GPU that does nothing may clock down as it likes.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Things that may be held down: by how much each is, as a multiple of what would be told, and the words for one of them."""

    kind: str
    metric: str
    keys: Keys
    much: Floats
    says: Callable[[int, Series], str]  # Of its place among them.


@dataclass(slots=True)
class Throttled:
    _standing: dict[str, Finding] = field(default_factory=dict)

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return list(self._standing.values())

    def look(self, slow: Sequence[Finding], rings: Rings, nodes: Sequence[str], now: float) -> None:
        """`slow` is what stands now and may have such a cause; `nodes` says where each rank runs."""
        if not slow:
            self._standing.clear()
            return
        places = set(nodes) if any(not one.node for one in slow) else {one.node for one in slow}
        found: dict[str, Finding] = {}
        told: Counter[str] = Counter()
        for held in _held_down(rings, one_of_many=all(one.kind == "slow_rank" for one in slow)):
            much = np.nan_to_num(held.much)
            for place in np.argsort(-much)[: np.count_nonzero(much >= 0.5)].tolist():
                series = rings.name(held.metric, int(held.keys[place]))
                if series.node not in places:
                    continue
                finding = _finding(held, place, series, _ranks(held, place, series, rings, nodes), now)
                if much[place] >= 1.0 or finding.key in self._standing:
                    found[finding.key] = self._standing.get(finding.key, finding)
                    told[held.kind] += 1
                if told[held.kind] >= _TOLD_MAX:
                    break
        self._standing = found


def _finding(held: _Held, place: int, series: Series, ranks: tuple[int, ...], now: float) -> Finding:
    of = "" if held.metric.startswith("cgroup_") else series.of
    because = held.says(place, series)
    return Finding(kind=held.kind, node=series.node, of=of, ranks=ranks, since=now - WINDOW_S, severity=Severity.INFO, because=because)


def _ranks(held: _Held, place: int, series: Series, rings: Rings, nodes: Sequence[str]) -> tuple[int, ...]:
    """The rank it is about. A GPU's, where the node has as many GPUs as ranks: local rank and number are the same by custom."""
    if held.metric.startswith("cgroup_"):
        return (int(series.of),)
    if not (held.metric.startswith("gpu_") and series.of.isdecimal()):
        return ()
    first = nodes.index(series.node)
    here, gpus = nodes.count(series.node), rings.layout(held.metric).beside(int(held.keys[place]))
    return (first + int(series.of),) if gpus == here and int(series.of) < gpus else ()


def _held_down(rings: Rings, *, one_of_many: bool) -> Iterator[_Held]:
    """`one_of_many`: only ranks are slow, each against the others. Then nothing explains it that is the same everywhere."""
    yield from _gpus(rings)
    words = "the CPU quota of rank {of} on {node} holds it back for {value:.0%} of the time"
    yield _above("held_back", "cgroup_throttled_seconds_total", _rate(rings, "cgroup_throttled_seconds_total"), 0.1, words)
    for kind, metric, (keys, values), limit, words in (
        ("swapping", "host_swapped_pages_total", _rate(rings, "host_swapped_pages_total"), 1000.0, "{node} swaps {value:,.0f} pages a second"),
        ("slow_disk", "disk_write_seconds", _mean(rings, "disk_write_seconds", _DISK_WINDOW_S), 0.2, "a small write to {of} on {node} takes {value:.2g} s"),
        ("lossy_network", "host_retransmits_total", _sent_again(rings), 0.01, "{node} sends {value:.1%} of its TCP segments again"),
        ("busy_host", "host_cpu_pressure_ratio", _mean(rings, "host_cpu_pressure_ratio"), 0.5, "on {node} tasks wait for a core for {value:.0%} of the time"),
    ):
        # A job may use all the cores it gets, everywhere: it is worth a word where others have them free.
        relative = one_of_many or (kind == "busy_host" and len(keys) > 1)
        yield _above(kind, metric, (keys, values), np.fmax(limit, _TIMES * _of_others(values)) if relative else limit, words)


def _gpus(rings: Rings) -> Iterator[_Held]:
    """Each by one reason, the first that is so."""
    keys, clock = _mean(rings, "gpu_sm_clock_hertz")
    if not len(keys):
        return
    highest, busy = _on(keys, _mean(rings, "gpu_sm_clock_max_hertz")), _on(keys, _mean(rings, "gpu_utilisation_ratio"))
    others = _middle(clock[(busy >= _BUSY) & (clock > 0)])
    behind = 1 - clock / others  # NaN where nobody is busy: then none is behind the others.
    instead = np.where((busy >= _BUSY) & (behind > 0.05), others, highest)  # Of those that could be as fast, the others are the better measure.
    much, reason = np.zeros(len(keys)), np.zeros(len(keys), np.int64)
    for number, (metric, limit, _) in enumerate(_REASONS):
        share = _on(keys, _mean(rings, metric)) if metric else np.where(busy >= _BUSY, behind, 0.0)
        if metric == "gpu_throttled_power":  # At the power limit every GPU is that works hard: only one that it makes slower than the others is worth a word.
            share = np.where(behind > 0.1, share, 0.0)
        new = (much < 0.5) & (share >= limit / 2)
        much, reason = np.where(new, share / limit, much), np.where(new, number, reason)

    def says(place: int, series: Series) -> str:
        clocks = f"{clock[place] / 1e6:,.0f} MHz" + (f" instead of {instead[place] / 1e6:,.0f}" if np.isfinite(instead[place]) else "")
        return f"GPU {series.of} of {series.node} is {_REASONS[reason[place]][2]}: {clocks}"

    yield _Held(kind="throttled", metric="gpu_sm_clock_hertz", keys=keys, much=much, says=says)


_REASONS = (  # Metric, what share of the half minute is worth telling, and the words.
    ("gpu_throttled_thermal", 0.5, "slowed by heat"),
    ("gpu_throttled_hardware", 0.2, "slowed by its hardware, by a power brake or over-temperature"),
    ("gpu_throttled_power", 0.5, "held down by its power limit"),
    ("", 0.15, "slower than the others"),  # By its clock alone.
)


def _above(kind: str, metric: str, known: tuple[Keys, Floats], limit: float | Floats, words: str) -> _Held:
    keys, values = known
    return _Held(kind=kind, metric=metric, keys=keys, much=np.asarray(values / limit), says=_worded(words, values))


def _of_others(values: Floats) -> Floats:
    """For each the middle of the others; infinite where there is none: nothing is more than the rest then."""
    if np.count_nonzero(np.isfinite(values)) > 16:
        return np.full(len(values), _middle(values))
    return np.array([np.nan_to_num(_middle(np.delete(values, place)), nan=np.inf) for place in range(len(values))])


def _sent_again(rings: Rings) -> tuple[Keys, Floats]:
    keys, again = _rate(rings, "host_retransmits_total")
    sent = _on(keys, _rate(rings, "host_segments_total"))
    return keys, np.divide(again, sent, out=np.zeros(len(keys)), where=sent > 20.0)


def _worded(words: str, values: Floats) -> Callable[[int, Series], str]:
    return lambda place, series: words.format(node=series.node, of=series.of, value=float(values[place]))


def _mean(rings: Rings, metric: str, window_s: float = WINDOW_S) -> tuple[Keys, Floats]:
    layout = rings.layout(metric)
    return layout.keys, rings.mean(layout.columns, window_s) if len(layout.keys) else np.empty(0)


def _rate(rings: Rings, metric: str) -> tuple[Keys, Floats]:
    """A second: there is a reading for each."""
    layout = rings.layout(metric)
    if not len(layout.keys):
        return layout.keys, np.empty(0)
    count = rings.count(layout.columns, WINDOW_S)
    return layout.keys, np.where(count >= _READINGS_MIN, rings.sum(layout.columns, WINDOW_S) / np.maximum(count, 1), np.nan)


def _on(keys: Keys, other: tuple[Keys, Floats]) -> Floats:
    """The values of another metric of the same things; NaN where there is none."""
    there, values = other
    if not len(there):
        return np.full(len(keys), np.nan)
    place = np.minimum(np.searchsorted(there, keys), len(there) - 1)
    return np.where(there[place] == keys, values[place], np.nan)


def _middle(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
