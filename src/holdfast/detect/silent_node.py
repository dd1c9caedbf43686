"""Silent node: an agent that is no longer heard.

Sees        when each agent was last heard, whether its connection still stands, and when the ranks of other nodes last showed that it lives: in a gang that
            works in step nobody gets two steps ahead of a node that is dead.
Says        one `silent_node` finding per node that stays quiet beyond its limit. One quiet agent is not a dead node: while its connection stands and the gang
            steps on, it has `excused_s`; and where nodes were seen to pause and come back, three times the longest of those pauses.
Is wrong    when the whole control process was stopped: `now` jumps, and every node looks silent. So a look that comes long after the one
            before it only takes note, and judges at the next. Where ranks do not work in step, a node that hangs is found later, by as much.
Costs       one pass over the nodes per look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.domain.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    at: float
    connected: bool
    alive_at: float = 0.0  # When others last showed that its ranks take part.


@dataclass(slots=True, kw_only=True)
class SilentNode:
    closed_s: float = 3.5  # Its connection is gone: a restarted agent is back well before, even on a busy machine.
    open_s: float = 10.0  # Its connection stands but nothing comes: stopped, or cut off. At least;
    factor: float = 3.0  # so many times the longest pause that ended by itself is the limit where that is more,
    open_max_s: float = 60.0  # and never more than this.
    excused_s: float = 120.0
    blind_s: float = 1.5  # A look that comes this late judges nobody.
    _looked_at: float | None = None
    _excused: dict[str, float] = field(default_factory=dict)
    _before: dict[str, Heard] = field(default_factory=dict)
    _pause_s: float = 0.0  # The longest of late: half of it is forgotten in a day.
    _told: set[str] = field(default_factory=set)

    def look(self, heard: Mapping[str, Heard], now: float) -> tuple[Finding, ...]:
        late_s = now - self._looked_at if self._looked_at is not None else 0.0
        if late_s > self.blind_s:
            self._excused = dict.fromkeys(heard, now)
            self._before = {}  # It was we who paused.
        self._learn(heard, late_s)
        self._looked_at = now
        self._told &= heard.keys()
        return tuple(finding for node in sorted(heard) if (finding := self._judge(node, heard[node], now)) is not None)

    def _learn(self, heard: Mapping[str, Heard], passed_s: float) -> None:
        pauses = [one.at - before.at for node, one in heard.items() if one.connected and (before := self._before.get(node)) is not None and before.connected]
        self._pause_s = max([self._pause_s * 0.5 ** (passed_s / 86400.0), *pauses])
        self._before = dict(heard)

    def limit_s(self, connected: bool) -> float:
        return max(self.open_s, min(self.open_max_s, self.factor * self._pause_s)) if connected else self.closed_s

    def _judge(self, node: str, heard: Heard, now: float) -> Finding | None:
        quiet_s = now - max(heard.at, self._excused.get(node, heard.at))
        limit_s = self.limit_s(heard.connected)
        proven = heard.connected and now - heard.alive_at <= limit_s and quiet_s <= self.excused_s
        if quiet_s <= limit_s or proven:
            self._told.discard(node)
            return None
        if node in self._told:
            return None
        self._told.add(node)
        how = "its connection stands but nothing comes" if heard.connected else "its connection is gone"
        return Finding(kind="silent_node", node=node, since=heard.at, because=f"node {node} was not heard for {quiet_s:.1f} s and {how}")
