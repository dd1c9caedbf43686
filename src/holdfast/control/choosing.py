"""Whom to profile: the slow ranks, and one healthy rank beside them to compare with.

Slow are those that a finding names. Where none does, nobody is called slow, and the rank with the most work of its own is looked at. Healthy is the one whose
own work is nearest to the median, on another node where there is one: what slows a node down slows all its ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from holdfast.control.newest import Newest
from holdfast.domain.effect import ChooseRanks
from holdfast.domain.finding import Finding

SLOW_MAX = 4  # More traces than anybody opens.


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    slow: tuple[int, ...]
    beside: tuple[int, ...] = ()


def own_seconds(newest: Newest, nodes: Collection[str], now: float) -> dict[int, float]:
    """For each rank the seconds of a step that it does not wait for others."""
    step = {int(of): value for _, of, value in newest.of("step_seconds", nodes, now)}
    waited = {int(of): value for _, of, value in newest.of("step_communication_seconds", nodes, now)}
    own = {rank: seconds - waited.get(rank, 0.0) for rank, seconds in step.items()}
    return {rank: seconds for rank, seconds in own.items() if seconds == seconds}


def choose(asked: ChooseRanks, findings: Sequence[Finding], own_s: Mapping[int, float], nodes: Sequence[str]) -> Chosen | None:
    """`nodes` says where each rank runs. None: nobody is named, and not all are measured."""
    everybody = range(len(nodes))
    if asked.all:
        return Chosen(slow=(), beside=tuple(everybody))
    if asked.exactly:
        return Chosen(slow=asked.ranks)
    found = dict.fromkeys((*asked.ranks, *(rank for one in findings if one.kind == "slow_rank" for rank in one.ranks)))
    slow = sorted((rank for rank in found if rank in everybody), key=lambda rank: -own_s.get(rank, 0.0))[:SLOW_MAX]
    if not slow and len(own_s.keys() & set(everybody)) < len(nodes):
        return None
    looked_at = slow or [max(everybody, key=lambda rank: (own_s[rank], -rank))]
    beside = _healthy(looked_at, own_s, nodes)
    return Chosen(slow=tuple(sorted(slow)), beside=beside if slow else tuple(sorted((*looked_at, *beside))))


def _healthy(slow: Sequence[int], own_s: Mapping[int, float], nodes: Sequence[str]) -> tuple[int, ...]:
    others = [rank for rank in range(len(nodes)) if rank not in slow]
    elsewhere = [rank for rank in others if nodes[rank] not in {nodes[one] for one in slow}]
    known = [own_s[rank] for rank in others if rank in own_s]
    middle = median(known) if known else 0.0
    nearest = sorted(elsewhere or others, key=lambda rank: (rank not in own_s, abs(own_s.get(rank, 0.0) - middle), rank))
    return tuple(nearest[:1])
