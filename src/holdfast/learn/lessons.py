"""Lessons: all that is remembered, read together. What a job is started with, and what people are shown, are made from the same reading.

A history is a list of incidents, of service, of runs and of corrections, in any order; two of them read together are both lists joined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.domain.incident import FALSE_ALARM
from holdfast.domain.learned import Learned, Remedy
from holdfast.domain.past import Correction, PastIncident, PastRun, PastService
from holdfast.learn.corrections import corrected, standing
from holdfast.learn.decay import DAY_S, HALF_LIFE_S
from holdfast.learn.needs import Peak, peaks, phases_of
from holdfast.learn.remedies import HALF_LIFE_S as REMEDIES_HALF_LIFE_S
from holdfast.learn.remedies import remedies
from holdfast.learn.reputation import Fault, Reputations, Rules, Service, reputations

_SUSPECTS, _CORRECTIONS = 100, 500
NODES_REACH_S, REMEDIES_REACH_S = 5 * HALF_LIFE_S, 5 * REMEDIES_HALF_LIFE_S  # What is older weighs a thirtieth, and is not read.
# What a node is blamed for. What a program does to itself, and what a person does to it, is nobody's fault wherever it happened.
THE_NODES = frozenset(
    {
        "crash", "hang", "node_lost", "unkillable", "vanished",
        "disk_error", "filesystem_read_only", "link_down", "silent_node", "throttled", "xid",
        *(f"rule:{name}" for name in (
            "DiskErrors", "DiskReadOnly", "GpuEccUncorrected", "GpuNvlinkErrors", "GpuPcieWidthDegraded", "GpuRemapFailed", "GpuRemapPending",
            "GpuSlowedByHardware", "GpuVanished", "GpuXid", "NetworkLinkDown", "NetworkLinkFlapping",
        )),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Lessons:
    incidents: Sequence[PastIncident]
    service: Sequence[PastService]
    runs: Sequence[PastRun]
    corrections: Sequence[Correction]
    now: float
    the_nodes: frozenset[str] = THE_NODES  # Causes a node is blamed for; with those of the taxonomy where somebody knows them.

    @cached_property
    def holding(self) -> Mapping[str, Correction]:
        return standing(self.corrections)

    @cached_property
    def taught(self) -> Sequence[PastIncident]:
        """Returns what may be learned from: what was not done on purpose, and was what it was taken for."""
        return [one for one in self.incidents if not one.chaos and one.outcome != FALSE_ALARM]

    @cached_property
    def nodes(self) -> Reputations:
        faults = [
            Fault(node=one.node, cause=cause, at=one.opened_at)
            for one in self.taught
            if one.node and one.opened_at >= self.now - NODES_REACH_S and (cause := corrected(one, self.holding)) in self.the_nodes
        ]
        return reputations(faults, _spans(self.service), self.now, Rules())

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        return remedies((one for one in self.taught if not one.stands), self.now)

    @cached_property
    def peaks(self) -> tuple[Peak, ...]:
        return peaks(self.runs)

    @property
    def since(self) -> float:
        return min((one.opened_at for one in self.taught), default=self.now)

    def learned(self, job: str) -> Learned:
        """What a job is started with. Its version is the same as long as the tables are."""
        suspects = tuple(sorted(one.node for one in self.nodes.lemons))[:_SUSPECTS]
        said = tuple((one.fingerprint, one.cause) for one in sorted(self.holding.values(), key=lambda one: (-one.at, one.fingerprint))[:_CORRECTIONS])
        phases = phases_of(job, self.runs)
        version = hashlib.blake2b(repr((self.remedies, suspects, said, phases)).encode(), digest_size=6).hexdigest()
        return Learned(
            version=version, incidents=len(self.taught), since=self.since, remedies=self.remedies, suspects=suspects, corrections=said, phases=phases
        )


def _spans(service: Sequence[PastService]) -> list[Service]:
    """A day's service is taken to be in one piece from its beginning: half-lives are of weeks."""
    return [Service(node=one.node, since=one.day * DAY_S, until=one.day * DAY_S + one.seconds) for one in service]
