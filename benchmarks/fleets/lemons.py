"""A fleet with lemons, played day by day: who is put on the list, and was it one?

Nodes fail and are repaired as in `simulate/failures.py`; one in a hundred fails `FACTOR` times as often, and no repair cures it. The list is looked at every
six hours, and who is on it once is evicted for good.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from holdfast.learn.decay import DAY_S
from holdfast.learn.reputation import Fault, Rules, Service, reputations
from holdfast.simulate.failures import lemons_among, outages
from holdfast.simulate.reliability.failures import at_least, exactly

SHARE, FACTOR, DAYS, LOOK_S = 0.01, 20.0, 7.0, 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    lemons: int
    found: int
    healthy: int
    evicted: int  # Of the healthy.
    told_false: float  # Healthy nodes on the list at the end, as the list itself expected.
    days: tuple[float, ...]  # Until each lemon was found.


def play(nodes: int, per_day: float, seed: int, *, days: float = DAYS) -> Played:
    changes = deque(outages(nodes, mtbf_s=DAY_S / per_day, seed=seed, first_at=0.0, last_at=days * DAY_S, lemons=SHARE, lemon_factor=FACTOR))
    bad = lemons_among(nodes, SHARE, seed)
    faults: list[Fault] = []
    since, spans = dict.fromkeys(range(nodes), 0.0), list[Service]()
    evicted: dict[int, float] = {}
    now, told = 0.0, 0.0
    while now < days * DAY_S:
        now += LOOK_S
        while changes and changes[0][0] <= now:
            at, node, fails = changes.popleft()
            if node in evicted:
                continue
            if fails:
                faults.append(Fault(node=f"n{node}", cause="hardware", at=at))
                spans.append(Service(node=f"n{node}", since=since.pop(node), until=at))
            else:
                since[node] = at
        up = [Service(node=f"n{node}", since=begun, until=now) for node, begun in since.items()]
        thought = reputations(faults, [*spans, *up], now, Rules())
        told = thought.expected_false
        for lemon in thought.lemons:
            evicted.setdefault(int(lemon.node[1:]), now)
    return Played(
        lemons=len(bad), found=len(bad & evicted.keys()), healthy=nodes - len(bad), evicted=len(evicted.keys() - bad), told_false=told,
        days=tuple(evicted[node] / DAY_S for node in sorted(bad & evicted.keys())),
    )  # fmt: skip


def best_possible(per_day: float, *, days: float = DAYS, false: float = 0.01) -> float:
    """The part of the lemons that any rule finds which evicts at most `false` of the healthy: Neyman and Pearson's, on the number of failures."""
    healthy, lemon = per_day * days, FACTOR * per_day * days
    count = 0
    while at_least(count, healthy) > false:
        count += 1
    part = (false - at_least(count, healthy)) / exactly(count - 1, healthy)  # Of those with one failure less.
    return at_least(count, lemon) + part * exactly(count - 1, lemon)


def days_needed(per_day: float, *, found: float = 0.9, false: float = 0.01) -> float:
    low, high = 0.1, 10_000.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if best_possible(per_day, days=middle, false=false) >= found else (middle, high)
    return high
