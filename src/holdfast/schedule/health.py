"""What is thought of nodes: a reputation from what failed on each, and when one that was in doubt is trusted again.

A node fails at a rate of its own. Before anything is known of it that rate is thought to be the fleet's, and about as surely as one failure would tell (a Gamma
prior of weight p around the fleet's rate r). What it does then moves the estimate: with F failures in T seconds of service it is the posterior mean,

    rate = (p + F) / (p / r + T)        score = rate / r = (p + F) / (p + r T)

so 1 is as good as any, and 3 fails three times as often as others. F and T are forgotten by half in every half-life. r is all failures over all service, and
begins with what is usual (`node_mtbf_s`). A fleet that fails often therefore suspects nobody for failing once more.

Sees        failures that were attributed to a node, by whoever diagnoses; when it went out of service and came back.
Says        suspect above `suspect_score`, and for `probation_s` after each repair; to be drained above `drain_score`.
Is wrong    when a node fails only under load and has none: time in service earns trust. When a switch fails, all nodes behind it are charged.
Costs       a few numbers a node. Nothing is kept, and no time is spent, before the first failure.
"""

from __future__ import annotations

import heapq
import math

from holdfast.domain.rate import believed
from holdfast.schedule.place import Health
from holdfast.schedule.policy import Policy
from holdfast.schedule.usage import Usage

_LOOKS = 28  # In a half-life: how often a suspect is looked at again.


class Care:
    """The nodes by number. Service is counted from the first failure in the fleet on; what came before is in the prior."""

    def __init__(self, nodes: int, policy: Policy) -> None:
        self._nodes, self._policy = nodes, policy
        self._service: Usage | None = None  # Seconds, by node; the last is the fleet's.
        self._failures = Usage(half_life_s=policy.health_half_life_s, entry_s=0.0)
        self._away: set[int] = set()
        self._probation: dict[int, float] = {}  # Until when.
        self.draining: dict[int, float] = {}  # Until when who stands there may stay.
        self._looks: list[tuple[float, int]] = []
        self._look_at: dict[int, float] = {}  # The next one of each node that is in doubt.

    # What happened.

    def failed(self, node: int, now: float) -> None:
        """A failure is put down to this node."""
        self._begin(now)
        self._failures.add((node, self._nodes), 1.0, now)
        self._look_later(node, now)

    def left(self, node: int, now: float) -> None:
        """It is out of service."""
        self._begin(now)
        self.draining.pop(node, None)
        if node not in self._away:
            self._away.add(node)
            self._change(node, -1.0, now)

    def back(self, node: int, now: float) -> None:
        """It is in service, and not about to leave it. What it did before is not forgotten."""
        self.draining.pop(node, None)
        if node in self._away:
            self._away.remove(node)
            self._change(node, 1.0, now)

    def doubt(self, node: int, now: float) -> None:
        """It was repaired, and has yet to show it."""
        self._begin(now)
        self._probation[node] = now + self._policy.probation_s
        self._look_later(node, now)

    def drain(self, node: int, now: float) -> None:
        self.draining[node] = now + self._policy.drain_s
        self._look(node, self.draining[node])

    # What is thought.

    def score(self, node: int, now: float) -> float:
        """How many times as often as others it fails. 1 while nothing is known."""
        if self._service is None:
            return 1.0
        policy, fleet = self._policy, self._nodes
        rate = (1.0 + self._failures.used(fleet, now)) / (policy.node_mtbf_s + self._service.used(fleet, now))
        own = believed(prior=policy.health_prior, per_s=rate, failures=self._failures.used(node, now), service_s=self._service.used(node, now))
        return own.mean / rate

    def verdict(self, node: int, now: float) -> tuple[Health, str]:
        """What this node may be used for, and why."""
        if node in self._away:
            return Health.OUT, "it is out of service"
        if node in self.draining:
            return Health.DRAINING, "it is sick: it is repaired when who stands there has left"
        score = self.score(node, now)
        if score >= self._policy.suspect_score:
            return Health.SUSPECT, f"it fails {score:.1f} times as often as others"
        if now < self._probation.get(node, -math.inf):
            return Health.SUSPECT, f"it came back from repair and is on probation for another {self._probation[node] - now:.0f} s"
        return Health.GOOD, "it fails no more often than others"

    def sick(self, node: int, now: float) -> bool:
        """Whether it had better be repaired than used with care."""
        return node not in self._away and node not in self.draining and self.score(node, now) >= self._policy.drain_score

    # Time.

    def next_at(self) -> float:
        return self._looks[0][0] if self._looks else math.inf

    def due(self, now: float) -> list[int]:
        """Nodes to look at again now. One that is still in doubt is looked at later once more."""
        nodes: list[int] = []
        while self._looks and self._looks[0][0] <= now:
            at, node = heapq.heappop(self._looks)
            if self._look_at.get(node) == at:
                del self._look_at[node]
                nodes.append(node)
        for node in nodes:
            if now < self.draining.get(node, -math.inf):
                self._look(node, self.draining[node])  # It was to be looked at before its end already, which put that look off.
            elif self.verdict(node, now)[0] is Health.SUSPECT:
                self._look_later(node, now)
        return nodes

    def _look_later(self, node: int, now: float) -> None:
        until = self._probation.get(node, -math.inf)
        self._look(node, until if until > now else now + self._policy.health_half_life_s / _LOOKS)

    def _look(self, node: int, at: float) -> None:
        if at < self._look_at.get(node, math.inf):
            self._look_at[node] = at
            heapq.heappush(self._looks, (at, node))

    def _begin(self, now: float) -> None:
        if self._service is None:
            self._service = Usage(half_life_s=self._policy.health_half_life_s, entry_s=0.0)
            for known in (self._service, self._failures):
                known.grow(self._nodes + 1)
            self._service.change(range(self._nodes), 1.0, now)
            self._service.change((self._nodes,), float(self._nodes), now)

    def _change(self, node: int, by: float, now: float) -> None:
        assert self._service is not None, "service is counted from the first failure on"
        self._service.change((node, self._nodes), by, now)
