"""Standing still: asks once a second whether the gang gets further, and turns the answer into events. Who is at fault is judged in `detect/silent_rank.py`.

    readings of all ranks ─► sights ─► judge ─► FindingMade when something is so that was not; FindingEnded when a rank went on by itself
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.core import pauses
from holdfast.detect.pause import in_time
from holdfast.detect.silent_node import Heard
from holdfast.detect.silent_rank import HangLimits, judge
from holdfast.detect.standstill import Sight
from holdfast.domain.event import Event, FindingEnded, FindingMade
from holdfast.domain.finding import Finding
from holdfast.domain.job import JobPhase
from holdfast.domain.state import State
from holdfast.wire.messages import Reading

FRESH_S: Final = 3.0  # What an agent said longer ago than this says nothing about now.
AGAIN_S: Final = 60.0  # A gang that still stands still is told again: a person may have had the first word left undone.
_ACTS: Final = ("silent_rank", "stopped_rank")


@dataclass(slots=True)
class StandingStill:
    _generation: int = -1
    _told: dict[str, tuple[Finding, float]] = field(default_factory=dict)  # By key, with when.

    def look(self, state: State, ranks: Mapping[int, Reading], heard: Mapping[str, Heard], now: float) -> list[Event]:
        gang, spec = state.gang, state.spec
        if gang is None or spec is None or state.phase is not JobPhase.RUNNING:
            return []
        if gang.generation != self._generation:
            self._generation, self._told = gang.generation, {}
        readings = {rank: reading for rank, reading in ranks.items() if rank not in gang.exited}
        if len(ranks) < state.world_size or not (self._told or any(reading.signs is not None for reading in readings.values())):
            return []
        sights = [self._sight(readings[rank], gang.nodes[rank // spec.ranks_per_node], heard, now, alone=state.world_size == 1) for rank in sorted(readings)]
        limits = HangLimits(by_phase=dict(spec.policy.hang_limits), longest_s=state.pauses, struck_s=pauses.struck(state))
        found = {finding.key: replace(finding, since=now - finding.lasted_s) for finding in judge(sights, limits)}
        return [*self._ended(found, {sight.rank: sight for sight in sights}, now), *self._made(found, now)]

    def _sight(self, reading: Reading, node: str, heard: Mapping[str, Heard], now: float, *, alone: bool) -> Sight:
        known = heard.get(node)
        fresh = known is not None and known.connected and now - known.at <= FRESH_S
        return Sight(rank=reading.rank, node=node, phase=reading.phase, step=reading.step, signs=reading.signs, heard=fresh, alone=alone)

    def _made(self, found: Mapping[str, Finding], now: float) -> list[Event]:
        events: list[Event] = []
        for key, finding in found.items():
            told, at = self._told.get(key, (None, 0.0))
            if told is None or (finding.kind in _ACTS and now - at >= AGAIN_S):
                events.append(FindingMade(at=now, generation=self._generation, finding=finding))
                self._told[key] = (finding, now)
            else:
                self._told[key] = (finding, at)  # How long it has lasted, for when it ends.
        return events

    def _ended(self, found: Mapping[str, Finding], sights: Mapping[int, Sight], now: float) -> list[Event]:
        """Says what was told and is so no longer. Only what went on by itself says how long a pause may be."""
        events: list[Event] = []
        struck = {rank for finding in found.values() if finding.kind in _ACTS for rank in finding.ranks}
        for key in [key for key in self._told if key not in found]:
            finding, _ = self._told.pop(key)
            if finding.ranks[0] in struck:
                continue  # The hang takes the story of the pause over.
            sight = sights.get(finding.ranks[0])
            went_on = sight is not None and sight.heard and (sight.signs is None or sight.quiet_s < finding.lasted_s)
            said = f"rank {finding.ranks[0]} went on after {in_time(finding.lasted_s)}" if went_on else f"no longer so: {finding.because}"
            place, lasted_s = (finding.place, finding.lasted_s) if went_on and finding.kind != "stopped_rank" else ("", 0.0)
            events.append(FindingEnded(at=now, generation=self._generation, key=key, because=said, place=place, lasted_s=lasted_s))
        return events
