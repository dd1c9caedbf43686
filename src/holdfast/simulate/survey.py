"""Many made-up worlds, on every core, which of them broke, and which fault sites were hit how often: `holdfast simulate --seeds N`."""

from __future__ import annotations

import hashlib
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.simulate.cores import on_cores
from holdfast.simulate.failures import Lost
from holdfast.simulate.judge import Broken
from holdfast.simulate.sites import SITES
from holdfast.simulate.world import Report, run

_BLOCK = 10  # Seeds that a process takes at once, of worlds as the seed makes them.
_NODES = 8  # Of those, or so.


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One world: how it went, or which promise was not kept."""

    seed: int
    report: Report | None = None
    broke: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    seeds: int
    failed: dict[str, str]  # Seed to the promise that was not kept.
    outcomes: dict[str, int]
    sites: dict[str, int]  # Fault site to how often something went wrong there; all of them, the rarest first.
    never_hit: tuple[str, ...]
    events: int
    median_events: float
    wall_s: float
    events_per_s: int
    virtual_hours_per_s: float
    seeds_per_minute: int
    processes: int
    hash: str  # Of all the hashes.
    hashes: dict[str, str]  # Seed to the hash of its event log.
    stopped: bool = False  # By Ctrl-C, before all seeds were played.


@dataclass(slots=True)
class _Tally:
    failed: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    sites: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITES, 0))
    hashes: dict[int, str] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    virtual_s: float = 0.0

    def add(self, one: Played) -> None:
        if one.report is None:
            self.failed[one.seed] = one.broke
            return
        self.outcomes[one.report.outcome] += 1
        self.hashes[one.seed] = one.report.hash
        self.events.append(one.report.events)
        self.virtual_s += one.report.virtual_s
        for site, hits in one.report.hits.items():
            self.sites[site] += hits

    def told(self, wall_s: float, processes: int, *, stopped: bool) -> Survey:
        hashes = {str(seed): self.hashes[seed] for seed in sorted(self.hashes)}
        return Survey(
            seeds=len(self.failed) + len(self.hashes), failed={str(seed): self.failed[seed] for seed in sorted(self.failed)},
            outcomes=dict(sorted(self.outcomes.items())), sites=dict(sorted(self.sites.items(), key=lambda one: (one[1], one[0]))),
            never_hit=tuple(site for site, hits in self.sites.items() if not hits),
            events=sum(self.events), median_events=statistics.median(self.events or [0]), wall_s=round(wall_s, 3),
            events_per_s=round(sum(self.events) / wall_s), virtual_hours_per_s=round(self.virtual_s / 3600 / wall_s, 1),
            seeds_per_minute=round(60 * (len(self.failed) + len(self.hashes)) / wall_s), processes=processes,
            hash=hashlib.blake2b(repr(hashes).encode(), digest_size=16).hexdigest(), hashes=hashes, stopped=stopped,
        )  # fmt: skip


def survey(
    seeds: Sequence[int], *, processes: int = 1, failures: Sequence[Lost] = (), nodes: int | None = None, each: Callable[[Played], None] = lambda _: None
) -> Survey:
    """Play each seed, go on after one that breaks a promise, and count. `each` is told of every world, in the order in which they end."""
    block = max(1, min(_BLOCK, _BLOCK * _NODES // (nodes or _NODES)))
    blocks = (seeds[first : first + block] for first in range(0, len(seeds), block))
    processes = min(processes, -(-len(seeds) // block))
    tally, began, stopped = _Tally(), time.perf_counter(), False
    try:
        for played in on_cores(partial(_play_all, failures, nodes), blocks, processes):
            for one in played:
                tally.add(one)
                each(one)
    except KeyboardInterrupt:
        stopped = True
    return tally.told(time.perf_counter() - began, processes, stopped=stopped)


def _play_all(failures: Sequence[Lost], nodes: int | None, seeds: Iterable[int]) -> list[Played]:
    return [play(seed, failures=failures, nodes=nodes) for seed in seeds]


def play(seed: int, *, failures: Sequence[Lost] = (), nodes: int | None = None, lines: list[str] | None = None) -> Played:
    """One world. Whatever the core raises breaks a promise: it is to raise nothing."""
    try:
        return Played(seed=seed, report=run(seed, failures=failures, nodes=nodes, lines=lines))
    except Broken as error:
        return Played(seed=seed, broke=str(error))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Played(seed=seed, broke=f"{type(error).__name__}: {error or at.line} ({at.filename.rpartition('/')[2]}, line {at.lineno})")
