"""The core in made-up worlds: does every seed keep its promises, is every place tried where something can go wrong, and would a mistake be found?

Seeds       worlds from seed N on (--seed), each with a storm and then peace: no promise may be broken, no job may get stuck. A process for every core
            takes its share.
Sites       each named fault site must be hit a hundred times in a thousand of these seeds, and the median seed must have a thousand events.
Twice       seeds run a second time, in another process: the hash of the event log must be the same.
Planted     mistakes put into the core and into what keeps the contract of control, agent and trainer (`tests/simulate/planted.py`): each must be found within
            a thousand seeds from 0; the table says at which, and by which promise.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from harness.measure import Report, arguments, say

from holdfast.simulate.survey import Survey, survey

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulate"))  # Bugs are planted for tests; nothing that is shipped holds them.
from planted import BUGS, Bug, found_at

BLOCK = 100  # Seeds that a process takes at once.
PROCESSES = os.cpu_count() or 1


def main() -> None:
    chosen = arguments(
        __doc__ or "", seeds=(10_000, 400, "worlds"), twice=(1000, 100, "of them a second time"), planted=(1000, 300, "seeds to find a planted bug in")
    )
    report = Report("Simulation")
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        found = surveyed(report, pool, chosen.seed, chosen.seeds)
        again(report, pool, chosen.seed, min(chosen.twice, chosen.seeds), found)
        bugs(report, pool, chosen.planted)
    report.finish(chosen)


def surveyed(report: Report, pool: ProcessPoolExecutor, start: int, seeds: int) -> list[Survey]:
    began, found = time.monotonic(), []
    for one in pool.map(survey, blocks(start, seeds)):
        found.append(one)
        say(f"{sum(one.seeds for one in found):,} seeds, {sum(len(one.failed) for one in found)} failed")
    wall_s = time.monotonic() - began
    sites = {site: sum(one.sites[site] for one in found) for site in found[0].sites}
    rarest = sorted(sites, key=lambda site: (sites[site], site))
    report.bar(f"seeds of {seeds:,} that broke a promise", sum(len(one.failed) for one in found), "seeds", at_most=0)
    report.bar(f"hits of the rarest fault site in 1,000 seeds ({rarest[0]})", 1000 * sites[rarest[0]] / seeds, "hits", at_least=100)
    report.bar("events of the median seed (median over blocks of 100)", statistics.median(one.median_events for one in found), "events", at_least=1000)
    report.series(f"seeds a second, {PROCESSES} processes", "seeds/s", [seeds / wall_s])
    report.series("events a second in one process", "events/s", [one.events_per_s for one in found])
    outcomes = {outcome: sum(one.outcomes.get(outcome, 0) for one in found) for outcome in sorted({name for one in found for name in one.outcomes})}
    report.note(f"{len(sites)} fault sites; outcomes: {outcomes}")
    failed = {seed: why for one in found for seed, why in one.failed.items()}
    report.raw |= {"sites": {site: sites[site] for site in rarest}, "outcomes": outcomes, "failed": failed}
    for site in rarest[:10]:
        say(f"{sites[site]:>7} hits of {site}")
    return found


def again(report: Report, pool: ProcessPoolExecutor, start: int, seeds: int, found: list[Survey]) -> None:
    first = {seed: hash for one in found for seed, hash in one.hashes.items()}
    second = {seed: hash for one in pool.map(survey, blocks(start, seeds)) for seed, hash in one.hashes.items()}
    same = sum(first.get(seed) == hash for seed, hash in second.items())
    report.bar(f"seeds of {seeds:,} with the same event log twice", same, "seeds", at_least=seeds)


def bugs(report: Report, pool: ProcessPoolExecutor, seeds: int) -> None:
    """Bugs travel by their number: what they replace cannot."""
    rows = list(pool.map(_found, range(len(BUGS)), [seeds] * len(BUGS)))
    for bug, row in zip(BUGS, rows, strict=True):
        say(f"planted: {bug.name}: " + (f"seed {row[0]}: {row[1][:120]}" if row else f"not found in {seeds} seeds"))
    report.bar(f"planted bugs of {len(BUGS)} found within {seeds:,} seeds", sum(row is not None for row in rows), "bugs", at_least=max(20, len(BUGS)))
    report.series("seeds until a planted bug is found", "seeds", [row[0] + 1 for row in rows if row])
    report.raw["planted"] = [_row(bug, row) for bug, row in zip(BUGS, rows, strict=True)]


def _found(number: int, seeds: int) -> tuple[int, str] | None:
    return found_at(BUGS[number], range(seeds))


def _row(bug: Bug, row: tuple[int, str] | None) -> dict[str, object]:
    return {"bug": bug.name, "seed": row[0] if row else None, "promise": row[1] if row else ""}


def blocks(start: int, seeds: int) -> list[range]:
    return [range(first, min(first + BLOCK, start + seeds)) for first in range(start, start + seeds, BLOCK)]


if __name__ == "__main__":
    main()
