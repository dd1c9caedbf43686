"""Reputation: how often each node fails, how well that is known, and which are lemons.

A node that has failed F times in T seconds of service is believed to fail at (p + F) / (p/r + T), where r is the fleet's rate and p says how many failures what
is known of all others weighs (`domain/rate.py`; the scheduler believes the same). Around it lies a credible interval. F and T are forgotten by half in
every half-life.

A node is a lemon when its failures would be a rarity for one that is as good as the rest: at most `chance` of all healthy nodes have as many in as long. The
same sentence says how many healthy nodes are expected on the list: the sum of what that chance really is over all nodes.

Sees        faults that were put down to a node, whatever they stopped; the time each node was in service.
Says        for each node, and each cause, how many times as often as others it fails and between which limits; the list of lemons with its false positives.
Is wrong    when few faults were seen: at 6.5 job-stopping failures in 1,000 node-days (arXiv 2410.21680) a lemon of 20 times that rate fails 0.9 times in a
            week, and four lemons in ten do not fail at all. No list can have them. When a node fails only under load and had none.
Costs       one pass over faults and service.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.domain.rate import Rate, believed, gamma_share
from holdfast.learn.decay import DAY_S, HALF_LIFE_S, decayed_s, weight

_CREDIBLE: Final = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that went wrong and was put down to a node."""

    node: str
    cause: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    node: str
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    half_life_s: float = HALF_LIFE_S
    prior: float = 1.0  # How many failures of a node weigh as much as what is known of all others.
    node_mtbf_s: float = 100 * DAY_S  # Of a fleet of which nothing is known yet: 1 fault in 100 node-days, between what is published (docs/learning.md).
    chance: float = 0.005  # At most this part of the healthy nodes is on the list at one time; less where more faults are expected of each (`_rarity`).
    least: float = 1.5  # Decayed faults: nobody is a lemon for failing once.
    fleet: int = 4  # Nodes: among fewer nobody can be worse than the others.
    same_s: float = 600.0  # What follows a fault of the same node within this is the same fault.
    together_s: float = 10.0  # Three nodes or more that fail within this of each other share one fault: a switch, a power feed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A rate beside the fleet's: how many times as often, with 90 % between `low` and `high`."""

    faults: float  # Decayed and shared out.
    rate: Rate
    fleet_per_s: float

    @property
    def times(self) -> float:
        return self.rate.mean / self.fleet_per_s

    @property
    def low(self) -> float:
        return self.rate.quantile(_CREDIBLE[0]) / self.fleet_per_s

    @property
    def high(self) -> float:
        return self.rate.quantile(_CREDIBLE[1]) / self.fleet_per_s

    def __str__(self) -> str:
        return f"{self.times:.1f} times as often as others (90 %: {self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reputation:
    node: str
    seen: int  # Faults, counted.
    service_s: float  # Decayed.
    all: Against
    causes: tuple[tuple[str, Against], ...]  # Most faults first.
    chance: float  # That a healthy node has as many faults in as long.
    lemon: bool = False

    @property
    def because(self) -> str:
        mostly = f", mostly {self.causes[0][0]}" if self.causes else ""
        times = "once" if self.seen == 1 else f"{self.seen} times"
        return f"{self.node} failed {times}{mostly}: {self.all}; of healthy nodes {100 * self.chance:.2g} % would have failed as often"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reputations:
    nodes: tuple[Reputation, ...]  # The worst first.
    fleet_per_day: float  # Of a healthy node.
    node_days: float  # Service, not decayed.
    expected_false: float  # Healthy nodes that are on the list by chance, expected.

    @property
    def lemons(self) -> tuple[Reputation, ...]:
        return tuple(one for one in self.nodes if one.lemon)


def reputations(faults: Iterable[Fault], service: Iterable[Service], now: float, rules: Rules | None = None) -> Reputations:
    """What is thought of every node that was in service or failed. The order in which faults are given does not matter."""
    rules = rules or Rules()
    counted = _counted(faults, now, rules)
    watched = _watched(service, now, rules)
    for node in counted:
        watched.setdefault(node, _Watched())
    healthy = set(watched)
    for _ in range(3):  # The rate is that of healthy nodes; who is healthy depends on it.
        in_order = sorted(healthy)  # A sum depends on the order, and a set's is another in each process.
        per_s = _rate((counted.get(node, _NONE) for node in in_order), (watched[node] for node in in_order), rules)
        lemons = {node for node in counted if len(watched) >= rules.fleet and _is_lemon(counted[node], watched[node], per_s, rules)}
        if watched.keys() - lemons == healthy:
            break
        healthy = watched.keys() - lemons
    by_cause = _rates_by_cause(counted, watched, healthy, rules)
    nodes = [_reputation(node, counted.get(node, _NONE), watched[node], per_s, by_cause, rules, lemon=node in lemons) for node in watched]
    return Reputations(
        nodes=tuple(sorted(nodes, key=lambda one: (not one.lemon, -one.all.times, one.node))), fleet_per_day=per_s * DAY_S,
        node_days=sum(one.seconds for one in watched.values()) / DAY_S, expected_false=_expected_false(watched.values(), per_s, rules),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    seen: int = 0
    faults: float = 0.0
    causes: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Watched:
    seconds: float = 0.0
    decayed_s: float = 0.0
    squared_s: float = 0.0  # The squares of the weights, added up: they say how much a decayed count scatters.


_NONE = _Counted()


def _counted(faults: Iterable[Fault], now: float, rules: Rules) -> dict[str, _Counted]:
    kept: list[Fault] = []
    last: dict[str, float] = {}
    for fault in sorted(faults, key=lambda one: (one.at, one.node, one.cause)):
        if fault.at - last.get(fault.node, -math.inf) > rules.same_s:
            kept.append(fault)
            last[fault.node] = fault.at
    found: dict[str, tuple[int, float, dict[str, float]]] = {}
    for cluster in _clusters(kept, rules.together_s):
        nodes = len({fault.node for fault in cluster})
        for fault in cluster:
            heavy = weight(fault.at, now, rules.half_life_s) / (nodes if nodes >= 3 else 1)
            seen, total, causes = found.get(fault.node, (0, 0.0, {}))
            causes[fault.cause] = causes.get(fault.cause, 0.0) + heavy
            found[fault.node] = (seen + 1, total + heavy, causes)
    return {node: _Counted(seen=seen, faults=total, causes=causes) for node, (seen, total, causes) in found.items()}


def _clusters(faults: Sequence[Fault], within_s: float) -> list[list[Fault]]:
    clusters: list[list[Fault]] = []
    for fault in faults:
        if clusters and fault.at - clusters[-1][-1].at <= within_s:
            clusters[-1].append(fault)
        else:
            clusters.append([fault])
    return clusters


def _watched(service: Iterable[Service], now: float, rules: Rules) -> dict[str, _Watched]:
    """Spans are added up in the order of time, so that what is said does not depend on the order in which they are given."""
    found: dict[str, _Watched] = {}
    for span in sorted(service, key=lambda one: (one.node, one.since, one.until)):
        one = found.setdefault(span.node, _Watched())
        one.seconds += max(0.0, span.until - span.since)
        one.decayed_s += decayed_s(span.since, span.until, now, rules.half_life_s)
        one.squared_s += decayed_s(span.since, span.until, now, rules.half_life_s / 2.0)
    return found


def _rate(counted: Iterable[_Counted], watched: Iterable[_Watched], rules: Rules) -> float:
    """A fleet of which nothing is known is believed to be an ordinary one, as surely as one fault would tell."""
    faults, service_s = sum(one.faults for one in counted), sum(one.decayed_s for one in watched)
    return (1.0 + faults) / (rules.node_mtbf_s + service_s)


def _chance(faults: float, watched: _Watched, per_s: float) -> float:
    """That a healthy node has so many or more. A decayed count scatters less than its mean: it is a Poisson count in units of `scale`."""
    if faults <= 0.0:
        return 1.0
    mean = per_s * watched.decayed_s
    scale = watched.squared_s / watched.decayed_s if watched.decayed_s else 1.0
    return gamma_share(max(faults / scale, 1e-9), mean / scale)


def _is_lemon(counted: _Counted, watched: _Watched, per_s: float, rules: Rules) -> bool:
    return counted.faults >= rules.least and _chance(counted.faults, watched, per_s) <= _rarity(watched, per_s, rules)


def _rarity(watched: _Watched, per_s: float, rules: Rules) -> float:
    """What counts as rare. A list is looked at again and again, and who is on it once is evicted: with each fault that is expected of a healthy node there are
    about two more moments at which it may be ahead of its time by chance."""
    return rules.chance / (1.0 + 2.0 * per_s * watched.decayed_s)


def _expected_false(watched: Iterable[_Watched], per_s: float, rules: Rules) -> float:
    """What share of healthy nodes with the same service reaches the list, over all nodes."""
    found: dict[tuple[float, float], float] = {}
    total = 0.0
    for one in watched:
        key = (float(f"{one.decayed_s:.3g}"), float(f"{one.squared_s:.3g}"))
        if key not in found:
            found[key] = _reaches(_Watched(decayed_s=key[0], squared_s=key[1]), per_s, rules)
        total += found[key]
    return total


def _reaches(watched: _Watched, per_s: float, rules: Rules) -> float:
    scale = watched.squared_s / watched.decayed_s if watched.decayed_s else 1.0
    count = math.ceil(rules.least / scale)
    rarity = _rarity(watched, per_s, rules)
    while (chance := _chance(count * scale, watched, per_s)) > rarity:
        count += 1
    return chance


def _rates_by_cause(counted: Mapping[str, _Counted], watched: Mapping[str, _Watched], healthy: Iterable[str], rules: Rules) -> dict[str, float]:
    """The fleet's rate of each cause."""
    faults: dict[str, float] = {}
    causes = {cause for one in counted.values() for cause in one.causes}
    nodes = sorted(healthy)
    for node in nodes:
        for cause, heavy in sorted(counted.get(node, _NONE).causes.items()):
            faults[cause] = faults.get(cause, 0.0) + heavy
    service_s = sum(watched[node].decayed_s for node in nodes)
    share = 1.0 / max(1, len(causes))  # Of what is believed beforehand.
    return {cause: (share + faults.get(cause, 0.0)) / (rules.node_mtbf_s + service_s) for cause in sorted(causes)}


def _reputation(
    node: str, counted: _Counted, watched: _Watched, per_s: float, by_cause: Mapping[str, float], rules: Rules, *, lemon: bool
) -> Reputation:
    causes = [(cause, _against(heavy, by_cause[cause], watched, rules)) for cause, heavy in counted.causes.items()]
    return Reputation(
        node=node, seen=counted.seen, service_s=watched.decayed_s, all=_against(counted.faults, per_s, watched, rules),
        causes=tuple(sorted(causes, key=lambda one: (-one[1].faults, one[0]))), chance=_chance(counted.faults, watched, per_s), lemon=lemon,
    )  # fmt: skip


def _against(faults: float, per_s: float, watched: _Watched, rules: Rules) -> Against:
    rate = believed(prior=rules.prior, per_s=per_s, failures=faults, service_s=watched.decayed_s)
    return Against(faults=faults, rate=rate, fleet_per_s=per_s)
