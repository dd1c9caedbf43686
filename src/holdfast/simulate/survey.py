"""Many made-up worlds, one after the other, which of them broke, and which fault sites were hit how often: `holdfast simulate --seeds N`."""

from __future__ import annotations

import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.simulate.failures import Failure
from holdfast.simulate.sites import SITES
from holdfast.simulate.world import run


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
    hashes: dict[str, str]  # Seed to the hash of its event log.


def survey(
    seeds: Sequence[int], *, story: bool = False, failures: Sequence[Failure] = (), nodes: int | None = None, each: Callable[[], None] = lambda: None
) -> Survey:
    """Run each seed, go on after one that fails, and count. `each` is called after each."""
    outcomes: Counter[str] = Counter()
    sites = dict.fromkeys(SITES, 0)
    failed: dict[str, str] = {}
    hashes: dict[str, str] = {}
    events, virtual_s, began = [], 0.0, time.perf_counter()
    for seed in seeds:
        lines: list[str] | None = [] if story else None
        try:
            report = run(seed, lines=lines, failures=failures, nodes=nodes)
        except AssertionError as error:
            failed[str(seed)] = str(error) or traceback.format_exc(limit=-1)
        else:
            outcomes[report.outcome] += 1
            hashes[str(seed)] = report.hash
            events.append(report.events)
            virtual_s += report.virtual_s
            for site, hits in report.hits.items():
                sites[site] += hits
        print(*lines or (), sep="\n", end="\n" if lines else "")
        each()
    wall_s = time.perf_counter() - began
    return Survey(
        seeds=len(seeds), failed=failed, outcomes=dict(sorted(outcomes.items())), sites=dict(sorted(sites.items(), key=lambda one: (one[1], one[0]))),
        never_hit=tuple(site for site, hits in sites.items() if not hits), events=sum(events), median_events=statistics.median(events or [0]),
        wall_s=round(wall_s, 3), events_per_s=round(sum(events) / wall_s), virtual_hours_per_s=round(virtual_s / 3600 / wall_s, 1),
        seeds_per_minute=round(60 * len(seeds) / wall_s), hashes=hashes,
    )  # fmt: skip


def survey_lines(found: Survey) -> Iterable[str]:
    yield (
        f"{found.seeds} seeds in {found.wall_s} s: {found.events} events, {found.median_events:.0f} in the median seed, {found.events_per_s} events/s, "
        f"{found.virtual_hours_per_s} virtual hours a second, {found.seeds_per_minute} seeds a minute"
    )
    yield f"outcomes: {found.outcomes}"
    yield "fault sites, and how often something went wrong there:"
    width = max(map(len, SITES))
    for site, hits in found.sites.items():
        yield f"  {hits:>7}  {site:<{width}}  {SITES[site]}"
    yield f"never hit: {', '.join(found.never_hit)}" if found.never_hit else "every fault site was hit"
    for seed, because in found.failed.items():
        yield f"seed {seed} failed: {because}"
    yield f"failed seeds: {', '.join(found.failed)}" if found.failed else "no seed failed"
