"""Nodes that fail and are repaired, from a seed: whatever is decided, the same nodes fail at the same times, so that policies can be compared.

A node in service fails after an exponential time with the mean `mtbf_s`, and is repaired after one with the mean `repair_s`. Lemons, a part of all nodes, fail
`lemon_factor` times as often, and no repair cures them. Nothing fails after `last_at`; repairs still end.

Is wrong    for failures that come together (a switch, a power supply), for repairs with a long tail, and for nodes that fail only when they are used.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field

from holdfast.errors import UserError


@dataclass(slots=True, kw_only=True)
class Outages:
    nodes: int
    mtbf_s: float
    seed: int
    first_at: float
    last_at: float
    repair_s: float = 4 * 3600.0
    lemons: float = 0.0  # Part of the nodes.
    lemon_factor: float = 100.0
    _dice: list[random.Random] = field(default_factory=list)
    _mean_s: list[float] = field(default_factory=list)
    _next: list[tuple[float, int, bool]] = field(default_factory=list)  # When, which node, whether it fails.

    def __post_init__(self) -> None:
        if not (0 < self.mtbf_s < math.inf and 0 < self.repair_s < math.inf and 0 <= self.lemons <= 1):
            said = f"an MTBF of {self.mtbf_s / 3600:g} h, repairs of {self.repair_s / 3600:g} h and a part of {self.lemons:g} lemons cannot be played"
            raise UserError(f"{said}; expected hours above 0, and a part between 0 and 1 such as 0.02")
        self._dice = [random.Random(f"{self.seed}/{node}") for node in range(self.nodes)]
        bad = set(random.Random(self.seed).sample(range(self.nodes), math.ceil(self.lemons * self.nodes)))
        self._mean_s = [self.mtbf_s / (self.lemon_factor if node in bad else 1.0) for node in range(self.nodes)]
        for node in range(self.nodes):
            self._fails(node, self.first_at)

    def next_at(self) -> float:
        return self._next[0][0] if self._next else math.inf

    def due(self, now: float) -> list[tuple[int, bool]]:
        """What has happened by now, in order: which node, and whether it failed or came back."""
        happened = []
        while self._next and self._next[0][0] <= now:
            at, node, fails = heapq.heappop(self._next)
            happened.append((node, fails))
            if fails:
                heapq.heappush(self._next, (at + self._dice[node].expovariate(1 / self.repair_s), node, False))
            else:
                self._fails(node, at)
        return happened

    def _fails(self, node: int, since: float) -> None:
        at = since + self._dice[node].expovariate(1 / self._mean_s[node])
        if at <= self.last_at:
            heapq.heappush(self._next, (at, node, True))
